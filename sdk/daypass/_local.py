"""The commands that run here: up, run, token, forward, completion."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from daypass import _settings as settings
from daypass._errors import SettingsError


def up(options: Namespace) -> int:
    """Run broker and proxy on this machine until interrupted."""
    from daypass._state import UpOptions
    from daypass.up import up as start

    def path(value: str | None) -> Path | None:
        return Path(value) if value else None

    return start(
        UpOptions(
            directory=settings.state_dir(options.dir),
            port=options.port,
            admin_port=options.admin_port,
            tls=options.tls,
            anthropic_keys=options.anthropic_key or (),
            shared_key=options.shared_key,
            anthropic_url=options.anthropic_url,
            policy=path(options.policy),
            prices=path(options.prices),
            vault_addr=options.vault_addr,
            vault_token_file=path(options.vault_token_file),
            as_json=options.json,
        )
    )


def run(options: Namespace) -> int:
    """Run a command that holds a day pass."""
    from daypass.run import RunOptions
    from daypass.run import run as start

    command = options.command
    return start(
        RunOptions(
            command=command[1:] if command[:1] == ["--"] else command,
            launch=options.launch,
            token_file=Path(options.token_file) if options.token_file else None,
            socket=Path(options.socket) if options.socket else None,
            listen=options.listen,
            helper=options.helper,
        )
    )


def token(options: Namespace) -> int:
    """Print a good access token; prints nothing when there is none, as helpers must."""
    from daypass._render import show_json
    from daypass._token import TokenProvider

    if options.launch == "-":
        import sys

        provider = TokenProvider(options.base_url, launch=sys.stdin.read().strip())
    else:
        provider = TokenProvider(options.base_url, launch_file=options.launch)
    found = provider.verified()
    if options.json:
        show_json({"access_token": found.value, "expires_at": int(found.expires_at)})
    else:
        print(found.value)
    return 0


def forward(options: Namespace) -> int:
    """Forward a loopback port to the proxy's Unix socket until interrupted."""
    from daypass._render import show_json
    from daypass.forward import DEFAULT_LISTEN, Forwarder, parse_listen, raise_loopback

    socket = Path(options.socket) if options.socket else settings.sandbox_settings().proxy_socket
    if socket is None:
        raise SettingsError(
            "no socket to forward to", hint="pass --socket or set DAYPASS_PROXY_SOCKET"
        )
    listen = parse_listen(options.listen or DEFAULT_LISTEN)
    raise_loopback()
    forwarder = Forwarder(listen, socket)
    address = f"{forwarder.address[0]}:{forwarder.address[1]}"
    if options.json:
        show_json({"listen": address, "socket": str(socket)})
    else:
        print(f"forwarding {address} to {socket}", flush=True)
    forwarder.serve()
    return 0

"""`daypass run -- CMD`: start a command that holds a day pass and nothing else.

It starts the forwarder if the proxy is a socket, exchanges the launch credential once (which
also shows whether it works), and sets the command's environment so that unmodified clients find
their way:

- a `reusable` launch credential goes to the command as the four federation variables, and
  official clients exchange it by themselves;
- a `single_use` one stays here: the command gets a profile with the token and what renews it, and
  official clients renew it by themselves.

With `--helper` it gets neither, but the URL of a loopback helper that adds the token to each call.
A file with the current token (DAYPASS_TOKEN_FILE) is kept fresh for everything else.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from daypass import _settings as settings
from daypass import helper
from daypass._errors import DaypassError, SettingsError
from daypass._files import private_dir, write_private
from daypass._keeper import Keeper
from daypass._profile import write_profile
from daypass._token import TokenProvider
from daypass.forward import DEFAULT_LISTEN, Forwarder, check_proxy, parse_listen, raise_loopback

_FROM_TERMINAL = ("SIGINT", "SIGQUIT")
_PASSED_ON = (*_FROM_TERMINAL, "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
NOT_FOUND, NOT_STARTED = 127, 126  # as shells answer


@dataclass(frozen=True)
class RunOptions:
    """What `daypass run` was asked; None means what the environment says."""

    command: Sequence[str]
    launch: str | None = None  # a file, or "-" for standard input
    token_file: Path | None = None
    socket: Path | None = None
    listen: str | None = None
    helper: bool = False


def run(options: RunOptions) -> int:
    """Run the command to its end and give its exit code (128 + n for signal n).

    Raises `SettingsError` when something needed is missing, and what the exchange raises when
    the launch credential does not work: then nothing is started.
    """
    if not options.command:
        raise SettingsError("no command given", hint="write: daypass run -- COMMAND [ARGUMENT…]")
    child = _Child()
    with ExitStack() as undo:
        undo.callback(child.restore_signals)
        child.take_signals()
        folder = _run_dir(undo)
        found = settings.sandbox_settings()
        base_url = _forward(options, found, undo)
        launch, launch_file = _launch(options, found)
        provider = TokenProvider(base_url, launch=launch, launch_file=launch_file)
        if provider.cache_path is None:
            cache = folder / "cache.json"
            provider = TokenProvider(base_url, launch=launch, launch_file=launch_file, cache=cache)
        provider.verified()
        environment = _Environment(provider, found, folder)
        kept_here = provider.single_use or (launch is None and launch_file is None)
        if options.helper:
            environment.use_helper(_help(provider, undo))
        elif kept_here or not found.organization:
            environment.use_profile()
        else:
            environment.use_federation(launch, launch_file)
        token_file = (options.token_file or folder / "token").absolute()
        keeper = Keeper(provider, token_file, _say)
        undo.callback(keeper.stop)
        keeper.start()
        return child.run(options.command, environment.build(token_file))


class _Environment:
    """The variables of the command, put together for one of the two ways in."""

    def __init__(
        self, provider: TokenProvider, found: settings.SandboxSettings, folder: Path
    ) -> None:
        self._provider = provider
        self._found = found
        self._folder = folder
        self._remove = (
            *settings.SHADOWING,
            *settings.ADMIN_ONLY,
            *settings.LAUNCHES,
            *settings.FEDERATION,
            "ANTHROPIC_CONFIG_DIR",
            "DAYPASS_PROXY_SOCKET",
        )
        self._add = {
            "ANTHROPIC_BASE_URL": provider.base_url,
            "DAYPASS_BASE_URL": provider.base_url,
            "DAYPASS_TOKEN_CACHE": str(provider.cache_path),
        }

    def use_federation(self, launch: str | None, launch_file: Path | None) -> None:
        """Let official clients exchange the launch credential themselves."""
        if launch_file is None:
            launch_file = self._folder / "launch.jwt"
            write_private(launch_file, str(launch).encode())
        self._add["ANTHROPIC_IDENTITY_TOKEN_FILE"] = str(launch_file.absolute())
        self._add["ANTHROPIC_FEDERATION_RULE_ID"] = self._found.rule
        self._add["ANTHROPIC_ORGANIZATION_ID"] = str(self._found.organization)

    def use_profile(self) -> None:
        """Keep the launch credential here and give official clients a profile over our cache."""
        cache = self._provider.cache_path
        assert cache is not None  # `run` has seen to it
        directory = write_profile(
            self._folder / "anthropic",
            self._provider.base_url,
            cache.absolute(),
            renewable=self._provider.single_use,
        )
        self._add["ANTHROPIC_CONFIG_DIR"] = str(directory)

    def use_helper(self, url: str) -> None:
        """Give clients of both dialects a URL of ours and a key that is none."""
        openai = f"{url}/openai/v1"
        self._add["ANTHROPIC_BASE_URL"] = url
        self._add["ANTHROPIC_AUTH_TOKEN"] = self._add["OPENAI_API_KEY"] = helper.KEY
        self._add["OPENAI_BASE_URL"] = self._add["OPENAI_API_BASE"] = openai

    def build(self, token_file: Path) -> dict[str, str]:
        """The environment; says which provider keys it left out."""
        add = {**self._add, "DAYPASS_TOKEN_FILE": str(token_file)}
        child, gone = settings.child_environment(self._remove, add)
        shadowing = [name for name in gone if name in settings.SHADOWING]
        if shadowing:
            _say(f"removed {', '.join(shadowing)} for the command: it would shadow the day pass")
        return child


class _Child:
    """The command, and the signals that are passed on to it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] | None = None
        """Signals that came while it was being started; None before that."""
        self._before: dict[int, object] = {}

    def take_signals(self) -> None:
        """Handle the signals ourselves; before the command runs they end us tidily."""
        for name in _PASSED_ON:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # nohup
                self._before[number] = signal.signal(number, self._pass_on)

    def restore_signals(self) -> None:
        """Put the handlers back that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def run(self, command: Sequence[str], environment: dict[str, str]) -> int:
        """Start the command and wait for it."""
        self._early = []
        try:
            self._process = subprocess.Popen(command, env=environment)
        except FileNotFoundError:
            _say(f"cannot start {command[0]}: no such command")
            return NOT_FOUND
        except OSError as error:
            _say(f"cannot start {command[0]}: {error.strerror}")
            return NOT_STARTED
        for number in self._early:
            self._send(number)
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        if self._process is not None:
            self._send(number)
        elif self._early is not None:
            self._early.append(number)  # it may run already
        else:
            raise SystemExit(128 + number)

    def _send(self, number: int) -> None:
        assert self._process is not None
        name = signal.Signals(number).name
        if name in _FROM_TERMINAL and _in_foreground():
            return  # the terminal has sent it to the command as well
        self._process.send_signal(number)


def _in_foreground() -> bool:
    """Whether a key press at a terminal reaches this process group."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _run_dir(undo: ExitStack) -> Path:
    """A private directory for this run, removed at its end."""
    parent = private_dir(settings.runtime_dir())
    folder = private_dir(parent / f"run-{os.getpid()}-{os.urandom(4).hex()}")
    undo.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _forward(options: RunOptions, found: settings.SandboxSettings, undo: ExitStack) -> str | None:
    """Start the forwarder if the proxy is a socket; gives the base URL to use."""
    socket = options.socket or found.proxy_socket
    if socket is None:
        return found.base_url
    check_proxy(socket)
    raise_loopback()
    host, port = parse_listen(options.listen or DEFAULT_LISTEN)
    try:
        forwarder = Forwarder((host, port), socket)
    except DaypassError:
        if options.listen:
            raise
        forwarder = Forwarder((host, 0), socket)  # the usual port is taken by another run
    undo.callback(forwarder.close)
    forwarder.start()
    return f"http://{forwarder.address[0]}:{forwarder.address[1]}"


def _help(provider: TokenProvider, undo: ExitStack) -> str:
    """Start the loopback helper at a port of its own; gives its URL."""
    started = helper.Helper(provider, ("127.0.0.1", 0))
    undo.callback(started.close)
    started.start()
    return started.url


def _launch(options: RunOptions, found: settings.SandboxSettings) -> tuple[str | None, Path | None]:
    """The launch credential: from standard input, a named file, or what the environment names."""
    if options.launch == "-":
        value = sys.stdin.read().strip()
        if not value:
            raise SettingsError("no launch credential on standard input", hint="pipe it in")
        return value, None
    if options.launch:
        return None, Path(options.launch)
    return found.launch, found.launch_file


def _say(text: str) -> None:
    print(f"daypass: {text}", file=sys.stderr, flush=True)


__all__: list[str] = ["RunOptions", "run"]

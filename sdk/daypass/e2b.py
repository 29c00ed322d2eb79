"""E2B sandboxes on a day pass, with E2B's own SDK: `pip install e2b`.

    from daypass import Broker, e2b
    with e2b.sandbox(Broker(), proxy="https://daypass.example", profile="coder") as vm:
        vm.commands.run("python agent.py")

A sandbox is registered idle, so what E2B stores of it (variables, metadata, the network) holds
nothing that is worth stealing. Only when it runs is it activated under E2B's id for it, which is
what E2B's webhooks name, and its launch credential is written into its memory. A sandbox that E2B
killed is ended by the broker's webhook, whether or not who started it is still there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from daypass._errors import NotInstalled, SettingsError
from daypass._settings import LAUNCH_FILE, RULE, bare_origin
from daypass.async_broker import AsyncBroker
from daypass.broker import Broker, Sandbox
from daypass.hosts import Hosts

VENDOR = "e2b"
CA_FILE = "/run/daypass/ca.pem"
ALL_TRAFFIC = "0.0.0.0/0"
# A folder of root's, in memory: a snapshot of the file system alone does not have it.
_OWNER = "root"


def arguments(
    sandbox: Sandbox,
    proxy: str,
    *,
    reach: Iterable[str] = (),
    private_ca: bool = False,
    envs: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What `e2b.Sandbox.create` is to be given for a sandbox that was registered idle.

    `proxy` is the base URL as the sandbox sees it. It is all that can be reached, beside the hosts
    of `reach`; `private_ca` says that the broker hands out a CA of its own. `envs` and `metadata`
    go along. Raises `SettingsError` when `reach` would open a provider's own host.
    """
    url = bare_origin(proxy)
    variables = {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_IDENTITY_TOKEN_FILE": LAUNCH_FILE,
        "ANTHROPIC_FEDERATION_RULE_ID": RULE,
        "ANTHROPIC_ORGANIZATION_ID": sandbox.tenant,
    }
    if private_ca:
        variables |= {"SSL_CERT_FILE": CA_FILE, "NODE_EXTRA_CA_CERTS": CA_FILE}
    return {
        "envs": {**(envs or {}), **variables},
        "metadata": {**(metadata or {}), "daypass_sandbox": sandbox.id},
        "network": {
            "allow_out": [str(urlsplit(url).hostname), *_without_vendors(reach)],
            "deny_out": [ALL_TRAFFIC],
        },
    }


def hand_over(vm: Any, given: Sandbox) -> None:
    """Write the files of an activated sandbox into a running E2B sandbox."""
    for path, content in given.files.items():
        vm.files.write(path, content, user=_OWNER)


async def hand_over_async(vm: Any, given: Sandbox) -> None:
    """Write the files of an activated sandbox into a running `e2b.AsyncSandbox`."""
    for path, content in given.files.items():
        await vm.files.write(path, content, user=_OWNER)


@contextmanager
def sandbox(
    broker: Broker,
    *,
    proxy: str,
    reach: Iterable[str] = (),
    private_ca: bool = False,
    create: Mapping[str, Any] | None = None,
    kind: Any = None,
    **fields: Any,
) -> Iterator[Any]:
    """Start an E2B sandbox with a day pass, give it, kill it and end its access.

    `fields` go to the broker (`profile`, `budget_usd`, …), `create` to `Sandbox.create`
    (`template`, `timeout`, …); `kind` is a class to use instead of `e2b.Sandbox`, as
    `e2b_code_interpreter` has one. Raises `NotInstalled` without E2B's SDK, and `SettingsError`.
    """
    maker = kind or _official().Sandbox
    with broker.sandbox(idle=True, **fields) as idle:
        vm = maker.create(**_merged(create, idle, proxy, reach, private_ca))
        try:
            given = broker.activate(idle.id, vendor=VENDOR, vendor_id=vm.sandbox_id)
            _check(given, proxy)
            hand_over(vm, given)
            yield vm
        finally:
            vm.kill()


@asynccontextmanager
async def async_sandbox(
    broker: AsyncBroker,
    *,
    proxy: str,
    reach: Iterable[str] = (),
    private_ca: bool = False,
    create: Mapping[str, Any] | None = None,
    kind: Any = None,
    **fields: Any,
) -> AsyncIterator[Any]:
    """The same with `e2b.AsyncSandbox` and an `AsyncBroker`, for many at once."""
    maker = kind or _official().AsyncSandbox
    async with broker.sandbox(idle=True, **fields) as idle:
        vm = await maker.create(**_merged(create, idle, proxy, reach, private_ca))
        try:
            activate = broker.sync.activate
            given = await broker.run(activate, idle.id, vendor=VENDOR, vendor_id=vm.sandbox_id)
            _check(given, proxy)
            await hand_over_async(vm, given)
            yield vm
        finally:
            await vm.kill()


def _merged(
    create: Mapping[str, Any] | None,
    idle: Sandbox,
    proxy: str,
    reach: Iterable[str],
    private_ca: bool,
) -> dict[str, Any]:
    """What the caller wants of E2B, and what we have to say about it."""
    wanted = dict(create or {})
    for name in ("network", "allow_internet_access"):
        if name in wanted:
            raise SettingsError(
                f"create: {name} is decided here", hint="name the hosts it needs in reach="
            )
    ours = arguments(
        idle,
        proxy,
        reach=reach,
        private_ca=private_ca,
        envs=wanted.pop("envs", None),
        metadata=wanted.pop("metadata", None),
    )
    return {**wanted, **ours}


def _check(given: Sandbox, proxy: str) -> None:
    """The variables were chosen before the broker said its own: they must agree."""
    url = given.environment.get("ANTHROPIC_BASE_URL", "")
    if url != bare_origin(proxy):
        raise SettingsError(f"the broker hands out {url} as the proxy", hint=f"pass proxy={url!r}")


def _without_vendors(reach: Iterable[str]) -> list[str]:
    from daypass._doctor import VENDORS

    names = list(reach)
    for name in names:
        opened = [host for host in VENDORS if Hosts([name]).allows(f"https://{host}/")]
        if opened:
            raise SettingsError(
                f"reach: {name} opens {opened[0]}, where a key of somebody else's would work",
                hint="leave it out: the proxy serves that provider",
            )
    return names


def _official() -> Any:
    try:
        import e2b  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise NotInstalled(
            "the e2b package is not installed", hint="run: pip install e2b"
        ) from None
    return e2b

"""The keyring: fresh keys from memory, one re-read when one is refused, no key anywhere else."""

import asyncio
import base64
import io
import json
import logging
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from daypass_core.log import JsonFormatter
from daypass_core.problem import Code
from daypass_core.secret import Reference, Secret, parse_reference
from daypass_core.vault import VaultError, VaultMissing, VaultRefused, VaultUnavailable
from daypass_proxy import keyring_threads
from daypass_proxy.keyring import REREAD_SECONDS, Keyring, KeyUnavailable
from daypass_proxy.keyring_held import STALE_SECONDS
from daypass_proxy.providers.anthropic import Anthropic
from tests.canary import CANARY
from tests.fakes.clock import FakeClock
from tests.fakes.keys import FakeVault
from tests.support import aeventually

PROVIDER = Anthropic()
KEY = f"sk-ant-{CANARY}-one/first+part"
NEWER = f"sk-ant-{CANARY}-two/other+part"
PATH = "vault://secret/llm/acme#api_key"


def keyring(vault: FakeVault, clock: FakeClock, **references: str) -> Keyring:
    """Return a keyring over `vault`; `others` stands for "*"."""
    named = references or {"acme": PATH}
    return Keyring(
        {
            "anthropic": {
                ("*" if k == "others" else k): parse_reference(v) for k, v in named.items()
            }
        },
        env_secrets={"REAL": Secret(KEY)},
        vault=vault,
        clock=clock,
    )


async def value(ring: Keyring, tenant: str = "acme") -> str:
    """Return the key that a tenant's calls go up with."""
    name, key = await ring.header_for(tenant, PROVIDER)
    assert name == b"x-api-key"
    return key.decode()


async def test_read_at_start() -> None:
    """Named keys are read at start, in a thread; a call takes its key from memory."""
    vault = FakeVault(acme=KEY)
    ring = keyring(vault, FakeClock())
    await ring.start()
    assert await value(ring) == KEY
    assert await value(ring) == KEY
    assert vault.reads == {"llm/acme": 1}
    assert threading.get_ident() not in vault.threads
    await ring.close()


async def test_template() -> None:
    """A "*" reference serves each tenant its own key, read at the tenant's first call only."""
    vault = FakeVault(acme=KEY, globex=NEWER)
    ring = keyring(vault, FakeClock(), others="vault://secret/llm/{tenant}#api_key")
    await ring.start()
    assert vault.reads == {}
    assert await value(ring, "globex") == NEWER
    assert await value(ring, "acme") == KEY
    assert await value(ring, "acme") == KEY
    assert vault.reads == {"llm/acme": 1, "llm/globex": 1}
    await ring.close()


async def test_own_entry_before_others(tmp_path: Path) -> None:
    """A tenant's own reference wins over "*"; files lose their final newline."""
    file = tmp_path / "key.secret"
    file.write_text(NEWER + "\n")
    ring = keyring(FakeVault(), FakeClock(), acme="env://REAL", others=f"file://{file}")
    await ring.start()
    assert await value(ring, "acme") == KEY
    assert await value(ring, "globex") == NEWER
    await ring.close()


@pytest.mark.parametrize("tenant", ["globex", "../acme", ""])
async def test_no_reference(tenant: str) -> None:
    """A tenant without a reference, or with a name that is none, gets 403 and no key."""
    ring = keyring(FakeVault(acme=KEY), FakeClock())
    with pytest.raises(KeyUnavailable) as caught:
        await ring.header_for(tenant, PROVIDER)
    assert caught.value.problem.code is Code.INSUFFICIENT_SCOPE
    assert "no key" in caught.value.problem.title
    assert not ring.leaks(tenant, "anthropic", KEY.encode())


@pytest.mark.parametrize(
    "error", [VaultUnavailable("vault at secret/llm/acme#api_key: sealed"), VaultRefused("403")]
)
async def test_stale_at_most_15_minutes(error: VaultError) -> None:
    """While Vault cannot say, the last good key serves for 15 minutes and no longer."""
    vault, clock = FakeVault(acme=KEY), FakeClock()
    ring = keyring(vault, clock)
    await ring.read_all()
    assert await value(ring) == KEY
    vault.error = error
    clock.advance(STALE_SECONDS)
    await ring.read_all()
    assert await value(ring) == KEY
    clock.advance(1)
    await ring.read_all()
    with pytest.raises(KeyUnavailable):
        await value(ring)
    vault.error = None
    await ring.read_all()
    assert await value(ring) == KEY


async def test_key_taken_away() -> None:
    """A key that Vault says is not there any more is dropped at once."""
    vault = FakeVault(acme=KEY)
    ring = keyring(vault, FakeClock())
    assert await value(ring) == KEY
    del vault.secrets["acme"]
    await ring.read_all()
    with pytest.raises(KeyUnavailable):
        await value(ring)


async def test_vault_down_at_start() -> None:
    """With Vault down at start calls get 503, are not queued on it, and recover by themselves."""
    vault, clock = FakeVault(acme=KEY), FakeClock()
    vault.error = VaultUnavailable("down")
    ring = keyring(vault, clock)
    await ring.start()
    results = await asyncio.gather(*(value(ring) for _ in range(50)), return_exceptions=True)
    assert {type(result) for result in results} == {KeyUnavailable}
    assert vault.reads["llm/acme"] <= 2
    vault.error = None
    clock.advance(1)
    assert await value(ring) == KEY
    await ring.close()


async def test_calls_do_not_queue_for_a_vault_that_hangs() -> None:
    """B12: all calls that wait for a key hear of the first failure, however long that took."""
    clock = FakeClock()

    class Hanging(FakeVault):
        def read(self, mount: str, path: str, field: str) -> Secret:
            clock.advance(30)
            return super().read(mount, path, field)

    vault = Hanging(acme=KEY)
    vault.error = VaultUnavailable("ReadTimeout")
    ring = keyring(vault, clock)
    found = await asyncio.gather(*(value(ring) for _ in range(20)), return_exceptions=True)
    assert {type(each) for each in found} == {KeyUnavailable}
    assert vault.reads["llm/acme"] == 1
    vault.error = None
    clock.advance(1)
    refused = await ring.header_for("acme", PROVIDER)
    assert vault.reads["llm/acme"] == 2
    vault.error = VaultUnavailable("ReadTimeout")
    assert not any(
        await asyncio.gather(*(ring.refresh("acme", PROVIDER, refused) for _ in range(20)))
    )
    assert vault.reads["llm/acme"] == 3
    await ring.close()


async def test_a_read_that_never_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds one thread, but no start, no call and no other key; when it ends all is well."""
    monkeypatch.setattr(keyring_threads, "READ_SECONDS", 0.2)
    may_end = threading.Event()

    class Hanging(FakeVault):
        def read(self, mount: str, path: str, field: str) -> Secret:
            if path.endswith("acme"):
                may_end.wait(10)
            return super().read(mount, path, field)

    vault, clock = Hanging(acme=KEY, globex=KEY), FakeClock()
    ring = keyring(vault, clock, acme=PATH, globex=PATH.replace("acme", "globex"))
    async with asyncio.timeout(15):
        await ring.start()
        monkeypatch.setattr(keyring_threads, "READ_SECONDS", 10.0)  # it is not read again meanwhile
        for key in (NEWER, KEY, NEWER, KEY, NEWER, KEY):
            clock.advance(60)
            vault.secrets["globex"] = key
            await ring.read_all()
            assert await value(ring, "globex") == key
            with pytest.raises(KeyUnavailable):
                await value(ring)
    assert vault.reads["llm/acme"] == 0
    may_end.set()
    await aeventually(lambda: all(one.done() for one in ring._threads._under_way.values()))
    assert vault.reads["llm/acme"] == 1
    clock.advance(1)
    assert await value(ring) == KEY
    await ring.close()


async def test_whatever_vault_does_keys_go_on_being_read() -> None:
    """An error that nobody foresaw, when Vault is looked for, ends neither start nor refreshing."""

    class Odd(FakeVault):
        def reach(self) -> None:
            super().reach()
            raise OSError("no such file")

    vault, woken = Odd(acme=KEY), asyncio.Event()
    sleeping = asyncio.Event()

    async def sleep(seconds: float) -> None:
        sleeping.set()
        await woken.wait()
        woken.clear()

    ring = Keyring(
        {"anthropic": {"*": parse_reference("vault://secret/llm/{tenant}#api_key")}},
        env_secrets={},
        vault=vault,
        clock=FakeClock(),
        sleep=sleep,
    )
    await ring.start()
    assert await value(ring) == KEY
    for _ in range(3):
        await sleeping.wait()
        sleeping.clear()
        woken.set()
    await sleeping.wait()
    assert vault.reaches >= 4
    await ring.close()


async def test_refreshed_every_minute() -> None:
    """The keyring sleeps about a minute, reads all keys, and sleeps again."""
    vault, slept = FakeVault(acme=KEY), list[float]()
    wake, sleeping = asyncio.Event(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        sleeping.set()
        await wake.wait()
        wake.clear()

    ring = Keyring(
        {"anthropic": {"acme": parse_reference(PATH)}},
        env_secrets={},
        vault=vault,
        clock=FakeClock(),
        sleep=sleep,
        jitter=lambda: 1.0,
    )
    await ring.start()
    await sleeping.wait()
    sleeping.clear()
    vault.secrets["acme"] = NEWER
    wake.set()
    await sleeping.wait()
    assert await value(ring) == NEWER
    assert slept == [pytest.approx(66), pytest.approx(66)]
    await ring.close()


async def test_one_bad_key_does_not_stop_the_rest() -> None:
    """A failure of any kind while one key is read leaves the others being refreshed."""

    class Odd(FakeVault):
        def read(self, mount: str, path: str, field: str) -> Secret:
            if path.endswith("acme"):
                raise RuntimeError(f"boom with {KEY}")
            return super().read(mount, path, field)

    ring = keyring(Odd(globex=NEWER), FakeClock(), acme=PATH, globex=PATH.replace("acme", "globex"))
    await ring.start()
    assert await value(ring, "globex") == NEWER
    with pytest.raises(KeyUnavailable):
        await value(ring)
    await ring.close()


async def test_refused_key_is_read_again() -> None:
    """After a refusal the key is read once more; a newer one is worth another try."""
    vault, clock = FakeVault(acme=KEY), FakeClock()
    ring = keyring(vault, clock)
    refused = await ring.header_for("acme", PROVIDER)
    vault.secrets["acme"] = NEWER
    assert await ring.refresh("acme", PROVIDER, refused)
    assert await value(ring) == NEWER
    # A call that was refused with the old key finds the new one without another read.
    assert await ring.refresh("acme", PROVIDER, refused)
    assert vault.reads["llm/acme"] == 2


async def test_refused_key_is_read_once_in_10_seconds() -> None:
    """However many calls a bad key refuses, Vault is asked once in ten seconds."""
    vault, clock = FakeVault(acme=KEY), FakeClock()
    ring = keyring(vault, clock)
    refused = await ring.header_for("acme", PROVIDER)
    answers = await asyncio.gather(*(ring.refresh("acme", PROVIDER, refused) for _ in range(50)))
    assert not any(answers)
    assert vault.reads["llm/acme"] == 2
    clock.advance(REREAD_SECONDS)
    assert not await ring.refresh("acme", PROVIDER, refused)
    assert vault.reads["llm/acme"] == 3


@pytest.mark.parametrize("key", ["with space", "line\nbreak", "bell\x07", "umlaut-ä-key"])
async def test_key_that_cannot_be_a_header(key: str) -> None:
    """A key that would break a header is as good as none."""
    ring = keyring(FakeVault(acme=key), FakeClock())
    with pytest.raises(KeyUnavailable):
        await value(ring)


def alignments(key: str) -> list[bytes]:
    """The key inside longer base64, at each alignment, with neighbours."""
    return [base64.b64encode(b"u" * shift + b":" + key.encode() + b"!tail") for shift in range(3)]


def forms_of(key: str) -> list[bytes]:
    """Ways in which a provider or a proxy before it could echo the key."""
    raw = key.encode()
    half = len(raw) // 2
    return [
        raw,
        b'{"key":"' + raw + b'"}',
        raw[:half] + b"...",
        b"..." + raw[half:],
        base64.b64encode(raw),
        base64.urlsafe_b64encode(raw),
        *alignments(key),
        quote(key, safe="").encode(),
        key.replace("/", "\\/").encode(),
        raw.hex().encode(),
        raw.hex().upper().encode(),
        b"sk-..." + raw[-12:],
    ]


@pytest.mark.parametrize("form", forms_of(KEY))
async def test_leak_is_found(form: bytes) -> None:
    """Row 15: the key is found plain, half, in base64 at any alignment, quoted and in hex."""
    ring = keyring(FakeVault(acme=KEY, globex=NEWER), FakeClock())
    await ring.read_all()
    assert not ring.leaks("acme", "anthropic", form), "unknown before it was ever read"
    assert await value(ring) == KEY
    assert ring.leaks("acme", "anthropic", b"error: " + form + b" rejected")
    assert not ring.leaks("acme", "anthropic", b"error: x-api-key sk-ant-... rejected")


async def test_leak_of_the_previous_key() -> None:
    """Row 15: an answer to a call that went up with the key before last minute is searched too."""
    vault = FakeVault(acme=KEY)
    ring = keyring(vault, FakeClock())
    await value(ring)
    vault.secrets["acme"] = NEWER
    await ring.read_all()
    assert ring.leaks("acme", "anthropic", NEWER.encode())
    assert ring.leaks("acme", "anthropic", KEY.encode())


async def test_nothing_of_a_key_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """B58: no failure path of the keyring logs, prints or raises a part of a key."""
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonFormatter("proxy"))
    logger = logging.getLogger("daypass_proxy.keyring")
    logger.addHandler(handler)
    caplog.set_level(logging.DEBUG)
    vault = FakeVault(acme=KEY)
    ring = keyring(vault, FakeClock())
    await value(ring)
    for secret in (NEWER, "broken " + KEY):
        vault.secrets["acme"] = secret
        await ring.read_all()
    for error in (VaultUnavailable("down"), VaultMissing("gone")):
        vault.error = error
        await ring.read_all()
    logger.removeHandler(handler)
    said = lines.getvalue() + caplog.text + repr(vars(ring))
    assert CANARY not in said
    events = [json.loads(line)["event"] for line in lines.getvalue().splitlines()]
    assert events == ["key_changed", "key_read_failed", "key_read_failed", "key_read_failed"]
    assert str(Reference("vault", "llm/acme", "secret", "api_key")) in lines.getvalue()

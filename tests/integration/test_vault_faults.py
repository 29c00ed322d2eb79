"""A real OpenBao fails in its own ways: keys in memory serve 15 minutes, and it heals by itself."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from daypass_core.log import request_id
from daypass_core.secret import parse_reference
from daypass_core.vault import Vault
from daypass_core.vault_settings import VaultSettings
from daypass_proxy.keyring import Keyring, KeyUnavailable
from daypass_proxy.keyring_held import STALE_SECONDS
from daypass_proxy.providers.anthropic import Anthropic
from demo.services.openbao import OpenBao
from tests.canary import CANARY
from tests.fakes.clock import FakeClock
from tests.servers.vault import DurableBao, approle, enable, reading

pytestmark = pytest.mark.openbao

KEY, NEWER = f"sk-ant-{CANARY}-one", f"sk-ant-{CANARY}-two"
PROVIDER = Anthropic()
PATH = "vault://secret/llm/acme#api_key"
Fault = Callable[[DurableBao], object]


@pytest.fixture(scope="module")
def bao(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DurableBao]:
    """One server on disk, with an audit log."""
    with DurableBao(tmp_path_factory.mktemp("openbao")) as server:
        enable(server, "approle")
        header = "sys/config/auditing/request-headers/X-Daypass-Request-Id"
        server.request("POST", header, {"hmac": False})
        yield server


@pytest.fixture
def settings(bao: DurableBao, tmp_path: Path) -> VaultSettings:
    """A login that may read the key, which is as new."""
    bao.policy("proxy", reading("secret/data/llm/acme"))
    bao.put("secret/llm/acme", api_key=KEY)
    return approle(bao, tmp_path, "proxy", token_ttl="2h", token_max_ttl="2h")


class Ring:
    """A keyring over a real server, whose minutes pass when a test says so."""

    def __init__(self, settings: VaultSettings, reference: str = PATH) -> None:
        self.clock = FakeClock()
        self.vault = Vault(settings, self.clock.monotonic)
        self.keys = Keyring(
            {"anthropic": {"acme" if "{" not in reference else "*": parse_reference(reference)}},
            env_secrets={},
            vault=self.vault,
            clock=self.clock,
            sleep=self._sleep,
        )
        self._sleeping = asyncio.Event()
        self._wake = asyncio.Event()

    async def _sleep(self, seconds: float) -> None:
        self._sleeping.set()
        await self._wake.wait()
        self._wake.clear()
        self.clock.advance(seconds)

    async def next_look(self) -> None:
        """Let the keyring sleep to its end, and look."""
        await self._sleeping.wait()
        self._sleeping.clear()
        self._wake.set()
        await self._sleeping.wait()

    async def key(self) -> str:
        """The key that a call goes up with."""
        return (await self.keys.header_for("acme", PROVIDER))[1].decode()


@asynccontextmanager
async def opened(settings: VaultSettings, reference: str = PATH) -> AsyncIterator[Ring]:
    """A keyring that has started."""
    ring = Ring(settings, reference)
    await ring.keys.start()
    try:
        yield ring
    finally:
        await ring.keys.close()
        ring.vault.close()


def revoke_tokens(bao: DurableBao) -> None:
    """End every token of the AppRole, and let nobody log in."""
    bao.request("POST", "sys/leases/revoke-prefix/auth/approle", {})
    bao.request("POST", "auth/approle/role/proxy", {"token_bound_cidrs": ["192.0.2.1/32"]})


def limit(bao: DurableBao) -> None:
    """Allow a read in ten minutes, and use it."""
    quota = {"rate": 1, "interval": "600s", "path": "secret"}
    bao.request("POST", "sys/quotas/rate-limit/few", quota)
    bao.request("GET", "secret/data/llm/acme")


def crash(bao: DurableBao) -> None:
    """End it as a crash does, and start it: sealed, with all it had."""
    bao.kill()
    bao.restart(unseal=False)


FAULTS: dict[str, tuple[Fault, Fault, str]] = {
    "sealed": (OpenBao.seal, DurableBao.unseal, "sealed"),
    "frozen": (OpenBao.freeze, OpenBao.thaw, "ReadTimeout"),
    "killed": (OpenBao.kill, DurableBao.restart, "ConnectionError"),
    "restarted and sealed": (
        crash,
        DurableBao.unseal,
        "sealed",
    ),
    "permission lost": (
        lambda bao: bao.request("DELETE", "sys/policies/acl/proxy"),
        lambda bao: bao.policy("proxy", reading("secret/data/llm/acme")),
        "refused",
    ),
    "rate-limited": (
        limit,
        lambda bao: bao.request("DELETE", "sys/quotas/rate-limit/few"),
        "RateLimitExceeded",
    ),
    "tokens revoked, no login": (
        revoke_tokens,
        lambda bao: bao.request("POST", "auth/approle/role/proxy", {"token_bound_cidrs": []}),
        "refused",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_is_survived_for_15_minutes(
    bao: DurableBao, settings: VaultSettings, name: str
) -> None:
    """B12: the key in memory serves for 15 minutes and no longer; then the fault's end is seen."""
    fault, end, said = FAULTS[name]
    async with opened(settings) as ring:
        assert await ring.key() == KEY
        await asyncio.to_thread(fault, bao)
        try:
            for _ in range(5):  # signals take a moment
                await ring.next_look()
                (problem,) = ring.keys.findings.values()
                if problem:
                    break
            assert said in str(problem)
            read_at = ring.clock.monotonic() - (ring.keys.age or 0.0)
            ring.clock.mono = read_at + STALE_SECONDS - 70
            await ring.next_look()
            assert await ring.key() == KEY
            assert ring.keys.states == {"fresh": 0, "stale": 1, "lost": 0}
            assert ring.keys.lacking is None
            ring.clock.mono = read_at + STALE_SECONDS + 1
            with pytest.raises(KeyUnavailable, match="the key of acme at anthropic"):
                await ring.key()
            assert ring.keys.states == {"fresh": 0, "stale": 0, "lost": 1}
            assert ring.keys.age == pytest.approx(STALE_SECONDS + 1)
            assert ring.keys.lacking == "provider keys: not one can be read from where it lives"
        finally:
            await asyncio.to_thread(end, bao)
        for _ in range(12):  # a new policy, and logins, are seen after a pause of a minute at most
            await ring.next_look()
            if ring.keys.states["fresh"]:
                break
        assert await ring.key() == KEY
        assert ring.keys.lacking is None


class Heart:
    """A thread that beats a hundred times a second; not while the whole machine stands still.

    So many beats between two turns of a loop say that something held the loop.
    """

    def __init__(self) -> None:
        self.beats = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def __enter__(self) -> "Heart":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ending.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._ending.wait(0.01):
            self.beats += 1


async def test_a_frozen_vault_does_not_hold_the_loop(
    bao: DurableBao, settings: VaultSettings
) -> None:
    """B12: while 200 tenants come for the first time to a frozen Vault the loop goes on turning."""
    longest = 0
    async with opened(settings, "vault://secret/llm/{tenant}#api_key") as ring:
        await asyncio.to_thread(bao.freeze)

        async def watch(heart: Heart) -> None:
            nonlocal longest
            while True:
                before = heart.beats
                await asyncio.sleep(0.01)
                longest = max(longest, heart.beats - before)

        with Heart() as heart:
            watching = asyncio.create_task(watch(heart))
            try:
                began = time.monotonic()
                calls = [ring.keys.header_for(f"t{n}", PROVIDER) for n in range(200)]
                found = await asyncio.gather(*calls, return_exceptions=True)
                assert {type(each) for each in found} == {KeyUnavailable}
                assert time.monotonic() - began < 15
                assert heart.beats > 50, "they did wait for it"
            finally:
                watching.cancel()
                await asyncio.to_thread(bao.thaw)
        assert longest < 50


@pytest.mark.parametrize("how", ["deleted", "destroyed", "all gone"])
async def test_a_key_that_is_taken_away(bao: DurableBao, settings: VaultSettings, how: str) -> None:
    """B24: a key that is deleted or destroyed serves no call from the next look on."""
    async with opened(settings) as ring:
        version = bao.request("GET", "secret/metadata/llm/acme")["data"]["current_version"]
        if how == "deleted":
            bao.delete("secret/llm/acme")
        elif how == "destroyed":
            bao.request("PUT", "secret/destroy/llm/acme", {"versions": [version]})
        else:
            bao.request("DELETE", "secret/metadata/llm/acme")
        await ring.next_look()
        with pytest.raises(KeyUnavailable):
            await ring.key()
        bao.put("secret/llm/acme", api_key=NEWER)
        ring.clock.advance(2)
        assert await ring.key() == NEWER


async def test_b24_a_new_version(bao: DurableBao, settings: VaultSettings) -> None:
    """B24: a new version is used from the next look on, a minute at most, and at once on a 401."""
    async with opened(settings) as ring:
        refused = await ring.keys.header_for("acme", PROVIDER)
        bao.put("secret/llm/acme", api_key=NEWER)
        assert await ring.key() == KEY
        assert await ring.keys.refresh("acme", PROVIDER, refused)
        assert await ring.key() == NEWER
        bao.put("secret/llm/acme", api_key=KEY)
        before = ring.clock.monotonic()
        await ring.next_look()
        assert ring.clock.monotonic() - before <= 66
        assert await ring.key() == KEY


async def test_a_start_without_vault(bao: DurableBao, settings: VaultSettings) -> None:
    """B12: a keyring that starts with Vault down is not ready, says so, and heals by itself."""
    for reference in (PATH, "vault://secret/llm/{tenant}#api_key"):
        bao.kill()
        try:
            async with opened(settings, reference) as ring:
                assert ring.keys.lacking is not None
                await ring.next_look()
                assert ring.keys.lacking is not None
                bao.restart()
                ring.clock.advance(15)
                await ring.next_look()
                assert ring.keys.lacking is None
                assert await ring.key() == KEY
        finally:
            if bao.killed:
                bao.restart()


async def test_many_keys_behind_a_rate_limit(bao: DurableBao, settings: VaultSettings) -> None:
    """Of 9 keys behind a limit of 5 a look each is read in turn; none is left to grow stale."""
    bao.policy("proxy", reading("secret/data/llm/*"))
    for number in range(9):
        bao.put(f"secret/llm/t{number}", api_key=f"{KEY}-{number}")
    async with opened(settings, "vault://secret/llm/{tenant}#api_key") as ring:
        for number in range(9):
            await ring.keys.header_for(f"t{number}", PROVIDER)
        ring.clock.advance(60)
        began = ring.clock.monotonic()
        quota = {"rate": 5, "interval": "600s", "path": "secret"}
        try:
            for _ in range(2):
                bao.request("POST", "sys/quotas/rate-limit/few", quota)
                await ring.keys.read_all()
                assert ring.keys.reads["failed"] > 0
                bao.request("DELETE", "sys/quotas/rate-limit/few")
                ring.clock.advance(1)
            assert (ring.keys.age or 0.0) <= ring.clock.monotonic() - began
        finally:
            bao.request("DELETE", "sys/quotas/rate-limit/few")


async def test_the_audit_log_names_the_call(bao: DurableBao, settings: VaultSettings) -> None:
    """A read that a call waits for bears the call's id; one of the keyring's own bears none."""
    async with opened(settings, "vault://secret/llm/{tenant}#api_key") as ring:
        before = len(bao.audited())
        token = request_id.set("req_of_a_call")
        try:
            assert await ring.key() == KEY
        finally:
            request_id.reset(token)
        await ring.keys.read_all()
        reads = [
            line["request"].get("headers", {}).get("x-daypass-request-id")
            for line in bao.audited()[before:]
            if line["type"] == "request" and line["request"]["path"] == "secret/data/llm/acme"
        ]
        assert reads == [["req_of_a_call"], None]
    assert CANARY not in bao.audit_log.read_text()

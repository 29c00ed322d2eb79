"""What a hostile sandbox may cost the others: time, memory, places, and the reading of a key."""

import asyncio
import json
import time

import pytest

from daypass_core.problem import Code, Refusal
from daypass_core.secret import parse_reference
from daypass_proxy.body.room import MAX_BYTES, MAX_PER_SANDBOX, SMALL_BYTES, BodyRoom
from daypass_proxy.body.strict import parse
from daypass_proxy.estimate import TEMPLATE_TOKENS, quote
from daypass_proxy.keyring import Keyring
from daypass_proxy.price import PriceTable
from daypass_proxy.providers import Call
from daypass_proxy.providers.anthropic import Anthropic
from daypass_proxy.settings import load
from daypass_proxy.token import pass_token_request
from tests.fakes.anthropic import detail, read, refused, user
from tests.fakes.asgi import make_exchange
from tests.fakes.clock import FakeClock
from tests.fakes.keys import FakeVault
from tests.fakes.proxy import ENVIRONMENT, Proxy
from tests.support import aeventually

PROVIDER = Anthropic()
JSON = (b"content-type", b"application/json")


# -- time


@pytest.mark.parametrize("number", [b"1.5e300", b"1.7976931348623157e308", b"4.9e-324"])
def test_numbers_at_the_ends_of_the_range_are_read_fast(number: bytes) -> None:
    """Row 17: two hundred thousand floats that are hard to read hold the loop for no second."""
    body = b'{"a":[' + b",".join([number] * 200_000) + b"]}"
    began = time.process_time()
    assert parse(body)["a"][0] == float(number)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("number", [b"1e400", b"-1e999", b"1." + b"0" * 200, b"9" * 200 + b".5"])
def test_numbers_no_client_writes_are_refused(number: bytes) -> None:
    """Row 17: a number that is infinite or absurdly long is 400."""
    with pytest.raises(Refusal):
        parse(b'{"a":' + number + b"}")


# -- memory


def test_one_sandbox_has_its_share_of_memory() -> None:
    """Row 17: a sandbox holds so many bytes of bodies and no more; others are not touched."""
    room = BodyRoom()
    with room.enter("one", MAX_PER_SANDBOX):
        with pytest.raises(Refusal) as caught, room.enter("one", 1):
            pass
        assert caught.value.problem.code is Code.RATE_LIMITED
        with room.enter("two", MAX_PER_SANDBOX):
            assert room.total == 2 * MAX_PER_SANDBOX
    assert (room.total, room.sandboxes) == (0, {})


def test_all_sandboxes_have_a_bound() -> None:
    """Row 17: beyond the bound over all, large bodies wait and small ones pass."""
    room = BodyRoom(total=MAX_BYTES)
    with pytest.raises(Refusal) as caught, room.enter("one", SMALL_BYTES + 1):
        pass
    assert caught.value.problem.code is Code.OVERLOADED
    with room.enter("one", SMALL_BYTES):
        assert room.sandboxes == {"one": SMALL_BYTES}


def test_a_body_takes_what_it_has() -> None:
    """A body whose size was not announced gives back what it did not need."""
    room = BodyRoom()
    with room.enter("one", MAX_PER_SANDBOX) as took:
        took(10)
        assert room.sandboxes == {"one": 10}
        with room.enter("one", MAX_PER_SANDBOX - 10):
            assert room.total == MAX_PER_SANDBOX
    assert (room.total, room.sandboxes) == (0, {})


# -- places


async def test_a_slow_sender_takes_no_place_at_the_token_endpoint() -> None:
    """Row 18: an exchange takes its place when its body is there, not before."""
    proxy = Proxy()
    exchange, wire = make_exchange(headers=(JSON,), peer=None)
    gate = asyncio.Event()

    async def receive() -> dict[str, object]:
        await gate.wait()
        return {"type": "http.request", "body": b"{}", "more_body": False}

    exchange._receive = receive
    waiting = asyncio.create_task(pass_token_request(exchange, proxy.services))
    for _ in range(10):
        await asyncio.sleep(0)
    assert proxy.services.token_gate.total == 0
    gate.set()
    await waiting
    assert wire.status == 200


# -- keys


def keyring(vault: FakeVault, clock: FakeClock) -> Keyring:
    """A keyring over `vault` for every tenant."""
    references = {"*": parse_reference("vault://secret/llm/{tenant}#api_key")}
    return Keyring({"anthropic": references}, env_secrets={}, vault=vault, clock=clock)


async def test_who_hangs_up_does_not_stop_the_first_read() -> None:
    """A call that is cut while its tenant's key is first read leaves the read to the others."""
    vault = FakeVault(acme="sk-ant-one")
    ring = keyring(vault, FakeClock())
    vault.may_answer.clear()
    first = asyncio.create_task(ring.header_for("acme", PROVIDER))
    await aeventually(lambda: vault.reads["llm/acme"] == 1)
    second = asyncio.create_task(ring.header_for("acme", PROVIDER))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    vault.may_answer.set()
    assert await second == (b"x-api-key", b"sk-ant-one")
    assert vault.reads["llm/acme"] == 1
    await ring.close()


async def test_who_hangs_up_does_not_stop_the_reading_of_a_newer_key() -> None:
    """A call that is cut during the re-read after a 401 leaves the newer key to the others."""
    vault = FakeVault(acme="sk-ant-one")
    ring = keyring(vault, FakeClock())
    old = await ring.header_for("acme", PROVIDER)
    vault.secrets["acme"] = "sk-ant-two"
    vault.may_answer.clear()
    first = asyncio.create_task(ring.refresh("acme", PROVIDER, old))
    await aeventually(lambda: vault.reads["llm/acme"] == 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    vault.may_answer.set()
    assert await ring.refresh("acme", PROVIDER, old)
    assert await ring.header_for("acme", PROVIDER) == (b"x-api-key", b"sk-ant-two")
    assert vault.reads["llm/acme"] == 2
    await ring.close()


# -- money and ways out

SMALL = "claude-haiku-4-5"  # its window is the smaller one of the table


def test_the_long_context_flag_raises_the_hold() -> None:
    """A beta flag that opens a larger window than the price table's raises what is held."""
    flag = (b"anthropic-beta", b"a-2026-01-01,context-1m-2025-08-07")
    text = {"model": SMALL, "system": "x" * 600_000}
    scope = detail(models=(SMALL,))
    plain, long = read(text, scope), read(text, scope, headers=(flag,))
    assert held(plain) == 200_000
    assert held(long) == len(long.body) + TEMPLATE_TOKENS
    assert held(document(flag)) == 1_000_000


def held(call: Call) -> int:
    """Return how many input tokens are held for a call."""
    return quote(call, PriceTable.load(), 0.0).base.tokens


def document(*headers: tuple[bytes, bytes]) -> Call:
    """A call with a document."""
    source = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
    body = {"model": SMALL} | user({"type": "document", "source": source})
    return read(body, detail(models=(SMALL,)), headers=headers)


@pytest.mark.parametrize(
    "domain",
    [
        "evil.test#.ok.test",
        "evil.test?.ok.test",
        "evil.test:.ok.test",
        "a b.ok.test",
        "\uff43.ok.test",
    ],
)
def test_domains_are_plain_names(domain: str) -> None:
    """Row 34: what another reader could take for another host is no domain of the scope."""
    tool = {"type": "web_fetch_20250910", "max_uses": 1, "allowed_domains": [domain]}
    allowed = detail("web_fetch", domains=("ok.test",))
    assert refused({"tools": [tool]}, allowed).code is Code.FIELD_NOT_ALLOWED
    read({"tools": [tool | {"allowed_domains": ["docs.ok.test/path"]}]}, allowed)


@pytest.mark.parametrize(
    "changes",
    [{"x" * 4000: {}}, {"tools": [{"type": "x" * 4000}]}, {"system": [{"type": "x" * 4000}]}],
)
def test_words_of_the_client_are_not_echoed_at_length(changes: dict[str, object]) -> None:
    """B58: an error shows the beginning of a name, so no token that was put there."""
    body = PROVIDER.render(refused(changes), "req_1").body
    assert len(json.loads(body)["error"]["message"]) < 400


def test_a_proxy_is_not_its_own_broker() -> None:
    """B03: a broker URL that is the proxy's own address would feed itself; it does not start."""
    for listen, url in (
        ("127.0.0.1:8700", "http://localhost:8700"),
        ("unix:/run/p.sock", "unix:/run/p.sock"),
    ):
        settings = {"DAYPASS_PROXY_LISTEN": listen, "DAYPASS_BROKER_URL": url}
        with pytest.raises(Exception, match="DAYPASS_BROKER_URL: points at this proxy itself"):
            load(ENVIRONMENT | settings)

"""The token provider: when it exchanges, what it answers meanwhile, and what ends it."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from daypass import Revoked, SettingsError, TokenProvider, Unavailable, Unreachable
from daypass._renewal import Time
from tests.unit.sdk.token_server import JWT_BEARER, LAUNCH, TokenServer


class FakeTime:
    """Both clocks under control; pausing moves them on."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall_offset = 0.0
        self.dice = 1.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        """Note a pause and let the time pass."""
        self.pauses.append(seconds)
        self.now += seconds

    def time(self) -> Time:
        """What the provider takes."""
        return Time(
            monotonic=lambda: self.now,
            wall=lambda: self.now + 1_800_000_000 + self.wall_offset,
            uniform=lambda low, high: low + (high - low) * self.dice,
            sleep=self.sleep,
        )


@pytest.fixture
def fake() -> FakeTime:
    """A clock under control."""
    return FakeTime()


def provider(server: TokenServer, fake: FakeTime | None = None, **options: object) -> TokenProvider:
    """A provider with the known launch credential, without a cache file unless asked for."""
    options = {"launch": LAUNCH, "cache": False, **options}
    return TokenProvider(server.url, clock=fake.time() if fake else None, **options)  # type: ignore[arg-type]


def test_it_exchanges_as_official_clients_do(server: TokenServer) -> None:
    """The first token comes by RFC 7523, with the rule and the organization of the environment."""
    env = {
        "ANTHROPIC_BASE_URL": f"{server.url}/v1/",
        "ANTHROPIC_IDENTITY_TOKEN": LAUNCH,
        "ANTHROPIC_ORGANIZATION_ID": "acme",
    }
    assert TokenProvider(env=env, cache=False).token() == "token-1"
    assert server.asked == [
        {
            "grant_type": JWT_BEARER,
            "assertion": LAUNCH,
            "federation_rule_id": "fdrl_daypass_launch",
            "organization_id": "acme",
        }
    ]


def test_one_token_serves_many_calls(server: TokenServer, fake: FakeTime) -> None:
    """Until it is due, a token is given out without asking anybody."""
    tokens = provider(server, fake)
    assert {tokens.token() for _ in range(100)} == {"token-1"}
    assert server.exchanges == 1


@pytest.mark.parametrize(("dice", "due"), [(0.0, 0.72), (0.5, 0.76), (1.0, 0.80)])
def test_renewal_is_due_at_72_to_80_percent(
    server: TokenServer, fake: FakeTime, dice: float, due: float
) -> None:
    """A life of 600 s is renewed after 432 to 480 s, by the dice."""
    fake.dice = dice
    tokens = provider(server, fake)
    tokens.token()
    fake.now += 600 * due - 0.1
    assert tokens.token() == "token-1"
    fake.now += 0.2
    assert tokens.token() == "token-2"


def test_others_go_on_with_the_old_token_during_an_early_renewal(
    server: TokenServer, fake: FakeTime
) -> None:
    """One caller renews; nobody else waits for it."""
    tokens = provider(server, fake)
    tokens.token()
    assert server.arrived.acquire(timeout=20)
    fake.now += 550
    server.hold.clear()
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(tokens.token)
        assert server.arrived.acquire(timeout=20)
        assert [tokens.token() for _ in range(10)] == ["token-1"] * 10
        server.hold.set()
        assert leader.result(20) == "token-2"
    assert server.exchanges == 2


def test_a_failed_early_renewal_is_left_alone_for_five_seconds(
    server: TokenServer, fake: FakeTime
) -> None:
    """While the old token is good, trouble is not passed on, and not asked for at every call."""
    tokens = provider(server, fake)
    tokens.token()
    fake.now += 550
    server.faults = [(500, {"error": "server_error"}, {})] * 2
    assert [tokens.token() for _ in range(5)] == ["token-1"] * 5
    assert server.exchanges == 2
    fake.now += 5.1
    assert tokens.token() == "token-1"
    assert server.exchanges == 3
    fake.now += 5.1
    assert tokens.token() == "token-2"


def test_trouble_is_raised_when_no_good_token_is_left(server: TokenServer, fake: FakeTime) -> None:
    """Within 30 s of its end a token does not hide the trouble any more."""
    tokens = provider(server, fake)
    tokens.token()
    server.revoked = True
    fake.now += 569
    assert tokens.token() == "token-1"
    fake.now += 2
    with pytest.raises(Revoked):
        tokens.token()


def test_revoked_says_so_and_is_not_asked_again_at_once(
    server: TokenServer, fake: FakeTime
) -> None:
    """`invalid_grant` gives the broker's words and what to do; 20 callers cost one exchange."""
    server.revoked = True
    tokens = provider(server, fake)
    for _ in range(20):
        with pytest.raises(Revoked, match="sandbox revoked; an administrator"):
            tokens.token()
    assert server.exchanges == 1


def test_a_refused_credential_is_not_presented_again_for_five_minutes(
    server: TokenServer, fake: FakeTime
) -> None:
    """However often it is asked: one exchange, then one more after five minutes."""
    tokens = provider(server, fake)
    server.revoked = True
    for _ in range(50):
        with pytest.raises(Revoked, match="sandbox revoked"):
            tokens.token()
        fake.now += 5.9
    assert server.exchanges == 1
    server.revoked = False
    fake.now += 10
    assert tokens.token() == "token-1"


def test_a_rejected_token_is_replaced_once_for_all(server: TokenServer) -> None:
    """After a 401, 20 threads that hold the same rejected token cause one exchange."""
    tokens = provider(server)
    rejected = tokens.token()
    gate = threading.Barrier(20)

    def again(_: int) -> str:
        gate.wait(10)
        return tokens.token(rejected=rejected)

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(again, range(20))) == {"token-2"}
    assert server.exchanges == 2
    assert tokens.token(rejected=rejected) == "token-2"


def test_twenty_threads_share_the_first_exchange(server: TokenServer) -> None:
    """B21: renewals of one process at the same instant are one broker call."""
    tokens = provider(server)
    gate = threading.Barrier(20)

    def first(_: int) -> str:
        gate.wait(10)
        return tokens.token()

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(first, range(20))) == {"token-1"}
    assert server.exchanges == 1


def test_a_failure_is_shared_by_those_who_waited_for_it(server: TokenServer) -> None:
    """A refusal reaches every waiting thread, and is asked for once."""
    server.revoked = True
    server.hold.clear()
    tokens = provider(server)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(tokens.token) for _ in range(8)]
        assert server.arrived.acquire(timeout=20)
        server.hold.set()
        assert all(isinstance(call.exception(20), Revoked) for call in waiting)
    assert server.exchanges == 1


def test_a_jumping_wall_clock_changes_nothing(server: TokenServer, fake: FakeTime) -> None:
    """Lives are counted on the monotonic clock: a day forward or back is no reason to renew."""
    tokens = provider(server, fake)
    for offset in (86_400.0, -86_400.0):
        fake.wall_offset = offset
        assert tokens.token() == "token-1"
    fake.now += 580
    assert tokens.token() == "token-2"


def test_short_lives_are_renewed_too(server: TokenServer, fake: FakeTime) -> None:
    """A life of 2 s is not "within 30 s of its end" all the time."""
    server.ttl = 2.0
    tokens = provider(server, fake)
    assert [tokens.token() for _ in range(5)] == ["token-1"] * 5
    fake.now += 1.95
    assert tokens.token() == "token-2"


def test_single_use_renews_by_its_generation(server: TokenServer, fake: FakeTime) -> None:
    """A `single_use` launch credential is presented once, then each generation once (RFC 8693)."""
    server.single_use = True
    tokens = provider(server, fake)
    assert tokens.token() == "token-1"
    assert tokens.single_use
    for number in (2, 3, 4):
        fake.now += 580
        assert tokens.token() == f"token-{number}"
    assert [body.get("subject_token") for body in server.asked] == [
        None,
        "generation-1",
        "generation-2",
        "generation-3",
    ]
    assert server.incidents == []


def test_a_lost_answer_to_a_renewal_is_asked_for_again(server: TokenServer, fake: FakeTime) -> None:
    """B21: the broker grants a repeated renewal, so a lost answer costs nothing."""
    server.single_use = True
    tokens = provider(server, fake)
    tokens.token()
    fake.now += 580
    server.faults = ["lose"]
    assert tokens.token() == "token-3"
    assert server.incidents == []
    assert sum(fake.pauses) < 10


def test_a_lost_answer_to_the_first_exchange_is_not_asked_for_again(
    server: TokenServer, fake: FakeTime
) -> None:
    """A launch credential may be good for one use; a second use would be taken for a clone."""
    server.single_use = True
    server.faults = ["lose"]
    with pytest.raises(Unreachable):
        provider(server, fake).token()
    assert server.exchanges == 1
    assert server.incidents == []


def test_a_busy_broker_is_waited_for(server: TokenServer, fake: FakeTime) -> None:
    """503 and `slow_down` are repeated after what they ask for, then the token comes."""
    server.faults = [
        (503, {"error": "temporarily_unavailable"}, {"retry-after": "2"}),
        (400, {"error": "slow_down"}, {"retry-after": "1"}),
    ]
    assert provider(server, fake).token() == "token-1"
    assert fake.pauses == [2.0, 1.0]


def test_a_broker_that_stays_away_is_not_waited_for_long(
    server: TokenServer, fake: FakeTime
) -> None:
    """After some eight seconds a caller without a token learns why."""
    server.faults = [(503, {"error": "temporarily_unavailable"}, {"retry-after": "2"})] * 20
    with pytest.raises(Unavailable) as caught:
        provider(server, fake).token()
    assert caught.value.retry_after == 2.0
    assert sum(fake.pauses) <= 8


def test_nobody_listening_is_said_plainly(fake: FakeTime) -> None:
    """A refused connection names the address and what to check."""
    tokens = TokenProvider("http://127.0.0.1:1", launch=LAUNCH, cache=False, clock=fake.time())
    with pytest.raises(Unreachable, match="nothing listens at http://127"):
        tokens.token()


def test_a_replaced_launch_file_is_used(
    server: TokenServer, fake: FakeTime, launch_file: Path
) -> None:
    """B23: the file is read at each exchange, so a replaced credential needs no restart."""
    tokens = provider(server, fake, launch=None, launch_file=launch_file)
    tokens.token()
    server.launch = "launch-credential-2"
    launch_file.write_text("launch-credential-2")
    fake.now += 580
    assert tokens.token() == "token-2"
    assert server.asked[-1]["assertion"] == "launch-credential-2"


def test_a_child_process_goes_on_with_the_token_of_its_parent(server: TokenServer) -> None:
    """After a fork, even with a renewal in flight in the parent, nothing is stuck."""
    tokens = provider(server)
    tokens.token()
    server.hold.clear()
    with ThreadPoolExecutor(1) as pool:
        renewal = pool.submit(tokens.token, rejected="token-1")
        server.arrived.acquire(timeout=20)
        assert server.arrived.acquire(timeout=20)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, tokens.token().encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            assert answer.read() == b"token-1"
        assert os.waitpid(child, 0)[1] == 0
        server.hold.set()
        assert renewal.result(20) == "token-2"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, "without an access token"),
        ({"access_token": "a b\n", "expires_in": 60}, "without an access token"),
        ({"access_token": "t"}, "without a lifetime"),
        ({"access_token": "t", "expires_in": True}, "without a lifetime"),
        ({"access_token": "t", "expires_in": 60, "token_type": "mac"}, "not a bearer token"),
    ],
)
def test_a_strange_answer_is_refused(
    server: TokenServer, fake: FakeTime, answer: dict[str, object], words: str
) -> None:
    """What is not a token answer is not taken for one."""
    server.faults = [(200, answer, {})]
    with pytest.raises(Exception, match=words):
        provider(server, fake).token()


def test_what_is_missing_is_named() -> None:
    """Without an address or a credential, the error names the variable to set."""
    with pytest.raises(SettingsError, match="ANTHROPIC_BASE_URL"):
        TokenProvider(env={})
    with pytest.raises(SettingsError, match="ANTHROPIC_IDENTITY_TOKEN_FILE"):
        TokenProvider("http://127.0.0.1:1", env={}, cache=False)
    with pytest.raises(SettingsError, match="in the clear"):
        TokenProvider("http://proxy.internal", launch=LAUNCH, env={})


def test_nothing_that_is_printed_holds_a_credential(server: TokenServer) -> None:
    """The repr of provider and token, and every error, show neither token nor launch credential."""
    tokens = provider(server)
    held = tokens.get()
    assert held.value == "token-1"
    assert held.expires_at == pytest.approx(time.time() + 600, abs=30)
    for shown in (repr(tokens), repr(held), repr(tokens._held), repr(tokens._renewer._launch)):
        assert "token-1" not in shown
        assert LAUNCH not in shown


def test_a_verified_token_is_one_that_the_proxy_takes(server: TokenServer) -> None:
    """A token that died since it was cached is replaced, or the refusal is raised."""
    tokens = provider(server)
    tokens.token()
    assert tokens.verified().value == "token-1"
    provider(server).token()  # the server takes the newest only
    assert tokens.verified().value == "token-3"
    server.revoked = True
    with pytest.raises(Revoked):
        tokens.verified()

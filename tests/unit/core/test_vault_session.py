"""When a Vault token is replaced, and when nobody asks for another."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from daypass_core.vault_errors import VaultBusy, VaultError, VaultRefused, VaultUnavailable
from daypass_core.vault_gate import Gate
from daypass_core.vault_login import Stamp
from daypass_core.vault_session import Granted, Session
from tests.fakes.clock import FakeClock
from tests.support import eventually


class FakeDoor:
    """Gives tokens of `life` seconds, or fails; with `given`, tokens come from a file."""

    words = "a login"

    def __init__(self, life: float = 100.0, *, given: bool = False) -> None:
        self.life = life
        self.given = given
        self.error: VaultError | None = None
        self.logins = 0
        self.content = 1
        self.has_ended = False
        self.may_go = threading.Event()
        self.may_go.set()

    def log_in(self) -> Granted:
        """Log in, as the door of `vault` does."""
        self.logins += 1
        assert self.may_go.wait(10)
        if self.error is not None:
            raise self.error
        return Granted(self.life)

    def ended(self) -> bool:
        """Say whether Vault has forgotten the token."""
        return self.has_ended

    def stamp(self) -> Stamp:
        """Tell one content from the next."""
        return (0, 0, 0, self.content) if self.given else None


def made(door: FakeDoor, jitter: float = 0.0) -> tuple[Session, FakeClock]:
    """A session, and its clock."""
    clock = FakeClock()
    return Session(door, clock.monotonic, lambda: jitter), clock


@pytest.mark.parametrize(("jitter", "due"), [(0.0, 80.0), (1.0, 70.0)])
def test_b13_replaced_before_its_end(jitter: float, due: float) -> None:
    """B13: a token is replaced when 20 to 30 % of its life are left, never renewed."""
    door = FakeDoor()
    session, clock = made(door, jitter)
    assert session.seconds_left is None
    session.ensure()
    clock.advance(due - 0.1)
    session.ensure()
    assert door.logins == 1
    clock.advance(0.2)
    session.ensure()
    assert door.logins == 2
    assert session.seconds_left == 100.0


def test_b13_a_login_that_fails_ahead_of_the_end() -> None:
    """B13: while the token lives a login that fails costs no read; it is tried again."""
    door = FakeDoor()
    session, clock = made(door)
    session.ensure()
    clock.advance(81)
    door.error = VaultUnavailable("away")
    for _ in range(18):
        session.ensure()
        clock.advance(1)
    assert 3 <= door.logins - 1 <= 6, "with pauses that grow"
    clock.advance(2)
    with pytest.raises(VaultUnavailable):
        session.ensure()
    door.error = None
    clock.advance(10)
    session.ensure()
    assert session.counts["ok"] == 2


def test_no_storm_of_logins() -> None:
    """While logins fail a thousand reads within ten minutes ask for few, and say why."""
    door = FakeDoor()
    session, clock = made(door, 0.5)
    door.error = VaultRefused("role is gone")
    for _ in range(1000):
        with pytest.raises(VaultRefused, match="role is gone"):
            session.ensure()
        clock.advance(0.6)
    assert door.logins < 70


def test_one_login_for_all() -> None:
    """Of 20 threads that need a token one logs in; when it fails, the others do not try too."""
    for error in (None, VaultUnavailable("away")):
        door = FakeDoor()
        door.error = error
        session, _ = made(door)
        door.may_go.clear()
        with ThreadPoolExecutor(20) as pool:
            waiting = [pool.submit(session.ensure) for _ in range(20)]
            door.may_go.set()
            failures = [each.exception(10) for each in waiting]
        assert door.logins == 1
        assert all((failure is None) == (error is None) for failure in failures)


def test_nobody_waits_for_a_login_ahead_of_the_end() -> None:
    """While one thread logs in ahead of the token's end, others go on with it at once."""
    door = FakeDoor()
    session, clock = made(door)
    first = session.ensure()
    clock.advance(85)
    door.may_go.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(session.ensure)
        eventually(lambda: door.logins == 2)
        assert session.ensure() == first
        door.may_go.set()
        assert waiting.result(10) == first + 1


def test_another_after_a_refusal() -> None:
    """A refused token is replaced once for all that bore it, and not at each refusal of policy."""
    door = FakeDoor(3600)
    session, clock = made(door)
    first = session.ensure()
    assert session.another(first)
    assert session.another(first), "somebody has logged in since"
    assert door.logins == 2
    second = session.ensure()
    assert not session.another(second), "so soon it cannot be the token"
    clock.advance(2)
    assert session.another(second)
    session.helped()
    clock.advance(3)
    assert session.another(session.ensure())
    for _ in range(60):
        clock.advance(10)
        session.another(session.ensure())
    assert door.logins < 14


def test_a_token_that_ended_among_refusals_of_policy() -> None:
    """B13: logins that did not help hold nobody back once Vault says that the token is over."""
    door = FakeDoor(3600)
    session, clock = made(door)
    for _ in range(100):  # a path that the policy forbids: the pause grows to five minutes
        session.another(session.ensure())
        clock.advance(10)
    while session.another(session.ensure()):
        pass
    door.has_ended, before = True, door.logins
    clock.advance(2)
    assert session.another(session.ensure())
    assert not session.another(session.ensure()), "so soon it cannot be the token"
    assert door.logins == before + 1


def test_tokens_that_are_given() -> None:
    """A given token is replaced when its file is, with nothing asked in between."""
    door = FakeDoor(10, given=True)
    session, clock = made(door)
    first = session.ensure()
    clock.advance(7)
    assert session.ensure() == first
    assert not session.another(first)
    door.content = 2
    assert session.ensure() == first + 1
    door.content = 3
    assert session.another(first + 1)
    assert door.logins == 3


def test_a_given_token_that_is_renewed() -> None:
    """Whoever gave a token may renew it: near its end it is asked when that is, and it goes on."""
    door = FakeDoor(10, given=True)
    session, clock = made(door)
    session.ensure()
    clock.advance(9)
    assert session.ensure() == 2
    assert session.seconds_left == 10.0
    door.error = VaultUnavailable("away")
    clock.advance(9)
    for _ in range(5):
        assert session.ensure() == 2
    assert door.logins == 3, "with a pause"
    door.error, door.life = None, 0  # it has ended, or may not know any more
    clock.advance(2)
    assert session.ensure() == 3
    clock.advance(1000)
    assert session.ensure() == 3
    assert session.seconds_left == 0.0


def test_a_given_token_that_cannot_be_read() -> None:
    """Without the file there is no token; when it vanishes later the one in memory goes on."""
    door = FakeDoor(0, given=True)
    door.error = VaultRefused("no file")
    session, _ = made(door)
    for _ in range(3):
        with pytest.raises(VaultRefused):
            session.ensure()
    assert door.logins == 3
    door.error = None
    session.ensure()
    assert session.seconds_left is None
    door.error, door.content = VaultRefused("no file"), 9
    for _ in range(5):
        session.ensure()
    assert door.logins == 5


# -- the gate


def test_gate_lets_one_at_a_time_ask_who_does_not_answer() -> None:
    """While one finds out, others fail at once; when it answers, all may ask again."""
    gate = Gate()
    with pytest.raises(VaultUnavailable), gate.passing("a"):
        raise VaultUnavailable("timeout")
    assert gate.away
    refused = pytest.raises(VaultUnavailable, match="c was not tried")
    with gate.passing("b"), refused, gate.passing("c"):
        pytest.fail("asked all the same")
    assert not gate.away
    with gate.passing("d"), gate.passing("e"):
        pass


@pytest.mark.parametrize("error", [VaultRefused("no"), VaultBusy("429"), VaultError("x")])
def test_gate_stays_open_for_who_answers_no(error: VaultError) -> None:
    """A refusal and a rate limit are answers: nobody is held back for them."""
    gate = Gate()
    with pytest.raises(VaultError), gate.passing("a"):
        raise error
    assert not gate.away


def test_gate_after_another_error() -> None:
    """An error that is none of Vault's leaves the gate as it was, and free."""
    gate = Gate()
    gate.away = True
    for _ in range(2):
        with pytest.raises(RuntimeError), gate.passing("a"):
            raise RuntimeError
    assert gate.away

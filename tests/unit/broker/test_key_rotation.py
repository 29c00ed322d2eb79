"""Rotation: published before use, published until the last signature has expired, agreed on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import daypass_migrations
from daypass_broker import db, key_files, key_ring
from daypass_broker.key_files import KeyFiles
from daypass_broker.keys import KeyRingError, NewKey, Purpose, SigningUnavailable
from daypass_broker.policy import MAX_LIFETIME_SECONDS
from daypass_broker.signing import Signer
from daypass_core.claims import MAX_ACCESS_LIFE
from daypass_core.problem import Refusal
from daypass_core.verify import verify_access
from tests.support import AUDIENCE, ISSUER, make_claims
from tests.unit.broker.key_time import Ring, agree_on_every_step

LIVES = {
    Purpose.ACCESS: MAX_ACCESS_LIFE,
    Purpose.LAUNCH: MAX_LIFETIME_SECONDS,
    Purpose.RENEWAL: MAX_LIFETIME_SECONDS,
}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    """A migrated, empty database."""
    url = f"sqlite:///{tmp_path / 'daypass.db'}"
    daypass_migrations.upgrade(url)
    made = db.connect(url)
    yield made
    made.dispose()


@pytest.fixture
def files(tmp_path: Path) -> KeyFiles:
    """The keys directory."""
    return KeyFiles(tmp_path / "keys")


@pytest.fixture
def ring(engine: sa.Engine, files: KeyFiles) -> Ring:
    """A broker that has just made its first keys."""
    return Ring(engine, {"file": files})


def next_kid(ring: Ring, *, at_once: bool = False) -> str:
    """Rotate the access key and return the prepared one's kid."""
    before = set(ring.rows())
    ring.rotate(at_once=at_once)
    (kid,) = set(ring.rows()) - before
    return kid


def test_a_key_is_published_before_it_signs(ring: Ring) -> None:
    """A prepared key is in the key set at once, and signs when its notice is over, not before."""
    old = ring.kid()
    new = next_kid(ring)
    assert ring.published() == {old, new}
    ring.after(599.999)
    assert ring.kid() == old
    ring.after(0.001)
    assert ring.kid() == new
    assert ring.states() == ["retired", "active"]


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_retired_key_verifies_until_its_last_signature_has_expired(
    ring: Ring, purpose: Purpose
) -> None:
    """What was signed at the last moment and lives longest verifies to its end, and 300 s more."""
    old = ring.kid(purpose)
    ring.rotate(purpose)
    ring.after(600)
    ring.after(LIVES[purpose] + 299.999)
    assert old in ring.keys.public(purpose)
    ring.after(0.001)
    assert old not in ring.keys.public(purpose)
    assert ring.published() == {ring.kid()}


def test_at_once_still_gives_brokers_the_time_to_publish(ring: Ring) -> None:
    """`--now` takes five seconds, in which every broker has read the store at least twice."""
    old, new = ring.kid(), next_kid(ring, at_once=True)
    ring.after(4.999)
    assert ring.kid() == old
    ring.after(0.001)
    assert ring.kid() == new


def test_a_prepared_key_can_be_hastened(ring: Ring) -> None:
    """`--now` after an ordinary rotation lets the key that is prepared sign, and makes no other."""
    new = next_kid(ring)
    ring.after(3)
    ring.rotate(at_once=True)
    assert len(ring.rows()) == 2
    ring.after(1.999)
    assert ring.kid() != new
    ring.after(0.001)
    assert ring.kid() == new


def test_a_rotation_may_be_repeated(ring: Ring, tmp_path: Path) -> None:
    """Asking again while a key is prepared changes nothing, so a lost answer does no harm."""
    next_kid(ring)
    told = ring.told()
    ring.rotate()
    assert sorted(ring.states()) == ["active", "prepared"]
    assert ring.told() == told
    assert len(list((tmp_path / "keys").iterdir())) == 4


def test_the_audit_tells_who_and_when(ring: Ring) -> None:
    """An admin prepares; the broker itself retires and activates."""
    old, new = ring.kid(), next_kid(ring)
    ring.after(600)
    assert ring.told()[3:] == [
        ("key.prepared", "crd_admin", new),
        ("key.retired", "system", old),
        ("key.activated", "system", new),
    ]


def test_what_was_recorded_before_a_rotation_can_be_signed(ring: Ring) -> None:
    """A token whose row names the key that was just retired is signed with that key."""
    signer, old = Signer(ring.keys), ring.kid()
    ring.rotate(at_once=True)
    ring.after(5)
    claims = make_claims(key_id=old, now=ring.time.ms // 1000)
    token = signer.sign_access(claims)
    keys = ring.keys.public(Purpose.ACCESS)
    now = ring.time.ms / 1000
    assert verify_access(token, keys, issuer=ISSUER, audience=AUDIENCE, now=now) == claims
    ring.after(120)
    with pytest.raises(ValueError, match="another key"):
        signer.sign_access(claims)


def test_the_private_half_of_a_retired_key_is_destroyed(ring: Ring, tmp_path: Path) -> None:
    """Ten minutes after its end a key's file is gone: nothing can be signed with it any more."""
    old = ring.kid()
    ring.rotate(at_once=True)
    ring.after(5)
    path = tmp_path / "keys" / f"access-{old}.pem"
    ring.after(599.999)
    assert path.exists()
    ring.after(0.001)
    assert not path.exists()
    assert len(list((tmp_path / "keys").iterdir())) == 3


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_killed_key_is_replaced_without_a_restart(ring: Ring, purpose: Purpose) -> None:
    """Revoked, the active key signs nothing more; five seconds later a new one does."""
    old = ring.kid(purpose)
    others = {other: ring.kid(other) for other in set(Purpose) - {purpose}}
    ring.revoke(old)
    ring.after(1)
    assert ring.keys.signer(purpose, old) is None
    with pytest.raises(SigningUnavailable) as caught:
        ring.kid(purpose)
    assert caught.value.retry_after > 0
    assert old in ring.keys.public(purpose)  # so that what it signed is told apart from forgeries
    ring.after(5)
    assert ring.kid(purpose) != old
    assert {other: ring.kid(other) for other in others} == others
    assert ("key.retired", "system", old) in ring.told()


def test_a_killed_key_is_replaced_by_the_prepared_one(ring: Ring) -> None:
    """With a successor already published nothing waits for its notice."""
    new = next_kid(ring)
    ring.after(5)
    ring.revoke(ring.kid())
    ring.after(0)
    assert ring.kid() == new
    assert len(ring.rows()) == 2


def test_a_killed_prepared_key_never_signs(ring: Ring) -> None:
    """A prepared key that was revoked is retired, and the active one goes on."""
    old, new = ring.kid(), next_kid(ring)
    ring.revoke(new)
    ring.after(600)
    assert ring.kid() == old
    assert ring.rows()[new].state == "retired"
    assert next_kid(ring) != new


def test_a_restart_after_a_kill_starts(engine: sa.Engine, files: KeyFiles) -> None:
    """A broker that is restarted over a revoked key starts, and signs with a new one soon after."""
    before = Ring(engine, {"file": files})
    before.revoke(before.kid())
    after = Ring(engine, {"file": files}, before.time)
    with pytest.raises(SigningUnavailable):
        after.kid()
    after.after(5)
    assert len(after.published()) == 2
    assert after.kid()


def test_keys_are_replaced_by_themselves(engine: sa.Engine, files: KeyFiles) -> None:
    """After its days an active key of each purpose gets a successor, which takes over in time."""
    ring = Ring(engine, {"file": files}, options={"life_ms": 30 * 86_400_000})
    first = {purpose: ring.kid(purpose) for purpose in Purpose}
    ring.after(30 * 86_400 - 0.001)
    assert ring.states() == ["active"]
    ring.after(0.001)
    assert ring.states() == ["active", "prepared"]
    assert {purpose: ring.kid(purpose) for purpose in Purpose} == first
    ring.after(600)
    assert all(ring.kid(purpose) != first[purpose] for purpose in Purpose)
    ring.after(86_400)
    assert ring.states() == ["retired", "active"]


def test_b16_brokers_agree_on_every_step(ring: Ring) -> None:
    """B16: four brokers that look at the same moment do each step once and sign with one key."""
    agree_on_every_step(ring.and_others(3))


def test_a_broker_without_the_file_says_what_to_do(
    engine: sa.Engine, files: KeyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that cannot read the next key says so before it signs; copied, the key works."""
    told = list[dict[str, object]]()

    def event(_: object, name: str, **fields: object) -> None:
        told.append({"name": name, **fields})

    one = Ring(engine, {"file": files})
    old = one.kid()
    apart = tmp_path / "apart"
    apart.mkdir(mode=0o700)
    for path in (tmp_path / "keys").iterdir():
        (apart / path.name).write_bytes(path.read_bytes())
        (apart / path.name).chmod(0o600)
    other = Ring(engine, {"file": KeyFiles(apart)}, one.time)
    new = next_kid(one)
    monkeypatch.setattr(key_ring, "event", event)
    other.after(1)
    other.after(1)
    (line,) = told
    assert (line["name"], line["kid"], line["state"]) == ("signing_key_unusable", new, "prepared")
    assert "share one keys directory" in str(line["reason"])
    assert "DAYPASS_SIGNING=transit" in str(line["reason"])
    assert other.published() == {old, new}
    other.after(598)
    assert other.kid() == old  # it does not let sign what it cannot sign with
    one.after(0)
    other.after(1)
    with pytest.raises(SigningUnavailable):
        other.kid()
    (apart / f"access-{new}.pem").write_bytes(
        (tmp_path / "keys" / f"access-{new}.pem").read_bytes()
    )
    (apart / f"access-{new}.pem").chmod(0o600)
    other.after(1)
    assert other.kid() == new


@pytest.mark.parametrize("cause", ["no file", "no signature"])
def test_a_key_that_cannot_sign_replaces_none_that_can(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """Its time has come and it signs nothing: the one before stays until it does, or is killed."""
    old, new = ring.kid(), next_kid(ring)
    ring.after(1)
    path, sign = tmp_path / "keys" / f"access-{new}.pem", key_files.FileHalf.sign
    bad = ring.keys.signer(Purpose.ACCESS, new)
    assert bad is not None

    def refused(half: key_files.FileHalf, message: bytes) -> bytes:
        if half is bad.half:
            raise SigningUnavailable
        return sign(half, message)

    if cause == "no file":
        path.rename(path.with_suffix(".kept"))
        ring.keys = Ring(ring.engine, {"file": KeyFiles(path.parent)}, ring.time).keys
    else:
        monkeypatch.setattr(key_files.FileHalf, "sign", refused)
    ring.after(600)
    ring.after(600)
    assert ring.states() == ["active", "prepared"]
    assert ring.kid() == old
    ring.revoke(old)
    ring.after(1)
    assert ring.states() == ["retired", "prepared"]
    monkeypatch.undo()
    if cause == "no file":
        path.with_suffix(".kept").rename(path)
    ring.after(1)
    assert ring.kid() == new


def test_a_lost_key_can_be_replaced(engine: sa.Engine, files: KeyFiles, tmp_path: Path) -> None:
    """A broker does not start without its active key; `replace_lost` retires it for a new one."""
    ring = Ring(engine, {"file": files})
    lost = ring.kid(Purpose.LAUNCH)
    (tmp_path / "keys" / f"launch-{lost}.pem").unlink()
    with pytest.raises(KeyRingError, match="keys replace"):
        Ring(engine, {"file": files}, ring.time)
    keys = key_ring.KeyRing(engine, {"file": files}, str, now_ms=ring.time.now_ms)
    assert keys.replace_lost(ring.acting) == [Purpose.LAUNCH]
    assert keys.replace_lost(ring.acting) == []
    again = Ring(engine, {"file": files}, ring.time)
    again.after(5)
    assert again.kid(Purpose.LAUNCH) != lost
    assert lost in again.keys.public(Purpose.LAUNCH)


def test_a_ring_that_cannot_be_refreshed_stops_signing(ring: Ring) -> None:
    """After a minute without the store nothing is signed: the key may be retired since."""
    ring.time.ms += 60_000
    assert ring.kid()
    ring.time.ms += 1
    with pytest.raises(SigningUnavailable, match="could not be read"):
        ring.kid()
    ring.after(0)
    assert ring.kid()


def test_a_key_set_never_grows_beyond_what_is_read(ring: Ring) -> None:
    """The sixteenth key of an hour is the last one: verifiers read so many and twice that."""
    for _ in range(15):
        ring.rotate(at_once=True)
        ring.after(5)
    with pytest.raises(Refusal, match="16 access keys"):
        ring.rotate(at_once=True)
    ring.after(3900)
    ring.rotate(at_once=True)
    for _ in range(40):
        ring.revoke(next(kid for kid, row in ring.rows().items() if row.state != "retired"))
        ring.after(5)
    assert len(ring.published()) == 32
    ring.after(5)
    assert ring.kid() in ring.published()


def test_a_keys_directory_that_cannot_be_written_goes_on_signing(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retired key's file that cannot be destroyed is told once, and nothing else happens."""
    told = list[str]()
    monkeypatch.setattr(key_ring, "event", lambda _, name, **__: told.append(name))
    ring.rotate(at_once=True)
    ring.after(5)

    def discard(purpose: Purpose, kid: str) -> None:
        raise KeyRingError("cannot use keys directory")

    monkeypatch.setattr(ring.stores["file"], "discard", discard)
    ring.after(600)
    ring.after(600)
    assert ring.kid()
    assert told == ["signing_key_kept"]


class NoStore(KeyFiles):
    """A keys directory in which no key can be made any more."""

    def make(self, purpose: Purpose, known: frozenset[str]) -> NewKey:
        """Fail as a sealed vault does."""
        raise SigningUnavailable("sealed")


def test_a_key_that_cannot_be_made_stops_nothing_else(
    engine: sa.Engine, files: KeyFiles, tmp_path: Path
) -> None:
    """While no successor can be made the active key signs on, and revoked ones are retired."""
    one = Ring(engine, {"file": files})
    first = one.kid()
    options = {"life_ms": 1000}
    ring = Ring(engine, {"file": NoStore(tmp_path / "keys")}, one.time, options)
    ring.after(100)
    assert ring.kid() == first
    ring.revoke(ring.kid(Purpose.LAUNCH))
    ring.after(1)
    assert ring.states(Purpose.LAUNCH) == ["retired"]
    assert ring.kid() == first

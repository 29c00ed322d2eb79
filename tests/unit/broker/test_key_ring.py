"""The key ring: made once, agreed on by all brokers, refused when anything about a file is odd."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import daypass_migrations
from daypass_broker import db, schema
from daypass_broker.key_files import FileHalf, KeyFiles
from daypass_broker.key_ring import KeyRing
from daypass_broker.keys import KeyRingError, Purpose
from daypass_core.ids import new_id
from daypass_core.jwks import parse_jwks, thumbprint


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    """A migrated, empty database."""
    url = f"sqlite:///{tmp_path / 'daypass.db'}"
    daypass_migrations.upgrade(url)
    made = db.connect(url)
    yield made
    made.dispose()


def load(engine: sa.Engine, folder: Path) -> KeyRing:
    """Start a broker's key ring over `folder`."""
    return KeyRing.load(engine, {"file": KeyFiles(folder / "keys")}, new_id)


def files(folder: Path) -> list[Path]:
    """The key files there are."""
    return sorted((folder / "keys").iterdir())


def test_first_start_makes_one_key_per_purpose(engine: sa.Engine, tmp_path: Path) -> None:
    """The first start makes three different keys, each named by its RFC 7638 thumbprint."""
    ring = load(engine, tmp_path)
    kids = {purpose: ring.active(purpose).kid for purpose in Purpose}
    assert len(set(kids.values())) == 3
    for purpose, kid in kids.items():
        key = ring.active(purpose)
        assert isinstance(key.half, FileHalf)
        assert thumbprint(key.half.private.public_key()) == kid
        assert list(ring.public(purpose)) == [kid]
    assert [path.name for path in files(tmp_path)] == sorted(
        f"{purpose}-{kid}.pem" for purpose, kid in kids.items()
    )


def test_private_keys_are_the_owners_alone(engine: sa.Engine, tmp_path: Path) -> None:
    """Key files have mode 0600 in a directory of mode 0700, and nothing private is in SQL."""
    load(engine, tmp_path)
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in files(tmp_path)} == {0o600}
    with db.read(engine) as conn:
        rows = conn.execute(sa.select(schema.signing_key)).all()
    assert all('"d"' not in row.public_jwk for row in rows)


def test_b16_keys_survive_a_restart(engine: sa.Engine, tmp_path: Path) -> None:
    """B16: a second start finds the same keys and publishes byte-equal key sets."""
    first, second = load(engine, tmp_path), load(engine, tmp_path)
    assert first.jwks() == second.jwks()
    for purpose in Purpose:
        assert first.active(purpose).kid == second.active(purpose).kid
    assert len(files(tmp_path)) == 3


def test_b16_brokers_that_start_at_once_agree(engine: sa.Engine, tmp_path: Path) -> None:
    """B16: four brokers starting together on one database end up with one set of keys."""
    meeting, rings = threading.Barrier(4), list[KeyRing]()

    def start() -> None:
        meeting.wait(20)
        rings.append(load(engine, tmp_path))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(rings) == 4
    assert len({ring.active(Purpose.ACCESS).kid for ring in rings}) == 1
    assert len(files(tmp_path)) == 3


def test_only_access_keys_are_published(engine: sa.Engine, tmp_path: Path) -> None:
    """The key set holds the access key alone: proxies must not accept the other kinds."""
    ring = load(engine, tmp_path)
    assert list(parse_jwks(ring.jwks())) == [ring.active(Purpose.ACCESS).kid]


def test_new_keys_are_in_the_audit(engine: sa.Engine, tmp_path: Path) -> None:
    """Each key made is one audit event that names it and its purpose."""
    ring = load(engine, tmp_path)
    load(engine, tmp_path)
    with db.read(engine) as conn:
        told = conn.execute(sa.select(schema.audit).where(schema.audit.c.tag == "key.activated"))
        found = {row.subject for row in told}
    assert found == {ring.active(purpose).kid for purpose in Purpose}


def test_a_missing_key_file_is_told(engine: sa.Engine, tmp_path: Path) -> None:
    """A broker without the private key the store knows does not start, and says what to copy."""
    load(engine, tmp_path)
    path = files(tmp_path)[0]
    path.unlink()
    with pytest.raises(KeyRingError, match="copy it from the keys directory") as caught:
        load(engine, tmp_path)
    assert str(path) in str(caught.value)


def test_a_key_file_others_may_read_is_refused(engine: sa.Engine, tmp_path: Path) -> None:
    """A private key that others can read is refused with the command that mends it."""
    load(engine, tmp_path)
    files(tmp_path)[0].chmod(0o644)
    with pytest.raises(KeyRingError, match="chmod 600"):
        load(engine, tmp_path)


def test_a_damaged_or_exchanged_key_file_is_refused(engine: sa.Engine, tmp_path: Path) -> None:
    """A file that is no key, or another key than its name says, is refused without its content."""
    load(engine, tmp_path)
    one, other = files(tmp_path)[:2]
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    with pytest.raises(KeyRingError, match="another key than its name"):
        load(engine, tmp_path)
    one.write_bytes(b"not a key but canary-text")
    with pytest.raises(KeyRingError) as caught:
        load(engine, tmp_path)
    assert "canary-text" not in str(caught.value)
    one.write_bytes(kept)
    load(engine, tmp_path)


def test_an_unusable_keys_directory_is_told(engine: sa.Engine, tmp_path: Path) -> None:
    """A keys directory that cannot be made is one sentence naming it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyRingError, match="cannot use keys directory"):
        KeyRing.load(engine, {"file": KeyFiles(tmp_path / "file" / "keys")}, new_id)


def test_a_key_does_not_print_itself(engine: sa.Engine, tmp_path: Path) -> None:
    """The repr of a signing key names it and shows nothing of it."""
    key = load(engine, tmp_path).active(Purpose.ACCESS)
    assert key.kid in repr(key)
    assert "private" not in repr(key)

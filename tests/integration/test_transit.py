"""Signing keys in the transit engine of a real OpenBao: made, rotated, asked, sealed, frozen."""

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import daypass_migrations
from daypass_broker import db, schema, transit
from daypass_broker.key_files import KeyFiles
from daypass_broker.key_rotation import SHORT_NOTICE_MS
from daypass_broker.keys import KeyRingError, Purpose, SigningUnavailable
from daypass_broker.signing import Signer
from daypass_broker.transit import Transit
from daypass_core.jwks import thumbprint
from daypass_core.secret import Secret
from daypass_core.vault import TIMEOUT, Vault
from daypass_core.vault_settings import VaultSettings
from daypass_core.verify import verify_access
from demo.services.openbao import OpenBao
from demo.services.process import ServiceError
from tests.fakes.clock import FakeClock
from tests.servers.transit import enable, token
from tests.support import AUDIENCE, ISSUER, make_claims
from tests.unit.broker.key_time import Ring

pytestmark = pytest.mark.openbao

SHORT_NOTICE = SHORT_NOTICE_MS / 1000
ASKED_SECONDS = TIMEOUT * 0.9
"""Whoever asks a vault that is frozen is held for longer."""
_names = (f"daypass-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def bao(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBao]:
    """One server with a transit engine."""
    with OpenBao.start(tmp_path_factory.mktemp("openbao")) as server:
        enable(server)
        yield server


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    """A migrated, empty database."""
    url = f"sqlite:///{tmp_path / 'daypass.db'}"
    daypass_migrations.upgrade(url)
    made = db.connect(url)
    yield made
    made.dispose()


@pytest.fixture
def clock() -> FakeClock:
    """What the pauses after a failure are measured with."""
    return FakeClock()


@pytest.fixture
def store(bao: OpenBao, clock: FakeClock) -> Iterator[Transit]:
    """Transit keys of their own for each test, with the least rights."""
    vault = Vault(VaultSettings(bao.address, token=Secret(token(bao))))
    yield Transit(vault, "transit", next(_names), clock.monotonic)
    vault.close()


@pytest.fixture
def ring(engine: sa.Engine, store: Transit) -> Ring:
    """A broker whose keys are in transit."""
    return Ring(engine, {"transit": store}, options={"make_in": "transit"})


def sign(ring: Ring, kid: str | None = None) -> str:
    """An access token as the broker signs it."""
    return Signer(ring.keys).sign_access(
        make_claims(key_id=kid or ring.kid(), now=ring.time.ms // 1000)
    )


def check(ring: Ring, access_token: str) -> str:
    """Verify a token as the proxy does and return the kid that did it."""
    keys, now = ring.keys.public(Purpose.ACCESS), ring.time.ms / 1000
    claims = verify_access(access_token, keys, issuer=ISSUER, audience=AUDIENCE, now=now)
    return claims.key_id


def test_keys_are_made_in_the_vault_and_stay_there(bao: OpenBao, ring: Ring) -> None:
    """Each purpose has a transit key of its own; its version is the row, its thumbprint the kid."""
    assert check(ring, sign(ring)) == ring.kid()
    assert ring.keys.remote
    for purpose in Purpose:
        ((kid, row),) = ring.rows(purpose).items()
        name, _, version = row.reference.rpartition(":")
        assert (row.store, version, name.endswith(f"-{purpose}")) == ("transit", "1", True)
        assert thumbprint(ring.keys.public(purpose)[kid]) == kid
        data = bao.request("GET", f"transit/keys/{name}")["data"]
        assert (data["type"], data["exportable"]) == ("ecdsa-p256", False)
        with pytest.raises(ServiceError, match="not exportable"):
            bao.request("GET", f"transit/export/signing-key/{name}/1")


def test_a_rotation_is_a_new_version(ring: Ring) -> None:
    """Both versions sign as the rows say, the old one also after the vault has a newer one."""
    old = ring.kid()
    ring.rotate()
    assert check(ring, sign(ring)) == old
    ring.after(600)
    assert check(ring, sign(ring)) == ring.kid() != old
    assert check(ring, sign(ring, old)) == old  # recorded before, signed after
    references = [row.reference.rpartition(":")[2] for row in ring.rows().values()]
    assert references == ["1", "2"]


def test_a_version_that_nobody_uses_is_used(bao: OpenBao, ring: Ring) -> None:
    """A version that an operator made is taken for the next key, and no other one is made."""
    name = ring.rows()[ring.kid()].reference.rpartition(":")[0]
    bao.request("POST", f"transit/keys/{name}/rotate")
    ring.rotate(at_once=True)
    ring.after(SHORT_NOTICE)
    assert ring.rows()[ring.kid()].reference == f"{name}:2"
    assert bao.request("GET", f"transit/keys/{name}")["data"]["latest_version"] == 2


def test_brokers_that_start_at_once_agree(engine: sa.Engine, store: Transit) -> None:
    """Three brokers starting together sign with one version of each key."""
    meeting, rings = threading.Barrier(3), list[Ring]()

    def start() -> None:
        meeting.wait(5)
        rings.append(Ring(engine, {"transit": store}, options={"make_in": "transit"}))

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len({ring.kid() for ring in rings}) == 1
    assert len(rings) == 3


def test_a_wrong_version_does_not_leave(
    engine: sa.Engine, ring: Ring, store: Transit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that names another version than its key's gets no signature, and the log says so."""
    told = list[tuple[str, Any]]()
    monkeypatch.setattr(
        transit, "event", lambda _, name, **more: told.append((name, more.get("reference")))
    )
    kid = ring.kid()
    ring.rotate()
    name = ring.rows()[kid].reference.rpartition(":")[0]
    with db.begin(engine) as conn:
        table = schema.signing_key
        change = sa.update(table).where(table.c.kid == kid).values(reference=f"{name}:2")
        conn.execute(change)
    other = Ring(engine, {"transit": store}, ring.time, {"make_in": "transit"})
    with pytest.raises(SigningUnavailable, match="another key"):
        sign(other)
    assert told == [("signature_not_ours", f"{name}:2")]


def test_a_sealed_vault(bao: OpenBao, ring: Ring, clock: FakeClock, store: Transit) -> None:
    """Sealed, nothing is signed and a broker starts all the same; unsealed, it signs again."""
    signer = Signer(ring.keys)
    signer.check(*Purpose)
    bao.seal()
    try:
        with pytest.raises(SigningUnavailable) as caught:
            sign(ring)
        assert caught.value.retry_after == 5
        again = Ring(ring.engine, {"transit": store}, ring.time, {"make_in": "transit"})
        assert again.published() == {ring.kid()}
        clock.advance(1)
        with pytest.raises(SigningUnavailable):
            signer.check(Purpose.RENEWAL)
        with pytest.raises(SigningUnavailable, match="vault"):
            ring.rotate()
    finally:
        bao.unseal()
    clock.advance(1)
    assert check(ring, sign(ring)) == ring.kid()


def test_a_sealed_vault_at_the_first_start(bao: OpenBao, engine: sa.Engine, store: Transit) -> None:
    """Without keys and without a vault to make them in a broker does not start, and says why."""
    bao.seal()
    try:
        with pytest.raises(KeyRingError, match="sealed"):
            Ring(engine, {"transit": store}, options={"make_in": "transit"})
    finally:
        bao.unseal()


def test_b23_a_token_file_that_is_swapped(
    bao: OpenBao, engine: sa.Engine, clock: FakeClock, tmp_path: Path
) -> None:
    """B23: when the token has ended, the file its symlink leads to now is read."""
    link, texts = tmp_path / "token", [token(bao), token(bao)]
    for number, text in enumerate(texts):
        (tmp_path / f"token.{number}").write_text(text)
    link.symlink_to("token.0")
    vault = Vault(VaultSettings(bao.address, token_file=link))
    store = Transit(vault, "transit", next(_names), clock.monotonic)
    ring = Ring(engine, {"transit": store}, options={"make_in": "transit"})
    bao.request("POST", "auth/token/revoke", {"token": texts[0]})
    with pytest.raises(SigningUnavailable):
        sign(ring)
    (tmp_path / "new").symlink_to("token.1")
    (tmp_path / "new").replace(link)
    clock.advance(1)
    assert check(ring, sign(ring)) == ring.kid()
    vault.close()


def test_a_vault_that_hangs_holds_each_thread_once(
    bao: OpenBao, ring: Ring, clock: FakeClock
) -> None:
    """Frozen, it costs those under way its time limit; then one a second, and others nothing."""
    failed = list[float]()

    def one() -> None:
        started = time.monotonic()
        with pytest.raises(SigningUnavailable):
            sign(ring)
        failed.append(time.monotonic() - started)

    def many() -> list[float]:
        failed.clear()
        threads = [threading.Thread(target=one) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return sorted(failed)

    sign(ring)
    bao.freeze()
    try:
        assert len(many()) == 6
        assert many()[-1] < ASKED_SECONDS
        clock.advance(1)
        held = many()
        assert held[4] < ASKED_SECONDS < held[5]
    finally:
        bao.thaw()
    clock.advance(1)
    sign(ring)


def test_keys_move_from_files_into_the_vault(
    engine: sa.Engine, store: Transit, tmp_path: Path
) -> None:
    """With the store changed the file's key signs on until the next one, made in the vault."""
    files = KeyFiles(tmp_path / "keys")
    old = Ring(engine, {"file": files})
    ring = Ring(engine, {"file": files, "transit": store}, old.time, {"make_in": "transit"})
    assert not ring.keys.remote
    assert check(ring, sign(ring)) == old.kid()
    ring.rotate(at_once=True)
    ring.after(SHORT_NOTICE)
    assert check(ring, sign(ring)) == ring.kid() != old.kid()
    assert ring.keys.remote


@pytest.mark.parametrize("change", ["no engine", "no rights", "wrong type"])
def test_what_the_vault_must_have_is_told(bao: OpenBao, engine: sa.Engine, change: str) -> None:
    """A missing engine, a missing right and a key of another type are each one sentence."""
    mount, right, name = "transit", token(bao), next(_names)
    if change == "no engine":
        mount, right = "elsewhere", bao.root_token
    elif change == "no rights":
        right = bao.token_for(["secret/x"])
    else:
        bao.request("POST", f"transit/keys/{name}-access", {"type": "ed25519"})
    vault = Vault(VaultSettings(bao.address, token=Secret(right)))
    with pytest.raises(KeyRingError, match=r"needs a transit engine at|no transit key of type"):
        Ring(engine, {"transit": Transit(vault, mount, name)}, options={"make_in": "transit"})
    vault.close()


def test_a_damaged_reference_is_told(engine: sa.Engine, ring: Ring, store: Transit) -> None:
    """A row whose reference is no name and version stops the start with words."""
    with db.begin(engine) as conn:
        conn.execute(sa.update(schema.signing_key).values(reference="daypass"))
    with pytest.raises(KeyRingError, match="reference of transit key"):
        Ring(engine, {"transit": store}, ring.time, {"make_in": "transit"})

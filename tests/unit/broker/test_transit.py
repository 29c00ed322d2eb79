"""The transit store against a vault in memory: what it asks, believes, and does not pass on."""

import base64
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from daypass_broker import transit
from daypass_broker.keys import KeyRingError, NewKey, Purpose, SigningUnavailable
from daypass_broker.transit import Transit
from daypass_core.vault import VaultError, VaultMissing, VaultRefused, VaultUnavailable
from tests.fakes.clock import FakeClock

_ES256 = jwt.get_algorithm_by_name("ES256")


class Engine:
    """A transit engine with one key, as hvac shows it, and as a vault that is asked through it."""

    def __init__(self) -> None:
        self.versions: list[ec.EllipticCurvePrivateKey] = []
        self.error: VaultError | None = None
        self.signs_with: int | None = None  # another version than it was asked for
        self.says: str | None = None  # another signature than any
        self.asked = 0
        self.kind = "ecdsa-p256"

    @property
    def secrets(self) -> Any:
        """Where hvac has its engines."""
        return self

    @property
    def transit(self) -> Any:
        """Where hvac has this one."""
        return self

    def ask(self, what: str, request: Any) -> Any:
        """Be `Vault.ask`."""
        self.asked += 1
        if self.error is not None:
            raise self.error
        return request(self) or {}

    def create_key(self, name: str, *, key_type: str, exportable: bool, mount_point: str) -> None:
        """Make the first version."""
        assert (key_type, exportable, mount_point) == ("ecdsa-p256", False, "transit")
        self.rotate_key(name, mount_point=mount_point)

    def rotate_key(self, name: str, *, mount_point: str) -> None:
        """Make the next version."""
        self.versions.append(ec.generate_private_key(ec.SECP256R1()))

    def read_key(self, name: str, *, mount_point: str) -> dict[str, Any]:
        """Show the public halves."""
        if not self.versions:
            raise VaultMissing("no such key")
        pem = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        keys = {
            str(number): {"public_key": private.public_key().public_bytes(*pem).decode()}
            for number, private in enumerate(self.versions, 1)
        }
        return {"data": {"type": self.kind, "latest_version": len(keys), "keys": keys}}

    def sign_data(self, name: str, *, hash_input: str, key_version: int, **how: Any) -> Any:
        """Sign a digest."""
        assert how == {
            "hash_algorithm": "sha2-256",
            "prehashed": True,
            "marshaling_algorithm": "jws",
            "mount_point": "transit",
        }
        version = self.signs_with or key_version
        digest = base64.b64decode(hash_input)
        der = self.versions[version - 1].sign(digest, ec.ECDSA(utils.Prehashed(SHA256())))
        r, s = utils.decode_dss_signature(der)
        raw = base64.urlsafe_b64encode(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
        text = f"vault:v{key_version}:{raw.rstrip(b'=').decode()}"
        return {"data": {"signature": text if self.says is None else self.says}}


@pytest.fixture
def engine() -> Engine:
    """A vault without a key yet."""
    return Engine()


@pytest.fixture
def clock() -> FakeClock:
    """What the pauses are measured with."""
    return FakeClock()


@pytest.fixture
def store(engine: Engine, clock: FakeClock) -> Transit:
    """The store over that vault."""
    vault: Any = engine
    return Transit(vault, "transit", "daypass", clock.monotonic)


def made(store: Transit, *known: NewKey) -> NewKey:
    """Make a key that is none of those."""
    return store.make(Purpose.ACCESS, frozenset(key.kid for key in known))


def sign(store: Transit, key: NewKey) -> bytes:
    """Sign with a key and verify it."""
    signer = store.load(Purpose.ACCESS, key.kid, key.reference, key.public)
    signature = signer.half.sign(b"a.b")
    assert _ES256.verify(b"a.b", key.public, signature)
    return signature


def test_versions_are_keys(store: Transit) -> None:
    """The first key is made, the next is its next version; both sign, each as itself."""
    first = made(store)
    second = made(store, first)
    assert (first.reference, second.reference) == ("daypass-access:1", "daypass-access:2")
    assert made(store, first) == second  # nobody uses it yet
    sign(store, first)
    sign(store, second)


def test_another_key_s_signature_does_not_leave(
    store: Transit, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signature by another version, though it says otherwise, is no signature of ours."""
    told = list[str]()
    monkeypatch.setattr(transit, "event", lambda _, name, **__: told.append(name))
    first = made(store)
    made(store, first)
    engine.signs_with = 2
    with pytest.raises(SigningUnavailable, match="another key"):
        sign(store, first)
    assert told == ["signature_not_ours"]


@pytest.mark.parametrize(
    "says", ["", "vault:v2:" + "A" * 86, "vault:v1:" + "A" * 86, "vault:v1:" + "+" * 86, "None"]
)
def test_what_is_no_signature_does_not_leave(store: Transit, engine: Engine, says: str) -> None:
    """An answer in another form, or of another version, is refused like a wrong signature."""
    key = made(store)
    engine.says = says
    with pytest.raises(SigningUnavailable, match="another key"):
        sign(store, key)


@pytest.mark.parametrize(
    "error", [VaultUnavailable("sealed"), VaultRefused("no rights"), VaultMissing("no key")]
)
def test_a_vault_that_fails_is_left_alone_for_a_second(
    store: Transit, engine: Engine, clock: FakeClock, error: VaultError
) -> None:
    """After a failure nobody asks for a second, then one does; once it answers all may."""
    key = made(store)
    engine.error, before = error, engine.asked
    for _ in range(5):
        with pytest.raises(SigningUnavailable):
            sign(store, key)
    assert engine.asked == before + 1
    clock.advance(1)
    for _ in range(5):
        with pytest.raises(SigningUnavailable):
            sign(store, key)
    assert engine.asked == before + 2
    engine.error = None
    clock.advance(1)
    for _ in range(5):
        sign(store, key)


def signs(store: Transit, key: NewKey) -> bool:
    """Say whether something can be signed with a key."""
    try:
        return bool(sign(store, key))
    except SigningUnavailable:
        return False


def test_a_key_that_is_gone_stops_no_other(store: Transit, engine: Engine) -> None:
    """What the vault does not do with one key, it is still asked to do with the next one."""
    gone, good = made(store), store.make(Purpose.RENEWAL, frozenset())
    other = made(store, gone)
    engine.error = VaultRefused("requested version for signing is less than the minimum")
    assert not signs(store, gone)
    engine.error, before = None, engine.asked
    assert signs(store, good)
    assert signs(store, other)
    assert not signs(store, gone)
    assert engine.asked == before + 2


def test_an_outage_is_told_once(
    store: Transit, engine: Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has one line when it begins and one when it is over."""
    told = list[str]()
    monkeypatch.setattr(transit, "event", lambda _, name, **__: told.append(name))
    key = made(store)
    engine.error = VaultUnavailable("sealed")
    for _ in range(3):
        with pytest.raises(SigningUnavailable):
            sign(store, key)
        clock.advance(1)
    engine.error = None
    sign(store, key)
    sign(store, key)
    assert told == ["signing_vault_away", "signing_vault_back"]


def test_what_cannot_be_made(store: Transit, engine: Engine) -> None:
    """A vault that is away passes, rights and kinds of keys need an operator."""
    engine.error = VaultUnavailable("sealed")
    with pytest.raises(SigningUnavailable, match="sealed"):
        made(store)
    engine.error = VaultRefused("no rights")
    with pytest.raises(KeyRingError, match="update on transit/sign/daypass-access"):
        made(store)
    engine.error = None
    key = made(store)
    engine.kind = "ed25519"
    with pytest.raises(KeyRingError, match="no transit key of type ecdsa-p256"):
        made(store, key)

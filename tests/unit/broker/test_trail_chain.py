"""The hash chain's vectors, recomputed with nothing of ours, and by `links`."""

import hashlib
import json
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from daypass_broker.chain.links import GENESIS, Head, Running
from daypass_core.jwks import parse_jwks
from tests.vectors.make_trail_chain import TARGET, document

VECTORS: dict[str, Any] = json.loads(TARGET.read_text(encoding="utf-8"))


def canonical(value: dict[str, Any]) -> bytes:
    """JSON as the docs describe it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def test_vectors_are_up_to_date() -> None:
    """The committed vectors are what their script writes."""
    assert TARGET.read_text(encoding="utf-8") == document()


def test_the_vectors_are_what_the_docs_describe() -> None:
    """Hashes and signatures of the heads, by the description in docs/reference/audit.md alone."""
    ((kid, key),) = parse_jwks({"keys": [VECTORS["key"]]}).items()
    running = bytes(32)
    for head in VECTORS["heads"]:
        assert head["previous"] == running.hex()
        for event in VECTORS["events"]:
            if head["first"] <= event["seq"] <= head["upto"]:
                running = hashlib.sha256(running + canonical(event)).digest()
        assert head["hash"] == running.hex()
        signed = {name: head[name] for name in head if name not in ("kid", "signature")}
        raw = bytes.fromhex(head["signature"])
        pair = encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))
        key.verify(pair, canonical(signed | {"format": 1}), ec.ECDSA(hashes.SHA256()))
        with pytest.raises(InvalidSignature):
            key.verify(pair, canonical(signed | {"format": 2}), ec.ECDSA(hashes.SHA256()))
        assert head["kid"] == kid


def test_a_column_that_comes_later_changes_no_hash() -> None:
    """Only the nine fields are hashed; one of them that is missing is an error, not a hash."""
    event = VECTORS["events"][0]
    plain, wider = Running(GENESIS), Running(GENESIS)
    plain.add(event)
    wider.add({**event, "prev_hash": "x", "region": 1})
    assert plain.hash == wider.hash
    with pytest.raises(KeyError):
        plain.add({name: event[name] for name in event if name != "tenant"})


def test_what_is_signed_of_a_head_is_no_jwt() -> None:
    """It begins with a brace, which is not in the alphabet of base64url."""
    assert Head(1, 2, 2, 3, GENESIS, GENESIS).text().startswith(b'{"at":3,"events":2,"first":1')

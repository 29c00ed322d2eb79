"""Tampered tokens: the vectors, and Hypothesis over the wrapper of tokens by several signers."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daypass_core.jwks import parse_jwks
from daypass_core.verify import TokenRefused, verify_access
from tests.vectors.make_access_tokens import KEY, PAYLOAD, STRANGER, TAMPERED, tampered_document
from tests.vectors.token_mutations import mutations
from tests.vectors.token_signers import signers

DOCUMENT: dict[str, Any] = json.loads(TAMPERED.read_text(encoding="utf-8"))
KEYS = parse_jwks(DOCUMENT["jwks"])
SIGNED = signers(KEY, STRANGER, PAYLOAD)
OURS = SIGNED["ES256"].token()


def answer(token: str) -> tuple[str, bool]:
    """Return how the verifier answers, and whether it says that the signature held."""
    names: Any = {"issuer": DOCUMENT["issuer"], "audience": DOCUMENT["audience"]}
    try:
        verify_access(token, KEYS, **names, now=DOCUMENT["vectors"][0]["now"])
    except TokenRefused as refused:
        return str(refused.reason), refused.signature_verified
    return "valid", True


def test_no_tampered_token_passes() -> None:
    """Row 20: sixty mutations of tokens of seven signers, by six algorithms; none is accepted."""
    wrong = [
        (vector["name"], vector["expect"], answer(vector["token"]))
        for vector in DOCUMENT["vectors"]
        if answer(vector["token"]) != (vector["expect"], False)
    ]
    assert wrong == []


def test_the_vectors_are_many_and_up_to_date() -> None:
    """At least sixty mutations, each for seven signers; the file is what its script writes."""
    assert TAMPERED.read_text(encoding="utf-8") == tampered_document()
    assert len({name for name, _, _ in mutations(KEY, STRANGER)}) >= 60
    assert {parts.header["alg"] for parts in SIGNED.values()} > {"ES256", "RS256", "EdDSA", "HS256"}
    assert len({vector["token"] for vector in DOCUMENT["vectors"]}) >= 60 * len(SIGNED)
    assert answer(OURS) == ("valid", True), "they depart from a token that is good"


@pytest.mark.parametrize("signer", SIGNED)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_stack_of_mutations_passes(signer: str, data: st.DataObject) -> None:
    """Row 20: bits turned, pieces cut, doubled or exchanged: only our own token passes."""
    token = SIGNED[signer].token()
    for _ in range(data.draw(st.integers(0, 3))):
        token = _edited(token, data)
    assert (answer(token)[0] == "valid") == (token == OURS)


def _edited(token: str, data: st.DataObject) -> str:
    at, to = sorted(data.draw(st.tuples(*[st.integers(0, len(token))] * 2)))
    kind = data.draw(st.sampled_from(["turn", "cut", "double", "exchange", "insert"]))
    if kind == "turn" and at < len(token):
        bit = 1 << data.draw(st.integers(0, 6))
        return token[:at] + chr(ord(token[at]) ^ bit) + token[at + 1 :]
    if kind == "cut":
        return token[:at] + token[to:]
    if kind == "double":
        return token[:to] + token[at:to] + token[to:]
    if kind == "exchange":
        return token[at:to] + token[:at] + token[to:]
    return token[:at] + data.draw(st.sampled_from([".", "=", " ", "\n", "A", "\x00"])) + token[at:]

"""Attestation by an issuer's signature: the keys are the issuer's, found as the rule says.

The issuer's time is the issuer's: its clock may be half a minute ahead of ours, and what it signed
must end soon, or a copy of it would be good for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from daypass_broker.attest import jws
from daypass_broker.attest.jws import Assertion, refuse
from daypass_broker.attest.keysets import KeySets
from daypass_broker.rule import Rule
from daypass_core.verify import LEEWAY, MAX_FUTURE, Reason

_MAX_TIME = 2**40


async def verify(assertion: Assertion, rule: Rule, sets: KeySets) -> Mapping[str, object]:
    """Return the signed claims; raises TokenRefused and keysets.KeysUnavailable."""
    if rule.keys.inline is not None:
        key = jws.read_keys(rule.keys.inline).get(assertion.key_id)
    else:
        key = await sets.find(rule.issuer, rule.keys.url, assertion.key_id)
    if key is None:
        refuse(Reason.UNKNOWN_KEY, "kid")
    return jws.verify(assertion, key)


def check_addressed(claims: Mapping[str, object], rule: Rule) -> None:
    """Refuse what is not of the rule's issuer, for its audience alone. Raises TokenRefused.

    Asked before the signature, where it costs a stranger's noise next to nothing.
    """
    if claims.get("iss") != rule.issuer:
        refuse(Reason.WRONG_ISSUER, "iss")
    # Clusters write a list always. Two audiences: the other one could show it to us (RFC 8707).
    if claims.get("aud") not in (rule.audience, [rule.audience]):
        refuse(Reason.WRONG_AUDIENCE, "aud")


def check_times(claims: Mapping[str, object], rule: Rule, now: float) -> tuple[int, int]:
    """Return `iat` and `exp` of signed claims (epoch seconds). Raises TokenRefused."""
    issued_at, expires_at = _time(claims, "iat"), _time(claims, "exp")
    if now >= expires_at + LEEWAY:
        refuse(Reason.EXPIRED, "exp", signed=True)
    starts = _time(claims, "nbf") if "nbf" in claims else issued_at
    if max(issued_at, starts) > now + MAX_FUTURE:
        refuse(Reason.NOT_YET_VALID, "iat" if issued_at >= starts else "nbf", signed=True)
    if not 0 < expires_at - issued_at <= rule.max_life_s:
        refuse(
            Reason.BAD_CLAIMS, f"exp: must be at most {rule.max_life_s} s after iat", signed=True
        )
    return issued_at, expires_at


def _time(claims: Mapping[str, object], name: str) -> int:
    value = claims.get(name)
    # type() and not isinstance(): true is an int in Python, and no date.
    if type(value) is not int or not 0 <= value < _MAX_TIME:
        refuse(Reason.BAD_CLAIMS, f"{name}: must be an integer of epoch seconds", signed=True)
    return value

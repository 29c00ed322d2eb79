"""`/v1/oauth/introspect` (RFC 7662) and `/v1/oauth/revoke` (RFC 7009), for whoever manages.

Both take a form with a `token` and answer 200 for anything that is no live token of the caller's
tenants, with nothing that tells one reason from another. The token is in no log line, no audit
event and no answer.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from daypass_broker import db, inspection
from daypass_broker.admin.call import Answer, Call
from daypass_broker.admin.revocations import carry_out, view
from daypass_broker.revoke import Order, Target
from daypass_core.claims import RenewalClaims
from daypass_core.problem import Code, Refusal

_FORM = "application/x-www-form-urlencoded"
_MAX_FIELDS = 16
# Ids of access tokens and launch credentials, for those who have no more than the id.
_ID = re.compile(r"(tok|lch)_[a-z2-7]{26}", re.ASCII)
_INACTIVE = {"active": False}
_REASON = "revoked by its token"


class _Unreadable(Exception):
    """The form is not as RFC 7009 §2.1 and RFC 7662 §2.1 have it."""


def introspect(call: Call) -> Answer:
    """Say what a token says, if it would be taken now."""
    try:
        unverified_token = _token(call)
    except _Unreadable as error:
        return _invalid(error)
    claims = inspection.read(call.services, unverified_token)
    if claims is None or not call.principal.may_see(claims.tenant):
        return Answer(_INACTIVE)
    with call.reading() as conn:
        found = inspection.inspect(conn, claims, db.now_ms(conn))
    return Answer(_INACTIVE if found is None else {"active": True, **found.payload()})


def revoke(call: Call) -> Answer:
    """End a token; what it was is in the answer, which is empty when there was nothing to end.

    An access token or launch credential ends alone. A renewal generation stands for all that its
    sandbox may still be issued (RFC 7009 §2.1), so its sandbox is revoked.
    """
    try:
        unverified_token = _token(call)
    except _Unreadable as error:
        return _invalid(error)
    found = _order(call, unverified_token)
    if found is None:
        return Answer({})
    order, known = found
    try:
        return Answer(view(carry_out(call, order, known)))
    except Refusal as refusal:
        if refusal.problem.code is Code.NOT_FOUND:
            return Answer({})
        raise


def _order(call: Call, unverified_token: str) -> tuple[Order, Target | None] | None:
    """Return what is to be revoked, and whose it is where the token itself says so."""
    if _ID.fullmatch(unverified_token):
        return Order("jti", unverified_token, reason=_REASON), None
    claims = inspection.read(call.services, unverified_token)
    if claims is None or not call.principal.may_see(claims.tenant):
        return None
    if isinstance(claims, RenewalClaims):
        return Order("sandbox", claims.sandbox, reason=_REASON), None
    known = Target(claims.tenant, claims.sandbox)
    return Order("jti", claims.token_id, reason=_REASON), known


def _token(call: Call) -> str:
    """Return the one `token` of the form; hints are not needed, a token says what it is."""
    media_type = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != _FORM:
        raise _Unreadable(f"content-type must be {_FORM}")
    try:
        pairs = parse_qsl(
            call.body.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=_MAX_FIELDS,
        )
    except ValueError:  # UnicodeDecodeError is one
        raise _Unreadable("body is not a form") from None
    given = [value for name, value in pairs if name == "token"]
    if len(given) != 1 or not given[0]:
        raise _Unreadable("token must be given once")
    return given[0]


def _invalid(error: _Unreadable) -> Answer:
    """Answer as RFC 6749 §5.2 has it."""
    return Answer({"error": "invalid_request", "error_description": str(error)}, 400)

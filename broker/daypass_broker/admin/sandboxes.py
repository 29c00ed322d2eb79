"""`/v1/sandboxes`: registered, activated, looked up, limited, kept alive, ended, restored.

Everything is on record and committed before a launch credential is signed.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from daypass_broker import (
    account,
    handout,
    idempotency,
    life,
    limits,
    revocation,
    sandbox,
    sandbox_request,
)
from daypass_broker.admin.call import Answer, Call, take_limit
from daypass_broker.fields import FieldError, Fields
from daypass_broker.keys import Purpose
from daypass_core.claims import account_id

_STATES = ("idle", "active", "expired", "ended", "revoked")


def create(call: Call) -> Answer:
    """Make one sandbox, or `count` of them."""
    body = call.json()
    request = sandbox_request.read(body)
    # Two headers are joined, and the blank refuses them.
    headers = call.request.headers.getlist("idempotency-key")
    key = idempotency.Key.of(", ".join(headers), body) if headers else None
    min_token_ttl = call.services.settings.min_token_ttl
    _check_signing(call)
    with call.acting(revocation.share_version) as act:
        rows = sandbox.create(act, call.principal, request, min_token_ttl=min_token_ttl, key=key)
    made = [handout.handout(call.services, row, call.now) for row in rows]
    return Answer(made[0] if request.count is None else {"sandboxes": made}, 201)


def search(call: Call) -> Answer:
    """List sandboxes, newest first."""
    query = call.query()
    tenant = call.tenant(query)
    state, after = query.text("state", choices=_STATES), query.text("after")
    limit = take_limit(query)
    query.done()
    with call.reading() as conn:
        rows = sandbox.search(
            conn, call.principal, tenant=tenant, state=state, after=after, limit=limit + 1
        )
    shown = [handout.view(row, call.now) for row in rows[:limit]]
    return Answer({"sandboxes": shown, "next": rows[limit - 1].id if len(rows) > limit else None})


def get(call: Call) -> Answer:
    """Show one sandbox, and every limit that its calls meet."""
    call.query().done()
    with call.reading() as conn:
        row = sandbox.get(conn, call.principal, call.id)
        return Answer(_with_limits(call, conn, row))


def limit(call: Call) -> Answer:
    """Change limits of a live sandbox."""
    fields = Fields(call.json())
    wanted = limits.read_changes(fields)
    fields.done()
    if not wanted:
        raise FieldError("body", "must name at least one limit")
    with call.acting(revocation.share_version) as act:
        row = sandbox.limit(act, call.principal, call.id, wanted)
        return Answer(_with_limits(call, act.conn, row))


def activate(call: Call) -> Answer:
    """Give an idle sandbox out, with its launch credential."""
    activation = sandbox_request.read_activation(call.json() if call.body else {})
    _check_signing(call)
    with call.acting(revocation.share_version) as act:
        row = life.activate(act, call.principal, call.id, activation)
    return Answer(handout.handout(call.services, row, call.now))


def beat(call: Call) -> Answer:
    """Note that a sandbox lives."""
    call.require_no_body()
    with call.acting() as act:
        row = life.beat(act, call.principal, call.id)
    return Answer(handout.view(row, call.now))


def end(call: Call) -> Answer:
    """End a sandbox for good."""
    call.require_no_body()
    with call.acting(revocation.lock_version) as act:
        row = sandbox.end(act, call.principal, call.id)
    return Answer(handout.view(row, call.now))


def restore(call: Call) -> Answer:
    """Take a revocation back, with a new launch credential."""
    call.require_no_body()
    _check_signing(call)
    with call.acting(revocation.share_version) as act:
        row = sandbox.restore(act, call.principal, call.id)
    return Answer(handout.handout(call.services, row, call.now))


def replace_launch(call: Call) -> Answer:
    """Give out a new launch credential."""
    call.require_no_body()
    _check_signing(call)
    with call.acting(revocation.share_version) as act:
        row = sandbox.replace_launch(act, call.principal, call.id)
    return Answer(handout.handout(call.services, row, call.now), 201)


def _check_signing(call: Call) -> None:
    """Raise SigningUnavailable before anything is done whose only answer is a credential."""
    call.services.signer.check(Purpose.LAUNCH)


def _with_limits(call: Call, conn: sa.Connection, row: sa.Row[Any]) -> dict[str, object]:
    return {
        **handout.view(row, call.now),
        **account.terms(conn, row.id, row.tenant).document(),
        "limits": account.states(conn, account_id(row.id)),
        "tenant_limits": account.states(conn, account.tenant_id(row.tenant)),
    }

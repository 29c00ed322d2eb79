"""`/v1/sandboxes`: registered, looked up, ended, restored, given a new launch credential.

Everything is on record and committed before a launch credential is signed.
"""

from __future__ import annotations

from daypass_broker import handout, idempotency, revocation, sandbox, sandbox_request
from daypass_broker.admin.call import Answer, Call, take_limit

_STATES = ("active", "expired", "ended", "revoked")


def create(call: Call) -> Answer:
    """Make one sandbox, or `count` of them."""
    body = call.json()
    request = sandbox_request.read(body)
    # Two headers are joined, and the blank refuses them.
    headers = call.request.headers.getlist("idempotency-key")
    key = idempotency.Key.of(", ".join(headers), body) if headers else None
    min_token_ttl = call.services.settings.min_token_ttl
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
    """Show one sandbox and its account."""
    call.query().done()
    with call.reading() as conn:
        row = sandbox.get(conn, call.principal, call.id)
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
    with call.acting(revocation.share_version) as act:
        row = sandbox.restore(act, call.principal, call.id)
    return Answer(handout.handout(call.services, row, call.now))


def replace_launch(call: Call) -> Answer:
    """Give out a new launch credential."""
    call.require_no_body()
    with call.acting(revocation.share_version) as act:
        row = sandbox.replace_launch(act, call.principal, call.id)
    return Answer(handout.handout(call.services, row, call.now), 201)

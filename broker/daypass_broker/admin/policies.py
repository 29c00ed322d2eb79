"""`/v1/policy`: the one document that says who may have what, put and read back by admins."""

from __future__ import annotations

from daypass_broker import policy_store, revocation
from daypass_broker.admin.call import Answer, Call

_SWITCH = {"true": True, "1": True, "false": False, "0": False}


def put(call: Call) -> Answer:
    """Apply a policy, as YAML or with content-type application/json as JSON."""
    call.require_admin()
    query = call.query()
    dry_run = _SWITCH[query.text("dry_run", choices=tuple(_SWITCH)) or "false"]
    query.done()
    media_type = call.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    wanted = policy_store.read(
        call.body,
        min_token_ttl=call.services.settings.min_token_ttl,
        json_only=media_type == "application/json",
    )
    with call.acting(revocation.lock_version) as act:
        summary = policy_store.apply(act, wanted, dry_run=dry_run)
    return Answer(summary.as_dict())


def get(call: Call) -> Answer:
    """Show the policy in force."""
    call.require_admin()
    call.query().done()
    with call.reading() as conn:
        return Answer(policy_store.export(conn))

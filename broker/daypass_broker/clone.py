"""What becomes of a sandbox of which there are two, as its profile says.

`lineage` has seen the copy and, unless copies are welcome, quarantined it. Then `quarantine` is
that: nobody renews any more, and the tokens there are live out their minutes. `revoke` ends
them too. `child` takes copies for what they are in a fleet that forks its sandboxes: each gets a
narrow life of its own, a grant below the sandbox's, which no copy shares with another.
"""

from __future__ import annotations

import sqlalchemy as sa

from daypass_broker import db, delegate, revocation, schema, tokens
from daypass_broker.act import SYSTEM, Act, acting
from daypass_broker.credential import Principal, Role
from daypass_broker.lineage import ALARMS
from daypass_broker.purchase import Purchase
from daypass_broker.refused import Refused
from daypass_broker.revoke import Order, revoke
from daypass_broker.services import Services
from daypass_broker.standing import Standing
from daypass_broker.tokens import Terms
from daypass_core.claims import Claims


def adopt(act: Act, found: Standing, terms: Terms, peer: str) -> Claims | Refused:
    """Give a copy an access token of its own, bought by its sandbox; it cannot be renewed.

    It is asked for anew with the same credential. What bounds purchases bounds copies.
    """
    parent = tokens.choose_or_record(act, found, terms)
    if isinstance(parent, Refused):
        return parent
    return delegate.buy(act, found, parent, Purchase(), terms, peer)


def end_both(services: Services, sandbox: str, refused: Refused) -> None:
    """Revoke a sandbox whose profile says so, after a copy of it was refused.

    In a transaction of its own, because a revocation locks what issuing shares. Raises
    StoreUnavailable.
    """
    if refused.reason not in ALARMS:
        return
    table = schema.sandbox.c
    wanted = (table.id == sandbox) & (table.on_clone == "revoke") & (table.state == "active")
    with db.read(services.engine) as conn:
        if conn.execute(sa.select(table.id).where(wanted)).first() is None:
            return
    with acting(services.engine, SYSTEM, services.new_id, lock=revocation.lock_version) as act:
        order = Order("sandbox", sandbox, reason=f"a copy was seen: {refused.reason}")
        revoke(act, Principal(SYSTEM, Role.ADMIN), order)

"""`Idempotency-Key`: the same request sent twice makes its sandboxes once.

A key is claimed by inserting its row in the transaction that makes the sandboxes; whoever comes
second waits for the first to commit and gets the same ids, from which the answer is rebuilt. Keys
are kept as hashes, per credential, for a day.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import sqlalchemy as sa

from daypass_broker import db, schema
from daypass_broker.act import Act
from daypass_core.problem import Code, refuse

KEEP_MS = 24 * 3600 * 1000
_FORM = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Key:
    """An Idempotency-Key and the request it stands for, as hashes."""

    key_hash: str
    request_hash: str

    @classmethod
    def of(cls, header: str, request: object) -> Key:
        """Hash a header value and the decoded request; raises Refusal for a malformed key."""
        if not _FORM.fullmatch(header):
            raise refuse(
                Code.INVALID_REQUEST,
                "idempotency-key: must be 1 to 255 printable characters without blanks",
                field="idempotency-key",
            )
        return cls(_sha256(header), _sha256(db.to_json(request)))


def claim(act: Act, key: Key, sandbox_ids: list[str]) -> list[str] | None:
    """Claim the key for these new sandboxes; None when it is ours, else the ids made before.

    Raises Refusal (idempotency_mismatch) when the key came with another request.
    """
    table = schema.idempotency
    act.conn.execute(sa.delete(table).where(table.c.created_at < act.at - KEEP_MS))
    claimed = db.insert_once(
        act.conn,
        table,
        credential=act.actor,
        key_hash=key.key_hash,
        request_hash=key.request_hash,
        sandboxes=db.to_json(sandbox_ids),
        created_at=act.at,
    )
    if claimed:
        return None
    earlier = act.conn.execute(
        sa.select(table).where(table.c.credential == act.actor, table.c.key_hash == key.key_hash)
    ).one()
    if earlier.request_hash != key.request_hash:
        raise refuse(Code.IDEMPOTENCY_MISMATCH, field="idempotency-key")
    return [str(sandbox_id) for sandbox_id in db.from_json(earlier.sandboxes)]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

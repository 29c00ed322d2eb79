"""Writes `trail_chain.json`: events of an audit trail, the heads over them, and the key they bear.

The file is language-neutral: whatever else recomputes the chain can be run against it. The key is a
fixed test key and signatures deterministic, so writing twice gives the same bytes.

    python -m tests.vectors.make_trail_chain
"""

import json
from pathlib import Path

from daypass_broker.chain.links import FIELDS, GENESIS, Head, Running
from tests.support import NOW, raw_signature, signing_key

TARGET = Path(__file__).with_name("trail_chain.json")
KEY = signing_key("daypass trail vectors")
EVENTS = (
    (1, "policy.applied", "system", None, None, None, '{"created":["tenants.acme"]}', None),
    (2, "sandbox.created", "crd_a", "acme", "sbx_a", "sbx_a", '{"label":"grün \\"✓\\""}', "req_a"),
    (5, "token.issued", "sbx_a", "acme", "sbx_a", "tok_a", '{"exp":1800000600}', "req_b"),
)
_NAMES = ("seq", "tag", "actor", "tenant", "sandbox", "subject", "detail", "request_id")


def main() -> None:
    """Write the file."""
    TARGET.write_text(document(), encoding="utf-8")


def document() -> str:
    """Return the content of `trail_chain.json`: two heads, of the first two events and the third.

    Numbers 3 and 4 are missing, as after acts that failed.
    """
    events = [
        dict(zip(_NAMES, values, strict=True)) | {"at": NOW * 1000 + number}
        for number, values in enumerate(EVENTS)
    ]
    heads, previous = [], GENESIS
    for covered in (events[:2], events[2:]):
        running = Running(previous)
        for event in covered:
            running.add(event)
        first, upto = int(str(covered[0]["seq"])), int(str(covered[-1]["seq"]))
        head = Head(first, upto, running.events, NOW * 1000 + upto, previous, running.hash)
        signature = raw_signature(KEY, head.text()).hex()
        heads.append({**head.as_dict(), "kid": KEY.kid, "signature": signature})
        previous = head.hash
    ordered = [{name: event[name] for name in FIELDS} for event in events]
    found = {"key": KEY.jwk, "events": ordered, "heads": heads}
    return json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    main()

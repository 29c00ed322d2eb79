"""Identifiers: unguessable, sortable by nobody, readable by prefix.

Every row, token and request is named by one of these, so a log line tells what kind of thing it
speaks of. `new_id` is passed to those who need it, so tests can pass their own.
"""

import base64
import secrets

_RANDOM_BYTES = 16


def new_id(prefix: str) -> str:
    """Return `prefix_` and 26 lower-case base32 characters of 128 random bits.

    Prefixes in use: sbx sandbox, grt grant, tok access token, lch launch credential, req request
    and usage row, rev revocation, crd credential, lin lineage.
    """
    random = base64.b32encode(secrets.token_bytes(_RANDOM_BYTES))
    return f"{prefix}_{random.decode('ascii').rstrip('=').lower()}"

"""What is said about a sandbox: its view, and the handout that starts it.

The handout is what the orchestrator puts into the sandbox: environment variables that unmodified
clients read, and files. The launch credential in it is signed from the sandbox's row; it is in no
view, no log and no table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import sqlalchemy as sa

from daypass_broker import db, policy, slices, source, times
from daypass_broker.oauth import FEDERATION_RULE_ID
from daypass_broker.services import Services
from daypass_broker.settings import Settings
from daypass_core import money
from daypass_core.claims import LaunchClaims, subject
from daypass_core.problem import Code, refuse

LAUNCH_FILE = "/run/daypass/launch.jwt"
CA_FILE = "/run/daypass/ca.pem"
# In a folder of its own: a mounted folder shows the socket of a restarted proxy, a mounted socket
# stays the old one.
PROXY_SOCKET = "/run/daypass/proxy/proxy.sock"
# Stock clients take plain http on loopback only: `daypass run` listens here and uses the socket.
LOOPBACK_URL = "http://127.0.0.1:8788"


def view(row: sa.Row[Any], now: int) -> dict[str, object]:
    """Describe a sandbox to its keepers; `now` is epoch seconds."""
    free = slices.free_nano(row)
    return {
        **_described(row, now),
        "spent_usd": _usd(row.spent_nano),
        "reserved_usd": _usd(row.reserved_nano),
        "remaining_usd": _usd(None if free is None else max(free, 0)),
        "overdraft_usd": _usd(row.overdraft_nano),
        "source_bound": row.source_bound,
        "on_clone": row.on_clone,
        "heartbeat_at": _moment(row.heartbeat_at if row.state == "active" else None),
        "activated_at": _moment(row.activated_at),
        "rule": row.rule,
        "identity": None if row.identity is None else db.from_json(row.identity),
        "created_by": row.created_by,
        "created_at": times.format_ms(row.created_at),
        "ended_at": _moment(row.ended_at),
    }


def handout(services: Services, row: sa.Row[Any], now: int) -> dict[str, object]:
    """Return everything that starts the sandbox; `now` is epoch seconds.

    One that has no launch credential, because it is idle or attested, is only described.
    """
    if row.state == "idle" or row.launch == policy.ATTESTED:
        return view(row, now)
    credential = services.signer.sign_launch(_launch_claims(services.settings, row))
    return {
        **_described(row, now, credential=credential),
        "environment": _environment(services.settings, row),
        "files": _files(services.settings, row, credential),
    }


def _described(row: sa.Row[Any], now: int, **launch: str) -> dict[str, object]:
    # The time of an idle sandbox has not begun.
    deadline = None if row.state == "idle" else times.format_second(row.deadline)
    return {
        "id": row.id,
        "tenant": row.tenant,
        "profile": row.profile,
        "state": _state(row, now),
        "connect": row.connect,
        "deadline": deadline,
        "launch": {"mode": row.launch, **launch, "expires_at": deadline},
        "token_ttl_seconds": row.token_ttl_s,
        "budget_usd": _usd(row.ceiling_nano),
        "authorization_details": db.from_json(row.scope),
        "labels": db.from_json(row.labels),
        "source": source.document(row.source),
        "heartbeat_seconds": row.heartbeat_s,
        "vendor": row.vendor,
        "vendor_id": row.vendor_id,
    }


def _launch_claims(settings: Settings, row: sa.Row[Any]) -> LaunchClaims:
    return LaunchClaims(
        issuer=settings.issuer,
        audience=settings.broker_audience,
        subject=subject(settings.trust_domain, row.tenant, row.id),
        tenant=row.tenant,
        sandbox=row.id,
        token_id=row.launch_jti,
        issued_at=row.launch_iat,
        expires_at=row.deadline,
        mode=cast(Literal["reusable", "single_use"], row.launch),
    )


def _environment(settings: Settings, row: sa.Row[Any]) -> dict[str, str]:
    environment = {
        "ANTHROPIC_BASE_URL": settings.public_url,
        "ANTHROPIC_IDENTITY_TOKEN_FILE": LAUNCH_FILE,
        "ANTHROPIC_FEDERATION_RULE_ID": FEDERATION_RULE_ID,
        "ANTHROPIC_ORGANIZATION_ID": row.tenant,
    }
    if row.connect == "socket":
        environment |= {"ANTHROPIC_BASE_URL": LOOPBACK_URL, "DAYPASS_PROXY_SOCKET": PROXY_SOCKET}
    elif settings.ca_file is not None:
        environment |= {"SSL_CERT_FILE": CA_FILE, "NODE_EXTRA_CA_CERTS": CA_FILE}
    return environment


def _files(settings: Settings, row: sa.Row[Any], credential: str) -> dict[str, str]:
    files = {LAUNCH_FILE: credential}
    if row.connect == "direct" and settings.ca_file is not None:
        files[CA_FILE] = _read_ca(settings.ca_file)
    return files


def _read_ca(path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, ValueError):
        text = ""
    # The file's neighbour is its private key: never hand out what is not a certificate.
    if "BEGIN CERTIFICATE" not in text or "PRIVATE KEY" in text:
        raise refuse(Code.INTERNAL_ERROR, "the broker's CA file holds no certificate")
    return text


def _state(row: sa.Row[Any], now: int) -> str:
    return "expired" if row.state == "active" and row.deadline <= now else str(row.state)


def _moment(ms: int | None) -> str | None:
    return None if ms is None else times.format_ms(ms)


def _usd(nano: int | None) -> str | None:
    return None if nano is None else money.format_usd(nano)

"""No static key: an identity token of ours is exchanged at the provider for a bearer of minutes.

Place in the flow: `keyring` exchanges with it, and sends the bearer as a key; `upstream_request`
adds the flag that a bearer needs. The request is the one that the official clients make (RFC 7523
section 2.1, `urn:ietf:params:oauth:grant-type:jwt-bearer`), over the transport that calls go up by.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from typing import Any, NamedTuple

from daypass_core.secret import Federation, Secret
from daypass_proxy.exchange import HeaderPairs, header_text
from daypass_proxy.key_forms import Unusable
from daypass_proxy.transport import Answer, Transport, TransportError, UpstreamRequest

PATH = "/v1/oauth/token"
GRANT_TYPE = "urn:ietf:params:oauth:grant-type:jwt-bearer"
BEARER_BETA = b"oauth-2025-04-20"
"""Without it the provider takes no bearer, at any of its endpoints."""
EXCHANGE_BETA = b"oauth-2025-04-20,oidc-federation-2026-04-01"
EXCHANGE_SECONDS = 30.0
"""For a whole exchange, as the official clients have it."""
MOST_ASSERTION_BYTES = 16 * 1024
_MOST_ANSWER_BYTES = 64 * 1024
_MOST_SECONDS = 86_400
_WORD = re.compile(r"[a-z_]{1,64}")


class Bearer(NamedTuple):
    """What an exchange gave, and for how many seconds."""

    secret: Secret
    life: float


class Exchanger:
    """Exchanges at one origin, the one that calls go to: elsewhere the bearer is worth nothing."""

    def __init__(self, origin: str, transport: Transport) -> None:
        self._url = origin + PATH
        self._transport = transport

    async def exchange(self, who: Federation, assertion: str) -> Bearer:
        """Return a bearer for the identity token `assertion`; raises key_forms.Unusable."""
        if len(assertion) > MOST_ASSERTION_BYTES or assertion.count(".") != 2:
            raise Unusable("the identity file holds no JWT")
        request = UpstreamRequest("POST", self._url, _HEADERS, _body(who, assertion))
        try:
            async with asyncio.timeout(EXCHANGE_SECONDS):
                answer = await self._transport.send(request)
                try:
                    body = await _read(answer)
                finally:
                    answer.close()
        except TimeoutError:
            raise Unusable("token endpoint did not answer in time") from None
        except TransportError as error:
            raise Unusable(f"token endpoint: {error}") from None
        return _bearer(answer, body)


_HEADERS: HeaderPairs = (
    (b"accept", b"application/json"),
    (b"accept-encoding", b"identity"),
    (b"anthropic-beta", EXCHANGE_BETA),
    (b"user-agent", f"daypass-proxy/{version('daypass-proxy')}".encode("ascii")),
    (b"content-type", b"application/json"),
)


def _body(who: Federation, assertion: str) -> bytes:
    fields = {
        "grant_type": GRANT_TYPE,
        "assertion": assertion,
        "federation_rule_id": who.rule,
        "organization_id": who.organization,
        "service_account_id": who.service_account,
        "workspace_id": who.workspace,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


async def _read(answer: Answer) -> bytes:
    pieces, size = list[bytes](), 0
    while piece := await answer.read():
        pieces.append(piece)
        size += len(piece)
        if size > _MOST_ANSWER_BYTES:
            raise Unusable("token endpoint answered with too much")
    return b"".join(pieces)


def _bearer(answer: Answer, body: bytes) -> Bearer:
    document: Any = None
    with suppress(ValueError, RecursionError):
        document = json.loads(body)
    if not isinstance(document, dict):
        document = {}
    if answer.status != 200:
        raise Unusable(_refusal(answer, document))
    kind = document.get("token_type")
    if kind is not None and str(kind).lower() != "bearer":
        raise Unusable("token endpoint gave a token that is no bearer")
    token, life = document.get("access_token"), document.get("expires_in")
    try:
        seconds = min(int(life), _MOST_SECONDS)
    except (TypeError, ValueError, OverflowError):
        seconds = 0
    if not isinstance(token, str) or not token or seconds <= 0:
        raise Unusable("token endpoint answered without a token or its end")
    return Bearer(Secret(token), float(seconds))


def _refusal(answer: Answer, document: dict[str, Any]) -> str:
    """Say why there is no bearer: of a foreign answer, which may hold anything, only its words."""
    said = document.get("error")
    word = said.get("type") if isinstance(said, dict) else said
    known = word if isinstance(word, str) and _WORD.fullmatch(word) else "no reason"
    named = header_text(answer.headers, b"request-id")
    where = f", request {named}" if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", named) else ""
    return f"token endpoint answered {answer.status} ({known}{where})"


@lru_cache(maxsize=64)
def with_bearer_beta(headers: HeaderPairs) -> HeaderPairs:
    """Return a call's headers with the flag of a bearer behind the client's own, those unchanged.

    The same call with a key goes up without it: `providers.anthropic` takes OAuth flags out.
    """
    place = max((n for n, (name, _) in enumerate(headers) if name == b"anthropic-beta"), default=-1)
    if place < 0:
        return (*headers, (b"anthropic-beta", BEARER_BETA))
    name, value = headers[place]
    longer = (name, value.rstrip(b", \t") + b"," + BEARER_BETA)
    return (*headers[:place], longer, *headers[place + 1 :])

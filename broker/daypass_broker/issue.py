"""`POST /v1/oauth/token`: the issuance path, from the top to the bottom of this file.

parse → attest → one transaction (standing, bucket, lineage, token, audit) → sign → render. Record
first, sign second: a row without a token is harmless, a token without a row cannot be revoked.
Callers whose signature did not verify learn nothing; nobody is ever answered 401 or 403, because
stock clients take those as a reason to come back (RFC 6749 §5.2 has 400 for all of it).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from daypass_broker import audit, db, lineage, oauth, standing, tokens
from daypass_broker.act import Act
from daypass_broker.attest import Attested, Attestor, attest, signed_sandbox
from daypass_broker.attest.launch import launch_attestor, renewal_attestor
from daypass_broker.keys import Purpose
from daypass_broker.lineage import Generation
from daypass_broker.oauth import OAuthError, TokenAnswer, TokenRequest
from daypass_broker.refused import Refused
from daypass_broker.services import Services
from daypass_broker.settings import Settings
from daypass_core.claims import Claims, RenewalClaims
from daypass_core.log import event, failed, get_logger, request_id
from daypass_core.verify import Reason, TokenRefused

log = get_logger(__name__)

Sleep = Callable[[float], Awaitable[object]]

# A cut-off lies in the past, so the next second is always late enough; a second wait covers two
# brokers whose clocks differ by less than one.
_WAITS = 2
_LONGEST_WAIT = 1.5
_LATER = 0.01  # timers may fire a little early

BODY_SECONDS = 10.0

_TOLD = {
    Reason.EXPIRED: "credential expired, as its sandbox has; register a new sandbox",
    Reason.NOT_YET_VALID: "credential was issued in the future; check the clocks of the brokers",
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """The decision to issue, on record; `renewal` goes along for a single-use sandbox."""

    claims: Claims
    renewal: RenewalClaims | None
    second: int


@dataclass(frozen=True, slots=True)
class TooSoon:
    """Nothing may be issued before this epoch second: a cut-off covers everything earlier."""

    second: int


class TokenEndpoint:
    """The token endpoint; `sleep` is how it waits for the next second."""

    def __init__(self, services: Services, *, sleep: Sleep = asyncio.sleep) -> None:
        self._services = services
        self._sleep = sleep
        keys, settings = services.keys, services.settings
        addressed = (settings.issuer, settings.broker_audience)
        self._attestors: tuple[Attestor, ...] = (
            launch_attestor(keys.public(Purpose.LAUNCH), *addressed),
            renewal_attestor(keys.public(Purpose.RENEWAL), *addressed),
        )

    async def post(self, request: Request) -> Response:
        """Answer one token request."""
        request_id.set(self._services.new_id("req"))
        try:
            body = await _read(request)
            content_type = request.headers.get("content-type", "")
            asked = oauth.parse(content_type, body, audience=self._services.settings.audience)
            rendered = oauth.render(await self.issue(asked, peer=self._peer(request)))
        except OAuthError as error:
            rendered = oauth.render_error(error)
        except db.StoreInDoubt as error:
            event(log, "store_in_doubt", level=logging.ERROR, cause=str(error))
            rendered = oauth.render_error(oauth.server_error())
        except db.StoreUnavailable:
            event(log, "store_unavailable", level=logging.ERROR)
            rendered = oauth.render_error(oauth.unavailable("the store does not answer"))
        except Exception as error:
            failed(log, "token_endpoint_failed", error)
            rendered = oauth.render_error(oauth.server_error())
        headers = {**rendered.headers, "request-id": request_id.get() or ""}
        return Response(rendered.body, rendered.status, headers)

    async def issue(self, asked: TokenRequest, *, peer: str = "") -> TokenAnswer:
        """Issue an access token for a credential that proves its sandbox.

        Raises OAuthError and db.StoreUnavailable.
        """
        attested = await self._attest(asked, peer)
        decision = await self._decide(asked, attested)
        if isinstance(decision, Refused):
            self._log_refused(decision.reason, attested.sandbox, peer)
            raise decision.as_error()
        answer = self._sign(decision, asked)
        event(
            log,
            "token_issued",
            sandbox=attested.sandbox,
            tenant=attested.tenant,
            token_id=decision.claims.token_id,
            peer=peer,
        )
        return answer

    async def _attest(self, asked: TokenRequest, peer: str) -> Attested:
        """Verify the credential without the store; what does not verify is told nothing."""
        token, now = asked.unverified_credential, self._services.clock.now()
        try:
            return attest(self._attestors, asked.presented, token, now)
        except TokenRefused as refused:
            if not refused.signature_verified:
                self._log_refused(refused.reason, None, peer)
                raise OAuthError("invalid_grant") from None
            sandbox = signed_sandbox(token)
            await asyncio.to_thread(self._count, sandbox, refused.reason)
            self._log_refused(refused.reason, sandbox, peer)
            told = _TOLD.get(refused.reason, "credential is not for this token endpoint")
            raise OAuthError("invalid_grant", told) from None

    async def _decide(self, asked: TokenRequest, attested: Attested) -> Recorded | Refused:
        for waits_left in range(_WAITS, -1, -1):
            decision = await asyncio.to_thread(self._record, asked, attested)
            if not isinstance(decision, TooSoon):
                return decision
            if waits_left:
                # Outside the transaction: a sleeper must not hold the store's write lock.
                wait = decision.second - self._services.clock.now() + _LATER
                await self._sleep(min(max(wait, 0.0), _LONGEST_WAIT))
        raise oauth.unavailable("a revocation is not over yet", retry_after=1)

    def _record(self, asked: TokenRequest, attested: Attested) -> Recorded | Refused | TooSoon:
        """Decide and record, in one transaction; a refusal is recorded as a count."""
        with db.begin(self._services.engine) as conn:
            decision = self._decide_in(conn, asked, attested)
            if isinstance(decision, Refused):
                at = int(self._services.clock.now() * 1000)
                audit.count(conn, attested.sandbox, f"token_refused:{decision.reason}", at)
            return decision

    def _decide_in(
        self, conn: sa.Connection, asked: TokenRequest, attested: Attested
    ) -> Recorded | Refused | TooSoon:
        services = self._services
        key_id = services.keys.active(Purpose.ACCESS).kid
        found = standing.look_up(conn, attested, key_id, int(services.clock.now()))
        # Read under the locks, as admin acts do, so that nothing recorded is older than what is
        # seen. Never before our own clock: what has expired stays expired if the store's goes back.
        now = max(services.now_ms(conn) / 1000, services.clock.now())
        if found is None:
            return Refused("unknown_sandbox", "sandbox is not known here")
        refused = _judge_request(asked, attested) or standing.judge(found, attested, now)
        if refused is not None:
            return refused
        if found.ended("kid", key_id):
            event(log, "signing_key_revoked", level=logging.ERROR, kid=key_id)
            raise oauth.unavailable(
                "the signing key is revoked; restart the broker: it makes a new key"
            )
        if found.cut_off is not None and int(now) <= found.cut_off:
            return TooSoon(found.cut_off + 1)
        act = Act(conn, attested.sandbox, int(now * 1000), services.new_id, request_id.get())
        if not tokens.take_from_bucket(act, found.sandbox):
            told = "this sandbox asks too often; wait a second, and share one token"
            return Refused("slow_down", told, error="slow_down", retry_after=1)
        generation = _advance(act, found.sandbox, attested)
        if isinstance(generation, Refused):
            return generation
        claims = tokens.choose_or_record(act, found, services.settings, key_id)
        if generation is None:
            return Recorded(claims, None, act.second)
        renewal = _renewal(claims, generation, services.settings, act.second, found.ends_at)
        return Recorded(claims, renewal, act.second)

    def _sign(self, recorded: Recorded, asked: TokenRequest) -> TokenAnswer:
        signer = self._services.signer
        renewal = recorded.renewal
        return TokenAnswer(
            access_token=signer.sign_access(recorded.claims),
            expires_in=recorded.claims.expires_at - recorded.second,
            refresh_token=None if renewal is None else signer.sign_renewal(renewal),
            exchanged=asked.grant_type == oauth.TOKEN_EXCHANGE,
        )

    def _count(self, sandbox: str, reason: str) -> None:
        with db.begin(self._services.engine) as conn:
            at = int(self._services.clock.now() * 1000)
            audit.count(conn, sandbox, f"token_refused:{reason}", at)

    def _log_refused(self, reason: str, sandbox: str | None, peer: str) -> None:
        event(log, "token_refused", reason=str(reason), sandbox=sandbox, peer=peer)

    def _peer(self, request: Request) -> str:
        """Return the sandbox's address as the proxy saw it, else the connection's own."""
        # Over the Unix socket only the proxy can speak; over TCP anybody could set the header.
        if self._services.settings.internal.is_unix:
            return request.headers.get("x-daypass-peer", "")
        return request.client.host if request.client else ""


async def _read(request: Request) -> bytes:
    """Read the body, at most MAX_BODY_BYTES of it and for BODY_SECONDS. Raises OAuthError."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > oauth.MAX_BODY_BYTES:
                    raise oauth.too_large()
    except (TimeoutError, ClientDisconnect):
        raise OAuthError("invalid_request", "body did not arrive") from None
    return bytes(body)


def _judge_request(asked: TokenRequest, attested: Attested) -> Refused | None:
    """Compare what the client says it is with what its credential proves."""
    rule = asked.federation_rule_id
    if rule is not None and rule != oauth.FEDERATION_RULE_ID:
        told = f"unknown federation_rule_id; set it to {oauth.FEDERATION_RULE_ID}"
        return Refused("unknown_rule", told)
    if asked.organization_id is not None and asked.organization_id != attested.tenant:
        told = f"organization_id is not the credential's tenant; set it to {attested.tenant}"
        return Refused("wrong_organization", told)
    return None


def _advance(act: Act, sandbox: sa.Row[Any], attested: Attested) -> Generation | Refused | None:
    """Move the lineage on; None for a reusable sandbox, which has none."""
    if attested.lineage is not None:
        return lineage.advance(act, sandbox, Generation(attested.lineage, attested.generation))
    if sandbox.launch == "single_use":
        return lineage.start(act, sandbox)
    return None


def _renewal(
    claims: Claims, generation: Generation, settings: Settings, second: int, ends_at: int
) -> RenewalClaims:
    return RenewalClaims(
        issuer=settings.issuer,
        audience=settings.broker_audience,
        subject=claims.subject,
        tenant=claims.tenant,
        sandbox=claims.sandbox,
        # Named by what it stands for: given out twice it is the same credential.
        token_id=f"{generation.lineage}-{generation.number}",
        issued_at=second,
        expires_at=ends_at,
        lineage=generation.lineage,
        generation=generation.number,
    )

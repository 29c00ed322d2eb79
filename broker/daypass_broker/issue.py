"""`POST /v1/oauth/token`: the issuance path, from the top to the bottom of this file.

parse → prove → one transaction (subject, standing, source, bucket; then a token or a narrower one,
audit) → sign → render. Record first, sign second: a row without a token is harmless, a token
without a row cannot be revoked. Callers whose signature did not verify learn nothing; nobody is
ever answered 401 or 403, because stock clients take those as a reason to come back (RFC 6749 §5.2
has 400 for all of it). What a request proves is `proof`'s, where a caller stands is `standing`'s,
and what is answered to a decision that is on record `recorded`'s.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import sqlalchemy as sa
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from daypass_broker import (
    audit,
    clone,
    db,
    delegate,
    lineage,
    oauth,
    recorded,
    revocation,
    source,
    standing,
    token_request,
    tokens,
)
from daypass_broker.act import Act
from daypass_broker.attest import Attested
from daypass_broker.attest.federation import Federation, Workload
from daypass_broker.enrol import enrol
from daypass_broker.failures import Failures
from daypass_broker.keys import Purpose, SigningUnavailable
from daypass_broker.lineage import Copy, Generation
from daypass_broker.oauth import OAuthError, TokenAnswer
from daypass_broker.proof import Proof, Prover, refusal_to_tell
from daypass_broker.purchase import Purchase
from daypass_broker.recorded import Recorded
from daypass_broker.refused import Refused, TooSoon
from daypass_broker.services import Services
from daypass_broker.settings import Settings
from daypass_broker.standing import Standing, Subject
from daypass_broker.token_request import TokenRequest
from daypass_core.claims import Claims, RenewalClaims
from daypass_core.log import event, failed, get_logger, request_id
from daypass_core.source import inside
from daypass_core.verify import TokenRefused

log = get_logger(__name__)

Sleep = Callable[[float], Awaitable[object]]

# A cut-off lies in the past, so the next second is always late enough; a second wait covers two
# brokers whose clocks differ by less than one.
_WAITS = 2
_LONGEST_WAIT = 1.5
_LATER = 0.01  # timers may fire a little early

BODY_SECONDS = 10.0
_REQUEST_ID = re.compile(r"req_[a-z2-7]{26}")
_SHORT_GRANT_TYPES = {
    oauth.JWT_BEARER: "jwt_bearer",
    oauth.REFRESH_TOKEN: "refresh_token",
    oauth.TOKEN_EXCHANGE: "token_exchange",
}


class TokenEndpoint:
    """The token endpoint; `sleep` is how it waits for the next second."""

    def __init__(
        self,
        services: Services,
        federation: Federation | None = None,
        *,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._services = services
        self._sleep = sleep
        self._prover = Prover(services, federation or Federation(services))
        self._failures = Failures()

    async def post(self, request: Request) -> Response:
        """Answer one token request."""
        request_id.set(self._request_id(request))
        began, grant_type, outcome = time.monotonic(), "unknown", "issued"
        try:
            body = await _read(request)
            audience = self._services.settings.audience
            content_type = request.headers.get("content-type", "")
            asked = token_request.parse(content_type, body, audience=audience)
            grant_type = _SHORT_GRANT_TYPES[asked.grant_type]
            rendered = oauth.render(await self.issue(asked, peer=self._peer(request)))
        except Exception as error:
            refused = _as_error(error)
            outcome, rendered = refused.error, oauth.render_error(refused)
        self._services.metrics.token_answered(grant_type, outcome, time.monotonic() - began)
        headers = {**rendered.headers, "request-id": request_id.get() or ""}
        return Response(rendered.body, rendered.status, headers)

    async def issue(self, asked: TokenRequest, *, peer: str = "") -> TokenAnswer:
        """Issue an access token for a credential that proves who asks.

        Raises OAuthError, SigningUnavailable and db.StoreUnavailable.
        """
        proof = await self._prove(asked, peer)
        decision = await self._decide(asked, proof, peer)
        if isinstance(decision, Refused):
            sandbox = _sandbox_of(proof)
            self._log_refused(decision.reason, sandbox, peer)
            if sandbox is not None:
                await self._services.threads.run(clone.end_both, self._services, sandbox, decision)
            raise decision.as_error()
        answer = await recorded.answer(
            decision, asked.grant_type, self._services.signer, self._sleep
        )
        if answer.refresh_token is not None:
            self._failures.verified(answer.refresh_token)
        event(
            log,
            "token_issued",
            sandbox=decision.claims.sandbox,
            tenant=decision.claims.tenant,
            token_id=decision.claims.token_id,
            peer=peer,
        )
        return answer

    async def _prove(self, asked: TokenRequest, peer: str) -> Proof:
        """Verify the credential without the store; what does not verify is told nothing."""
        now, credential = self._services.clock.now(), asked.unverified_credential
        if not self._failures.allows(peer, credential, now):
            self._log_refused("too_many_failures", None, peer)
            raise OAuthError("slow_down", retry_after=1)
        try:
            proof = await self._prover.prove(asked, now)
        except TokenRefused as refused:
            self._failures.failed(peer, credential, now)
            told, subject = refusal_to_tell(asked, refused)
            if subject is not None:
                await self._services.threads.run(self._count, subject, refused.reason)
            self._log_refused(refused.reason, subject, peer, refused.detail)
            raise OAuthError("invalid_grant", told) from None
        self._failures.verified(credential)
        return proof

    async def _decide(self, asked: TokenRequest, proof: Proof, peer: str) -> Recorded | Refused:
        for waits_left in range(_WAITS, -1, -1):
            decision = await self._services.threads.run(self._record, asked, proof, peer)
            if not isinstance(decision, TooSoon):
                return decision
            if waits_left:
                # Outside the transaction: a sleeper must not hold the store's write lock.
                wait = decision.second - self._services.clock.now() + _LATER
                await self._sleep(min(max(wait, 0.0), _LONGEST_WAIT))
        raise oauth.unavailable("a revocation is not over yet", retry_after=1)

    def _record(self, asked: TokenRequest, proof: Proof, peer: str) -> Recorded | Refused | TooSoon:
        """Decide and record, in one transaction; a refusal is recorded as a count."""
        # First: what works once must not be spent on an answer that nobody can sign.
        self._services.signer.check(*_kinds(proof))
        decision: Recorded | Refused | TooSoon | None = None
        try:
            with db.begin(self._services.engine) as conn:
                # The first lock: what a revocation ends is either seen here or issued after it.
                revocation.share_version(conn)
                subject = self._subject(conn, proof)
                decision = (
                    subject
                    if isinstance(subject, Refused | TooSoon)
                    else self._decide_in(conn, asked, proof, subject, peer)
                )
                if isinstance(decision, Refused):
                    at = int(self._services.clock.now() * 1000)
                    about = subject.sandbox if isinstance(subject, Subject) else _rule_of(proof)
                    audit.count(conn, about, f"token_refused:{decision.reason}", at)
                return decision
        except db.StoreInDoubt as error:
            if isinstance(decision, Recorded) and decision.may_be_repeated:
                # Nothing is spent by it: a row more or less is harmless, so it may be asked again.
                raise db.StoreUnavailable(str(error)) from error
            raise

    def _subject(self, conn: sa.Connection, proof: Proof) -> Subject | Refused | TooSoon:
        """Say whose rows a proof is about; a workload gets its sandbox here, at its first time."""
        if isinstance(proof, Workload):
            act = self._act(conn, proof.rule.id, self._now(conn))
            sandbox = enrol(act, proof, self._services)
            if isinstance(sandbox, Refused | TooSoon):
                return sandbox
            return Subject(proof.rule.tenant, sandbox, until=proof.expires_at)
        grants = proof.grants if isinstance(proof, Claims) else ()
        named = (proof.key_id,), (proof.token_id,)
        return Subject(proof.tenant, proof.sandbox, grants, *named)

    def _decide_in(
        self,
        conn: sa.Connection,
        asked: TokenRequest,
        proof: Proof,
        subject: Subject,
        peer: str,
    ) -> Recorded | Refused | TooSoon:
        services = self._services
        key_id = services.keys.active(Purpose.ACCESS).kid
        found = standing.look_up(conn, subject, key_id, int(services.clock.now()))
        now = self._now(conn)
        if found is None:
            return Refused("unknown_sandbox", "sandbox is not known here")
        refused = _judge_request(asked, subject) or standing.judge(found, now)
        if refused is None and isinstance(proof, Attested):
            refused = standing.judge_credential(found, proof, now)
        if refused is not None:
            return refused
        if found.ended("kid", key_id):
            event(log, "signing_key_revoked", level=logging.ERROR, kid=key_id)
            raise oauth.unavailable("the signing key is revoked, and no other is in use yet")
        if found.cut_off is not None and int(now) <= found.cut_off:
            return TooSoon(found.cut_off + 1)
        act = self._act(conn, subject.sandbox, now)
        networks = source.judge(act, found.sandbox, peer)
        if isinstance(networks, Refused):
            return networks
        terms = tokens.Terms(services.settings, key_id, networks)
        if isinstance(proof, Claims):
            wanted = asked.purchase or Purchase()
            bought = delegate.buy(act, found, proof, wanted, terms, peer)
            return bought if isinstance(bought, Refused) else Recorded(bought, None, act.second)
        issued = _issue(act, found, proof, terms, peer)
        if not isinstance(issued, Refused):
            source.bind(act, found.sandbox, networks)
        return issued

    def _act(self, conn: sa.Connection, actor: str, now: float) -> Act:
        return Act(conn, actor, int(now * 1000), self._services.new_id, request_id.get())

    def _now(self, conn: sa.Connection) -> float:
        """Return the time for what is recorded now, in epoch seconds.

        Read under the locks, as admin acts do, so that nothing recorded is older than what is seen.
        Never before our own clock: what has expired stays expired if the store's goes back.
        """
        return max(self._services.now_ms(conn) / 1000, self._services.clock.now())

    def _count(self, subject: str, reason: str) -> None:
        with db.begin(self._services.engine) as conn:
            at = int(self._services.clock.now() * 1000)
            audit.count(conn, subject, f"token_refused:{reason}", at)

    def _log_refused(self, reason: str, subject: str | None, peer: str, detail: str = "") -> None:
        self._services.metrics.token_refused(str(reason))
        event(log, "token_refused", reason=str(reason), sandbox=subject, peer=peer, detail=detail)

    def _peer(self, request: Request) -> str:
        """Return the sandbox's address as the proxy saw it, else the connection's own."""
        if self._believes(request):
            return request.headers.get("x-daypass-peer", "")
        return request.client.host if request.client else ""

    def _request_id(self, request: Request) -> str:
        """Return the id that the proxy's log line of this exchange has, else one of our own."""
        told = request.headers.get("x-daypass-request-id", "")
        if _REQUEST_ID.fullmatch(told) and self._believes(request):
            return told
        return self._services.new_id("req")

    def _believes(self, request: Request) -> bool:
        # Over the Unix socket only the proxy can speak; over TCP anybody could set the headers, and
        # only from where the settings say that proxies are are they believed.
        settings, host = self._services.settings, request.client.host if request.client else ""
        return settings.internal.is_unix or inside(settings.trusted_proxies, host)


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


def _as_error(error: Exception) -> OAuthError:
    """Return what is answered when something is raised, and log what is ours."""
    if isinstance(error, OAuthError):
        return error
    if isinstance(error, SigningUnavailable):
        event(log, "signing_unavailable", level=logging.ERROR)
        return oauth.unavailable(error.told, retry_after=error.retry_after)
    if isinstance(error, db.StoreInDoubt):
        event(log, "store_in_doubt", level=logging.ERROR, cause=str(error))
        return oauth.server_error()
    if isinstance(error, db.StoreUnavailable):
        event(log, "store_unavailable", level=logging.ERROR)
        return oauth.unavailable("the store does not answer")
    failed(log, "token_endpoint_failed", error)
    return oauth.server_error()


def _kinds(proof: Proof) -> tuple[Purpose, ...]:
    """Return what will have to be signed for who proves this."""
    if isinstance(proof, Attested) and proof.works_once:
        return Purpose.ACCESS, Purpose.RENEWAL
    return (Purpose.ACCESS,)


def _sandbox_of(proof: Proof) -> str | None:
    return None if isinstance(proof, Workload) else proof.sandbox


def _rule_of(proof: Proof) -> str:
    return proof.rule.id if isinstance(proof, Workload) else proof.sandbox


def _judge_request(asked: TokenRequest, subject: Subject) -> Refused | None:
    """Compare what the client says it is with what its credential proves."""
    if asked.organization_id is not None and asked.organization_id != subject.tenant:
        told = f"organization_id is not the credential's tenant; set it to {subject.tenant}"
        return Refused("wrong_organization", told)
    return None


def _issue(
    act: Act, found: Standing, proof: Attested | Workload, terms: tokens.Terms, peer: str
) -> Recorded | Refused:
    """Record a token of the sandbox itself, and the next generation where it has a lineage."""
    if not tokens.take_from_bucket(act, found.sandbox):
        told = "this sandbox asks too often; wait a second, and share one token"
        return Refused("slow_down", told, error="slow_down", retry_after=1)
    generation = _advance(act, found.sandbox, proof)
    if isinstance(generation, Refused):
        return generation
    if isinstance(generation, Copy):
        adopted = clone.adopt(act, found, terms, peer)
        return adopted if isinstance(adopted, Refused) else Recorded(adopted, None, act.second)
    claims = tokens.choose_or_record(act, found, terms)
    if isinstance(claims, Refused):
        return claims
    if generation is None:
        return Recorded(claims, None, act.second)
    renewal = _renewal(claims, generation, terms.settings, act.second, found.ends_at)
    return Recorded(claims, renewal, act.second)


def _advance(
    act: Act, sandbox: sa.Row[Any], proof: Attested | Workload
) -> Generation | Refused | Copy | None:
    """Move the lineage on; None for who has none: a reusable credential, a workload's assertion."""
    if isinstance(proof, Attested) and proof.lineage is not None:
        return lineage.advance(act, sandbox, Generation(proof.lineage, proof.generation))
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

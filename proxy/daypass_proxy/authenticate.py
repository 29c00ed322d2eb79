"""Who is calling: one credential, chosen by position and never by validity, turned into Claims.

Runs before the body is read. A token is verified once and then known by its SHA-256 until it
expires; expiry, revocation and source are checked at every use. Answers are constant texts: nothing
of the credential, and no reason beyond what the client can act on, comes back (attack rows 42, 22).
"""

import hashlib
import re
from collections.abc import Callable
from itertools import islice
from typing import NoReturn

from daypass_core.claims import Claims
from daypass_core.clock import Clock
from daypass_core.jwks import PublicKeys
from daypass_core.log import event, get_logger
from daypass_core.problem import Code, Problem, Refusal, refuse
from daypass_core.revocation import Verdict
from daypass_core.source import inside
from daypass_core.verify import LEEWAY, Reason, TokenRefused, unverified_key_id, verify_access
from daypass_proxy.exchange import UNIX_PEER, Exchange
from daypass_proxy.head import Head
from daypass_proxy.jwks_cache import JwksCache
from daypass_proxy.revocations import RevocationView

log = get_logger(__name__)

POSITIONS = (b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key")
MAX_CACHED = 10_000
FORGET_SECONDS = 60
# A check takes 0.1 ms: this many are 5 % of a core. Behind a shared address all sandboxes are one
# peer, so with a lower limit one of them could keep the others' new tokens out.
FAILURES_PER_SECOND = 500.0
MAX_PEERS = 10_000
# Begins where a word begins: tried at each "eyJ" of one long word, it would take quadratic time.
_JWT_LIKE = re.compile(rb"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.")


class Authenticator:
    """Verifies access tokens and remembers those that were good."""

    def __init__(
        self,
        *,
        keys: JwksCache,
        view: RevocationView,
        count: Callable[[str, str], None],
        issuer: str,
        audience: str,
        clock: Clock,
    ) -> None:
        """`count(sandbox, kind)` notes an incident of a known sandbox."""
        self._keys = keys
        self._view = view
        self._count = count
        self._issuer = issuer
        self._audience = audience
        self._clock = clock
        self._cache: dict[bytes, Claims] = {}
        self._failures = FailureLimiter(clock)
        self.checks = {"known": 0, "verified": 0, "refused": 0}
        """How often a token was known from before, found good, found bad; for the metrics."""

    async def authenticate(self, exchange: Exchange) -> Claims:
        """Return the claims of the caller's token; raises Refusal (400, 401, 429, 503)."""
        digest, foreign = exchange.head.once(_credential)
        self._view.check_fresh()
        claims = self._known(digest)
        if claims is None:
            unverified, _ = pick_credential(exchange.head)
            claims = await self._verify(unverified, exchange.peer)
            self._remember(digest, claims)
        verdict = self._view.verdict(claims)
        if verdict is Verdict.TOKEN_ENDED:
            # One token ended, not its sandbox: answered like expiry, so that clients renew.
            raise refuse(Code.TOKEN_EXPIRED)
        if verdict is not None:
            raise refuse(Code.TOKEN_REVOKED)
        if claims.source and not inside(claims.source, exchange.peer):
            self._refuse_foreign(claims, exchange.peer)
        for name, length in foreign:
            header = name.decode("ascii")
            event(log, "foreign_credential", sandbox=claims.sandbox, header=header, length=length)
            self._count(claims.sandbox, f"foreign_credential:{header}")
        return claims

    def _refuse_foreign(self, claims: Claims, peer: str) -> NoReturn:
        """Refuse a token that is not where it belongs: somebody has copied it."""
        event(log, "foreign_source", sandbox=claims.sandbox, peer=peer, token_id=claims.token_id)
        self._count(claims.sandbox, Code.FOREIGN_SOURCE)
        raise refuse(Code.FOREIGN_SOURCE)

    def _known(self, digest: bytes) -> Claims | None:
        """Return the claims of a token that was verified before; raises Refusal once expired."""
        claims = self._cache.get(digest)
        if claims is not None and self._clock.now() >= claims.expires_at + LEEWAY:
            del self._cache[digest]
            raise refuse(Code.TOKEN_EXPIRED)
        if claims is not None:
            self.checks["known"] += 1
        return claims

    def _remember(self, digest: bytes, claims: Claims) -> None:
        self.checks["verified"] += 1
        if len(self._cache) >= MAX_CACHED:
            self._cache.pop(next(iter(self._cache)))
        self._cache[digest] = claims
        self._forget_expired()

    def _forget_expired(self) -> None:
        """Let the oldest go that expired a minute ago, two for each that comes: none stays long.

        A client that still has one is answered the same, after a verification.
        """
        long_ago = self._clock.now() - LEEWAY - FORGET_SECONDS
        for digest in list(islice(self._cache, 2)):
            if self._cache[digest].expires_at <= long_ago:
                del self._cache[digest]

    async def _verify(self, unverified: bytes, peer: str) -> Claims:
        if not self._failures.may_try(peer):
            raise Refusal(
                Problem(Code.RATE_LIMITED, 429, "too many refused tokens from here", retry_after=1)
            )
        token = unverified.decode("latin-1")
        keys = await self._keys.keys_for(unverified_key_id(token))
        if keys is None:
            raise refuse(Code.STORE_UNAVAILABLE, "tokens cannot be checked right now")
        try:
            try:
                return self._checked(token, keys)
            except TokenRefused as refused:
                if refused.reason is not Reason.NOT_YET_VALID:
                    raise
                # The broker has signed it, so it is our clock that is behind: ask for the time.
                await self._keys.renew()
                return self._checked(token, keys)
        except TokenRefused as refused:
            self.checks["refused"] += 1
            if refused.reason is Reason.BAD_SIGNATURE:
                # What fails on its form cost nothing, and must not lock others of this peer out.
                self._failures.failed(peer)
            event(log, "token_refused", peer=peer, reason=refused.reason, length=len(unverified))
            if refused.reason is Reason.NOT_YET_VALID:
                raise refuse(Code.STORE_UNAVAILABLE, "the token is ahead of our clock") from None
            expired = refused.reason is Reason.EXPIRED
            raise refuse(Code.TOKEN_EXPIRED if expired else Code.INVALID_TOKEN) from None

    def _checked(self, token: str, keys: PublicKeys) -> Claims:
        now, issuer, audience = self._clock.now(), self._issuer, self._audience
        return verify_access(token, keys, issuer=issuer, audience=audience, now=now)


def _credential(head: Head) -> tuple[bytes, list[tuple[bytes, int]]]:
    """Return what `pick_credential` does, with the SHA-256 of the credential in its place.

    The whole token is hashed: a prefix or part of one would let tokens pass for others.
    """
    unverified, foreign = pick_credential(head)
    return hashlib.sha256(unverified).digest(), foreign


def pick_credential(head: Head) -> tuple[bytes, list[tuple[bytes, int]]]:
    """Return the caller's credential, and name and length of every different other one.

    The first header by POSITIONS is the credential, good or bad (attack rows 1, 23; case B38).
    Raises Refusal: 400 for one header sent twice or a second token, 401 for none or an empty one.
    """
    header = head.header
    found = [(name, value) for name in POSITIONS if (value := header(name)) is not None]
    if not found:
        raise refuse(Code.MISSING_TOKEN)
    chosen = _bare(*found[0])
    if not chosen:
        raise refuse(Code.INVALID_TOKEN)
    if len(found) == 1:
        return chosen, []
    foreign: list[tuple[bytes, int]] = []
    for name, value in found[1:]:
        other = _bare(name, value) or value.strip()
        if not other or other == chosen:
            continue
        if _JWT_LIKE.search(other):
            raise refuse(
                Code.INVALID_REQUEST,
                f"two different tokens were sent, in {found[0][0].decode()} and {name.decode()};"
                " send one",
            )
        foreign.append((name, len(other)))
    return chosen, foreign


def _bare(name: bytes, value: bytes) -> bytes:
    """Return the credential without its scheme, b"" when there is none (RFC 6750 §2.1)."""
    value = value.strip()
    if name != b"authorization":
        return value
    scheme, _, rest = value.partition(b" ")
    return rest.strip() if scheme.lower() == b"bearer" else b""


class FailureLimiter:
    """A bucket of failures per peer: full at FAILURES_PER_SECOND, refilled at that rate.

    It gates only signature checks of unseen tokens, so callers with a known token always pass.
    Peers on the Unix socket cannot be told apart, so one sandbox would lock out the others there.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # peer: (level, monotonic second)

    def may_try(self, peer: str) -> bool:
        """Say whether this peer has a failure left."""
        return peer == UNIX_PEER or self._level(peer) >= 1.0

    def failed(self, peer: str) -> None:
        """Take one failure from the peer's bucket."""
        level = max(self._level(peer) - 1.0, 0.0)
        self._buckets.pop(peer, None)  # re-inserted last, so that the oldest is evicted first
        if len(self._buckets) >= MAX_PEERS:
            self._buckets.pop(next(iter(self._buckets)))
        self._buckets[peer] = (level, self._clock.monotonic())

    def _level(self, peer: str) -> float:
        level, at = self._buckets.get(peer, (FAILURES_PER_SECOND, 0.0))
        refilled = level + (self._clock.monotonic() - at) * FAILURES_PER_SECOND
        return min(refilled, FAILURES_PER_SECOND)

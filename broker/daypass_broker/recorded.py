"""What `issue` has put on record, and the answer that is signed for it afterwards.

A row without a token is harmless, and who asks again gets another one. But a credential that works
once is spent by then, and a slice is set aside: there a signature that cannot be had is asked for
again for a moment, and when there is none the answer is no 503. That would say that nothing was
done, and the proxy would come again with what would then pass for a copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from daypass_broker import oauth
from daypass_broker.keys import SigningUnavailable
from daypass_broker.oauth import OAuthError, TokenAnswer
from daypass_broker.signing import Signer
from daypass_core.claims import Claims, RenewalClaims
from daypass_core.log import event, get_logger

log = get_logger(__name__)

ATTEMPTS = 3
PAUSE_SECONDS = 1.05
"""Between two of them; longer than `transit.PAUSE_SECONDS`, while which nobody asks."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The decision to issue, on record; `renewal` goes along for a single-use sandbox.

    `second` is when it was made, in epoch seconds.
    """

    claims: Claims
    renewal: RenewalClaims | None
    second: int

    @property
    def may_be_repeated(self) -> bool:
        """Whether nothing is spent, so that the same request may come again."""
        return self.renewal is None and len(self.claims.grants) == 1


async def answer(
    recorded: Recorded,
    grant_type: str,
    signer: Signer,
    sleep: Callable[[float], Awaitable[object]],
) -> TokenAnswer:
    """Sign what is on record.

    Raises SigningUnavailable when that cannot be done, and OAuthError (server_error) where the
    request must not be repeated for that.
    """
    for attempts_left in range(ATTEMPTS - 1, -1, -1):
        try:
            if signer.remote:
                return await asyncio.to_thread(_sign, recorded, grant_type, signer)
            return _sign(recorded, grant_type, signer)
        except SigningUnavailable as error:
            if recorded.may_be_repeated:
                raise
            reason = error.told
        if attempts_left:
            await sleep(PAUSE_SECONDS)
    event(
        log,
        "token_not_signed",
        level=logging.ERROR,
        sandbox=recorded.claims.sandbox,
        token_id=recorded.claims.token_id,
        reason=reason,
    )
    told = "the token is on record, but could not be signed; ask for another one"
    raise OAuthError("server_error", told, status=500)


def _sign(recorded: Recorded, grant_type: str, signer: Signer) -> TokenAnswer:
    renewal = recorded.renewal
    return TokenAnswer(
        access_token=signer.sign_access(recorded.claims),
        expires_in=recorded.claims.expires_at - recorded.second,
        refresh_token=None if renewal is None else signer.sign_renewal(renewal),
        exchanged=grant_type == oauth.TOKEN_EXCHANGE,
    )

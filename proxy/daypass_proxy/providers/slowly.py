"""Reads a body whose check would hold the event loop: in another process, or else a thread.

Asked by the providers for every body that is large or holds much; `checkers.pool` is what answers.
"""

import asyncio
from functools import partial

from daypass_core.scope import Detail
from daypass_proxy.body.spool import Spool
from daypass_proxy.exchange import ClientGone, Exchange
from daypass_proxy.providers import Asked, BodyChecker, Check


async def check_slowly(
    exchange: Exchange,
    body: bytes | Spool,
    detail: Detail,
    sandbox: str,
    *,
    dialect: str,
    check: Check,
    elsewhere: BodyChecker | None,
    max_tokens_needed: bool = False,
) -> tuple[bytes, Asked]:
    """Return the body's bytes and what it asks for; `check` is what `dialect` names.

    Without `elsewhere` a thread does it. Raises Refusal (400, 429, 503), ClientGone.
    """
    if elsewhere is None:
        whole = body if isinstance(body, bytes) else await body.take()
        ask = partial(check, whole, detail, max_tokens_needed=max_tokens_needed)
        return whole, await asyncio.to_thread(ask)
    spool = Spool.of(body) if isinstance(body, bytes) else body
    asking = asyncio.ensure_future(
        elsewhere.check(sandbox, dialect, spool, detail, max_tokens_needed=max_tokens_needed)
    )

    def give_up() -> None:
        asking.cancel()

    # Who hangs up gives its place in the queue to others.
    exchange.when_gone(give_up)
    try:
        asked = await asking
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ClientGone from None
    return (body if isinstance(body, bytes) else await spool.take()), asked

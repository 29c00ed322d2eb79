"""The live-call registry: a cut reaches the waiting task once, as CallCut and nothing else."""

import asyncio
import contextlib

import pytest

from daypass_core.revocation import Revocation, RevocationSet
from daypass_proxy.streams import CallCut, CutReason, LiveCall, LiveCalls
from tests.support import make_claims


def live_call() -> LiveCall:
    """Return a call that nothing has happened to."""
    return LiveCall("req_1", make_claims())


async def wait_inside(call: LiveCall, inside: asyncio.Event, forever: asyncio.Event) -> str:
    """Wait in an interruptible block; return how it ended."""
    try:
        async with call.interruptible():
            inside.set()
            await forever.wait()
    except CallCut as cut:
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return cut.reason
    return "completed"


async def test_cut_while_waiting() -> None:
    """A cut ends the wait, surfaces as CallCut with its reason, and leaves no cancellation."""
    call, inside = live_call(), asyncio.Event()
    task = asyncio.create_task(wait_inside(call, inside, asyncio.Event()))
    await inside.wait()
    assert call.cut(CutReason.REVOKED)
    assert await task == CutReason.REVOKED


async def test_cut_before_entering() -> None:
    """A call that was cut before cannot be waited in."""
    call = live_call()
    call.cut(CutReason.STALE)
    with pytest.raises(CallCut) as caught:
        async with call.interruptible():
            raise AssertionError("entered")
    assert caught.value.reason is CutReason.STALE


async def test_first_reason_wins() -> None:
    """A second cut changes nothing and does not cancel a second time."""
    call, inside = live_call(), asyncio.Event()
    task = asyncio.create_task(wait_inside(call, inside, asyncio.Event()))
    await inside.wait()
    assert call.cut(CutReason.CLIENT_GONE)
    assert not call.cut(CutReason.REVOKED)
    assert await task == CutReason.CLIENT_GONE


async def test_cut_racing_completion() -> None:
    """A cut in the tick in which the wait is over still surfaces as CallCut inside the block."""
    call, inside, done = live_call(), asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(wait_inside(call, inside, done))
    await inside.wait()
    done.set()
    call.cut(CutReason.REVOKED)
    assert await task == CutReason.REVOKED


async def test_cut_racing_failure() -> None:
    """A cut in the tick in which the awaited thing fails does not leave a stray cancellation."""
    call, inside = live_call(), asyncio.Event()
    result: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait() -> str:
        try:
            async with call.interruptible():
                inside.set()
                await result
        except (CallCut, OSError) as error:
            await asyncio.sleep(0)  # a stray cancellation would strike here
            return type(error).__name__
        return "completed"

    task = asyncio.create_task(wait())
    await inside.wait()
    result.set_exception(OSError("gone"))
    call.cut(CutReason.REVOKED)
    assert await task == "CallCut"


async def test_cut_after_leaving() -> None:
    """A cut between two blocks strikes at the next one, not at the code between them."""
    call = live_call()
    async with call.interruptible():
        await asyncio.sleep(0)
    call.cut(CutReason.REVOKED)
    await asyncio.sleep(0)
    with pytest.raises(CallCut):
        async with call.interruptible():
            raise AssertionError("entered")


async def test_task_that_cuts_itself() -> None:
    """Code inside the block that cuts its own call runs on and meets the cut on re-entry."""
    call = live_call()
    async with call.interruptible():
        call.cut(CutReason.REVOKED)
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(CallCut):
        await call.interruptible().__aenter__()


@pytest.mark.parametrize("cut_first", [True, False])
async def test_outer_cancellation_wins(cut_first: bool) -> None:
    """A cancellation from outside passes through, alone or together with a cut."""
    call, inside = live_call(), asyncio.Event()
    task = asyncio.create_task(wait_inside(call, inside, asyncio.Event()))
    await inside.wait()
    if cut_first:
        call.cut(CutReason.REVOKED)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_inside_a_timeout() -> None:
    """A cut inside asyncio.timeout is a cut, and the timeout's own expiry is still a timeout."""
    call, inside = live_call(), asyncio.Event()

    async def wait() -> str:
        try:
            async with call.interruptible(), asyncio.timeout(10):
                inside.set()
                await asyncio.Event().wait()
        except CallCut:
            return "cut"
        return "completed"

    task = asyncio.create_task(wait())
    await inside.wait()
    call.cut(CutReason.REVOKED)
    assert await task == "cut"
    with pytest.raises(TimeoutError):
        async with live_call().interruptible(), asyncio.timeout(0):
            await asyncio.Event().wait()


async def test_one_block_at_a_time() -> None:
    """Two blocks of one call at once are a mistake of ours."""
    call = live_call()
    async with call.interruptible():
        with pytest.raises(RuntimeError, match="one place at a time"):
            await call.interruptible().__aenter__()


async def test_registered_while_the_block_runs() -> None:
    """A call is registered exactly as long as its block runs, whatever ends it."""
    calls = LiveCalls()
    counts = []
    with contextlib.suppress(OSError), calls.enter("req_1", make_claims()):
        counts.append(len(calls))
        raise OSError("end")
    assert [*counts, len(calls)] == [1, 0]


async def test_call_id_is_used_once() -> None:
    """The same id cannot be live twice, and the refusal leaves the first one registered."""
    calls = LiveCalls()
    with calls.enter("req_1", make_claims()):
        with (
            pytest.raises(ValueError, match="registered already"),
            calls.enter("req_1", make_claims()),
        ):
            pass
        assert len(calls) == 1


async def test_longest_call() -> None:
    """A call past its longest time is cut with TOO_LONG; one that ended before is left alone."""
    calls, inside = LiveCalls(), asyncio.Event()
    with calls.enter("req_1", make_claims(), longest=0.0) as call:
        assert await wait_inside(call, inside, asyncio.Event()) == CutReason.TOO_LONG
    with calls.enter("req_2", make_claims(), longest=0.0) as call:
        pass
    await asyncio.sleep(0)
    assert call.reason is None


async def test_cut_when_something_happens() -> None:
    """What is watched cuts the call when it ends, and is let go of with the block."""
    call, happens, never = live_call(), asyncio.Event(), asyncio.Event()

    async def wait_for(event: asyncio.Event) -> None:
        await event.wait()

    with call.cut_when(wait_for(happens), CutReason.CLIENT_GONE):
        happens.set()
        assert await wait_inside(call, asyncio.Event(), never) == CutReason.CLIENT_GONE
    other = live_call()
    with other.cut_when(wait_for(never), CutReason.CLIENT_GONE):
        await asyncio.sleep(0)
    with other.cut_when(wait_for(never), CutReason.CLIENT_GONE):
        pass  # left before the watching began
    never.set()
    await asyncio.sleep(0)
    assert other.reason is None
    assert len(asyncio.all_tasks()) == 1


async def test_expiry_does_not_cut() -> None:
    """B17: nothing here looks at expiry; a call with an expired token stays open."""
    calls = LiveCalls()
    with calls.enter("req_1", make_claims(ttl=0)) as call:
        assert calls.cut_revoked(RevocationSet.from_rows(())) == 0
        assert call.reason is None


async def test_revocation_cuts_what_it_names() -> None:
    """A revocation cuts exactly the calls it speaks against, a lone jti as TOKEN_ENDED."""
    calls = LiveCalls()
    mine, other = make_claims(token_id="tok_a"), make_claims(token_id="tok_b", sandbox="sbx_b")
    rows = [
        Revocation("jti", "tok_a", None, 2**31),
        Revocation("sandbox", "sbx_b", other.issued_at, 2**31),
    ]
    with calls.enter("req_1", mine) as one, calls.enter("req_2", other) as two:
        with calls.enter("req_3", make_claims()) as three:
            assert calls.cut_revoked(RevocationSet.from_rows(rows)) == 2
            assert calls.cut_revoked(RevocationSet.from_rows(rows)) == 0
        assert (one.reason, two.reason, three.reason) == (
            CutReason.TOKEN_ENDED,
            CutReason.REVOKED,
            None,
        )


async def test_cut_where_and_all() -> None:
    """A predicate over claims chooses calls; cut_all takes the rest."""
    calls = LiveCalls()
    theirs = make_claims(tenant="globex")
    with calls.enter("req_1", make_claims()) as one, calls.enter("req_2", theirs) as two:
        assert calls.cut_where(lambda c: c.tenant == "globex", CutReason.SHUTDOWN) == 1
        assert calls.cut_stale() == 1
        assert (one.reason, two.reason) == (CutReason.STALE, CutReason.SHUTDOWN)

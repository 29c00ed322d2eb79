"""The live-call registry: a cut reaches the waiting task once, as CallCut and nothing else."""

import asyncio
import contextlib

import pytest

from daypass_core.revocation import Revocation, RevocationSet
from daypass_proxy.streams import CUT_AT_ONCE, CallCut, CutReason, LiveCall, LiveCalls
from tests.fakes.call import entered
from tests.support import make_claims


def live_call() -> LiveCall:
    """Return a call that nothing has happened to."""
    return LiveCall("req_1", make_claims())


async def wait_inside(call: LiveCall, inside: asyncio.Event, forever: asyncio.Event) -> str:
    """Wait in an interruptible block; return how it ended."""
    try:
        with call.interruptible():
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
    with pytest.raises(CallCut) as caught, call.interruptible():
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
            with call.interruptible():
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
    with call.interruptible():
        await asyncio.sleep(0)
    call.cut(CutReason.REVOKED)
    await asyncio.sleep(0)
    with pytest.raises(CallCut), call.interruptible():
        raise AssertionError("entered")


async def test_task_that_cuts_itself() -> None:
    """Code inside the block that cuts its own call runs on and meets the cut on re-entry."""
    call = live_call()
    with call.interruptible():
        call.cut(CutReason.REVOKED)
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(CallCut):
        call.interruptible().__enter__()


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
            with call.interruptible():
                async with asyncio.timeout(10):
                    inside.set()
                    await asyncio.Event().wait()
        except CallCut:
            return "cut"
        return "completed"

    async def time_out() -> None:
        with live_call().interruptible():
            async with asyncio.timeout(0):
                await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await inside.wait()
    call.cut(CutReason.REVOKED)
    assert await task == "cut"
    with pytest.raises(TimeoutError):
        await time_out()


async def test_one_block_at_a_time() -> None:
    """Two blocks of one call at once are a mistake of ours."""
    call = live_call()
    with call.interruptible(), pytest.raises(RuntimeError, match="one place at a time"):
        call.interruptible().__enter__()


async def test_registered_while_the_block_runs() -> None:
    """A call is registered exactly as long as its block runs, whatever ends it."""
    calls = LiveCalls()
    counts = []
    with contextlib.suppress(OSError), entered(calls, "req_1", make_claims()):
        counts.append(len(calls))
        raise OSError("end")
    assert [*counts, len(calls)] == [1, 0]


async def test_call_id_is_used_once() -> None:
    """The same id cannot be live twice, and the refusal leaves the first one registered."""
    calls = LiveCalls()
    with entered(calls, "req_1", make_claims()):
        with (
            pytest.raises(ValueError, match="registered already"),
            entered(calls, "req_1", make_claims()),
        ):
            pass
        assert len(calls) == 1


async def test_longest_call() -> None:
    """A call past its longest time is cut with TOO_LONG; one that ended before is left alone."""
    calls, inside = LiveCalls(longest=0.0), asyncio.Event()
    with entered(calls, "req_1", make_claims()) as call:
        assert await wait_inside(call, inside, asyncio.Event()) == CutReason.TOO_LONG
    with entered(calls, "req_2", make_claims()) as call:
        pass
    await asyncio.sleep(0)
    assert call.reason is None


async def test_each_call_has_its_whole_time() -> None:
    """One timer serves all calls: it cuts the one that is due and wakes again for the next."""
    loop = asyncio.get_running_loop()
    calls = LiveCalls(longest=3600.0)
    with (
        entered(calls, "req_1", make_claims()) as old,
        entered(calls, "req_2", make_claims()) as new,
    ):
        assert old.due is not None
        old.due -= 3600.0
        calls._cut_long_ones()
        assert (old.reason, new.reason) == (CutReason.TOO_LONG, None)
        assert calls._timer is not None
        assert new.due is not None
        assert abs(calls._timer.when() - new.due) < 0.01
        assert new.due > loop.time() + 3590
    calls._cut_long_ones()
    assert calls._timer is None
    with entered(calls, "req_3", make_claims()):
        assert calls._timer is not None
        calls.close()
    assert calls._timer is None


async def test_client_gone() -> None:
    """A call whose client is gone is cut as that, unless it was cut before."""
    call, inside = live_call(), asyncio.Event()
    task = asyncio.create_task(wait_inside(call, inside, asyncio.Event()))
    await inside.wait()
    call.client_gone()
    assert await task == CutReason.CLIENT_GONE
    other = live_call()
    other.cut(CutReason.REVOKED)
    other.client_gone()
    assert other.reason is CutReason.REVOKED


async def test_thousands_of_cuts_leave_the_loop_to_others() -> None:
    """All calls are marked at once, but their tasks end a few in each turn of the loop."""
    calls, ended = LiveCalls(), 0
    number = 3 * CUT_AT_ONCE

    async def wait(call: LiveCall) -> None:
        nonlocal ended
        with contextlib.suppress(CallCut), call.interruptible():
            await asyncio.Event().wait()
        ended += 1
        calls.leave(call)

    live = [calls.enter(f"req_{index}", make_claims()) for index in range(number)]
    tasks = [asyncio.create_task(wait(call)) for call in live]
    await asyncio.sleep(0)
    assert calls.cut_all(CutReason.REVOKED) == number
    assert all(call.reason is CutReason.REVOKED for call in live)
    steps = []
    for _turn in range(20):
        before = ended
        await asyncio.sleep(0)
        steps.append(ended - before)
    assert max(steps) <= CUT_AT_ONCE
    assert ended == number
    await asyncio.gather(*tasks)


async def test_call_that_ends_before_its_turn() -> None:
    """A call that was marked and ended by itself meanwhile is not cancelled afterwards."""
    calls, done = LiveCalls(), asyncio.Event()

    async def wait(call: LiveCall) -> str:
        with call.interruptible():
            await done.wait()
        calls.leave(call)
        await asyncio.sleep(0)  # a stray cancellation would strike here
        await asyncio.sleep(0)
        return "completed"

    for index in range(CUT_AT_ONCE):
        calls.enter(f"req_{index}", make_claims())
    last = calls.enter("req_last", make_claims())
    task = asyncio.create_task(wait(last))
    await asyncio.sleep(0)
    done.set()
    await asyncio.sleep(0)
    calls.cut_all(CutReason.REVOKED)
    assert await task == "completed"


async def test_what_enters_after_the_end_is_cut_like_the_others() -> None:
    """B89: a call whose body was still coming when all were ended is ended as it enters."""
    calls = LiveCalls()
    with entered(calls, "req_1", make_claims()) as one:
        calls.end(CutReason.SHUTDOWN)
        with entered(calls, "req_2", make_claims()) as late:
            assert (one.reason, late.reason) == (CutReason.SHUTDOWN, CutReason.SHUTDOWN)
            with pytest.raises(CallCut), late.interruptible():
                raise AssertionError("entered")


async def test_expiry_does_not_cut() -> None:
    """B17: nothing here looks at expiry; a call with an expired token stays open."""
    calls = LiveCalls()
    with entered(calls, "req_1", make_claims(ttl=0)) as call:
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
    with entered(calls, "req_1", mine) as one, entered(calls, "req_2", other) as two:
        with entered(calls, "req_3", make_claims()) as three:
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
    with entered(calls, "req_1", make_claims()) as one, entered(calls, "req_2", theirs) as two:
        assert calls.cut_where(lambda c: c.tenant == "globex", CutReason.SHUTDOWN) == 1
        assert calls.cut_stale() == 1
        assert (one.reason, two.reason) == (CutReason.STALE, CutReason.SHUTDOWN)

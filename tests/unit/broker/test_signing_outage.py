"""While nothing can be signed the token endpoint says when to come back, and spends nothing."""

from dataclasses import replace

import pytest

from daypass_broker import schema
from daypass_broker.key_files import FileHalf
from daypass_broker.keys import Purpose, SigningUnavailable
from daypass_broker.recorded import PAUSE_SECONDS
from tests.unit.broker.rig import Rig


def away(half: FileHalf, message: bytes) -> bytes:
    """Be a vault that does not answer."""
    raise SigningUnavailable("the vault that signs does not answer", retry_after=7)


async def test_a_credential_that_works_once_is_not_spent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 with `retry-after`; afterwards the same launch credential gets its token."""
    sandbox = rig.sandbox("single_use")
    with monkeypatch.context() as patch:
        patch.setattr(FileHalf, "remote", True)
        patch.setattr(FileHalf, "sign", away)
        reply = await rig.launch(sandbox)
        assert (reply.status, reply.headers.get("retry-after")) == (503, "7")
        assert reply.error == "temporarily_unavailable"
        assert rig.row(sandbox).launch_used_at is None
        assert rig.rows(schema.token) == []
    rig.clock.advance(600)
    reply = await rig.launch(sandbox)
    assert reply.status == 200
    assert rig.rows(schema.lineage, state="quarantined") == []


async def test_a_generation_is_not_spent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal during an outage of ten minutes leaves its generation good."""
    first = await rig.launch(rig.sandbox("single_use"))
    with monkeypatch.context() as patch:
        patch.setattr(FileHalf, "remote", True)
        patch.setattr(FileHalf, "sign", away)
        assert (await rig.renew(first.body["refresh_token"])).status == 503
    rig.clock.advance(600)
    reply = await rig.renew(first.body["refresh_token"])
    assert reply.status == 200
    rig.verify(reply)


async def test_without_a_renewal_key_nothing_that_works_once_is_spent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Access tokens can be signed and generations cannot: launch and renewal stay good, and what
    needs no generation goes on."""
    reusable = rig.sandbox()
    sandbox, renewing = rig.sandbox("single_use"), rig.sandbox("single_use")
    generation = (await rig.launch(renewing)).body["refresh_token"]
    rig.clock.advance(60)
    with monkeypatch.context() as patch:
        active = {Purpose.ACCESS: rig.keys.active(Purpose.ACCESS)}
        patch.setattr(rig.keys, "_now", replace(rig.keys._now, active=active))
        assert [(await rig.launch(sandbox)).status, (await rig.renew(generation)).status] == [
            503
        ] * 2
        assert (await rig.launch(reusable)).status == 200
    rig.clock.advance(60)
    assert (await rig.launch(sandbox)).status == 200
    assert (await rig.renew(generation)).status == 200
    assert rig.rows(schema.lineage, state="quarantined") == []


@pytest.mark.parametrize("remote", [False, True])
async def test_a_moment_without_signatures_is_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    """What was just put on record is signed a second later, when the vault is back."""
    sandbox, sign, failures = rig.sandbox("single_use"), FileHalf.sign, iter([away, away])

    def flaky(half: FileHalf, message: bytes) -> bytes:
        return sign(half, message) if b"." not in message else next(failures, sign)(half, message)

    monkeypatch.setattr(FileHalf, "remote", remote)
    monkeypatch.setattr(FileHalf, "sign", flaky)
    rig.verify(await rig.launch(sandbox))
    assert rig.slept == [PAUSE_SECONDS] * 2
    assert rig.counts(sandbox.id) == {}


async def test_what_is_spent_is_never_told_to_be_repeated(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A credential that is spent without an answer, or a slice set aside, is no 503: whoever passed
    the request on would come again, as a copy would. What spends nothing may be repeated.
    """
    sandbox, reusable = rig.sandbox("single_use"), rig.sandbox(budget=10**9)
    token = (await rig.launch(reusable)).body["access_token"]
    monkeypatch.setattr(FileHalf, "sign", away)
    for reply in (
        await rig.launch(sandbox),
        await rig.buy(token, daypass_limits={"budget_usd": "0.10"}),
    ):
        assert (reply.status, reply.error) == (500, "server_error")
        assert "retry-after" not in reply.headers
    assert rig.row(sandbox).launch_used_at is not None
    assert (await rig.launch(reusable)).status == 503


async def test_remote_keys_sign_in_a_thread(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys in a vault a token is as good as any other."""
    monkeypatch.setattr(FileHalf, "remote", True)
    rig.verify(await rig.launch(rig.sandbox()))

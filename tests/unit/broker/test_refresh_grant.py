"""RFC 6749 §6: stock clients renew a single-use sandbox by `refresh_token`, ours by RFC 8693."""

import asyncio
import json
from urllib.parse import urlencode

import pytest

from daypass_broker import oauth, schema
from daypass_broker.keys import Purpose
from daypass_core.claims import RenewalClaims
from daypass_core.verify import verify_renewal
from tests.support import AUDIENCE, ISSUER, TENANT
from tests.unit.broker.rig import Reply, Rig


async def refresh(rig: Rig, refresh_token: str, **more: str) -> Reply:
    """What the official clients send when a profile names a client."""
    asked = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": "daypass"}
    return await rig.exchange(json.dumps(asked | more).encode())


def generation(rig: Rig, reply: Reply) -> RenewalClaims:
    """The verified generation of an answer."""
    rig.verify(reply)
    return verify_renewal(
        reply.body["refresh_token"],
        rig.keys.public(Purpose.RENEWAL),
        issuer=ISSUER,
        audience=rig.services.settings.broker_audience,
        now=rig.clock.now(),
    )


async def test_a_generation_is_refreshed_and_rotates(rig: Rig) -> None:
    """The answer is that of RFC 6749 §5.1: a token, its life, and the next generation."""
    first = await rig.launch(rig.sandbox("single_use"))
    rig.clock.advance(300)
    reply = await refresh(rig, first.body["refresh_token"])
    assert set(reply.body) == {"access_token", "token_type", "expires_in", "refresh_token"}
    assert (generation(rig, reply).generation, reply.body["expires_in"]) == (2, 600)
    rig.clock.advance(300)
    assert generation(rig, await refresh(rig, reply.body["refresh_token"])).generation == 3


async def test_both_dialects_move_one_lineage(rig: Rig) -> None:
    """A generation given out in one dialect is renewed in the other."""
    first = await rig.launch(rig.sandbox("single_use"))
    rig.clock.advance(20)
    second = await rig.renew(first.body["refresh_token"])
    rig.clock.advance(20)
    assert generation(rig, await refresh(rig, second.body["refresh_token"])).generation == 3


async def test_the_form_of_the_rfc_works_too(rig: Rig) -> None:
    """RFC 6749 writes the request as a form."""
    first = await rig.launch(rig.sandbox("single_use"))
    rig.clock.advance(20)
    asked = {"grant_type": "refresh_token", "refresh_token": first.body["refresh_token"]}
    form = urlencode(asked).encode()
    reply = await rig.exchange(form, "application/x-www-form-urlencoded")
    assert generation(rig, reply).generation == 2


async def test_b21_parallel_processes_refresh_at_once(rig: Rig) -> None:
    """B21: twenty refreshes of one generation within its grace give one token and one next."""
    first = await rig.launch(rig.sandbox("single_use"))
    rig.clock.advance(500)
    token = first.body["refresh_token"]
    replies = await asyncio.gather(*(refresh(rig, token) for _ in range(20)))
    assert {generation(rig, reply).generation for reply in replies} == {2}
    assert len({rig.verify(reply).token_id for reply in replies}) == 1
    rig.clock.advance(10)
    assert generation(rig, await refresh(rig, token)).generation == 2


async def test_after_the_grace_it_is_a_copy(rig: Rig) -> None:
    """A generation that comes again after ten seconds quarantines the lineage, whoever has it."""
    sandbox = rig.sandbox("single_use")
    first = await rig.launch(sandbox)
    rig.clock.advance(20)
    second = await refresh(rig, first.body["refresh_token"])
    rig.clock.advance(10.1)
    copy = await refresh(rig, first.body["refresh_token"])
    assert (copy.status, copy.error) == (400, "invalid_grant")
    assert rig.counts(sandbox.id)["clone"] == 1
    assert (await refresh(rig, second.body["refresh_token"])).error == "invalid_grant"


async def test_no_scope_is_refreshed(rig: Rig) -> None:
    """RFC 6749 §6 lets a refresh ask for less; what we cannot carry over is refused."""
    sandbox = rig.sandbox("single_use")
    first = await rig.launch(sandbox)
    reply = await refresh(rig, first.body["refresh_token"], scope="user:inference")
    assert (reply.status, reply.error) == (400, "invalid_request")
    (row,) = rig.rows(schema.lineage, sandbox=sandbox.id)
    assert row.generation == 1


async def test_a_wrong_organization_uses_no_generation_up(rig: Rig) -> None:
    """What a request says of itself is held against its credential before anything rotates."""
    sandbox = rig.sandbox("single_use")
    token = (await rig.launch(sandbox)).body["refresh_token"]
    rig.clock.advance(20)
    assert (await refresh(rig, token, organization_id="globex")).error == "invalid_grant"
    reply = await refresh(rig, token, organization_id=TENANT, audience=AUDIENCE)
    assert generation(rig, reply).generation == 2


@pytest.mark.parametrize("kind", ["launch", "access_token", "x"])
async def test_row_21_nothing_else_is_a_refresh_token(rig: Rig, kind: str) -> None:
    """Row 21: a launch credential or an access token is no generation, and is a stranger's."""
    sandbox = rig.sandbox()
    access = (await rig.launch(sandbox)).body["access_token"]
    credential = {"launch": sandbox.launch, "access_token": access}.get(kind, kind)
    reply = await refresh(rig, credential)
    assert (reply.status, reply.body) == (400, {"error": "invalid_grant"})


async def test_metadata_lists_the_grant() -> None:
    """RFC 8414: a client that looks finds the grant."""
    assert "refresh_token" in oauth.metadata(ISSUER)["grant_types_supported"]  # type: ignore[operator]

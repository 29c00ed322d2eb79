"""Where the tokens of a sandbox may be used from: chosen, narrowed, bound, and enforced."""

import json
from dataclasses import replace

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request

from daypass_broker import db, oauth, sandbox, schema
from daypass_broker.act import Act
from daypass_broker.credential import Principal, Role
from daypass_broker.fields import FieldError, Fields
from daypass_broker.issue import TokenEndpoint
from daypass_broker.source import document, narrowed, read
from daypass_core.settings import Listen
from daypass_core.source import inside
from tests.unit.broker.rig import Reply, Rig, Sandbox

HERE, THERE = "10.1.2.3", "10.9.9.9"
ADMIN = Principal("crd_admin", Role.ADMIN)


async def launch(rig: Rig, sandbox: Sandbox, peer: str) -> Reply:
    """Exchange the launch credential from this address."""
    asked = {"grant_type": oauth.JWT_BEARER, "assertion": sandbox.launch}
    return await rig.exchange(json.dumps(asked).encode(), headers={"x-daypass-peer": peer})


async def renew(rig: Rig, refresh_token: str, peer: str) -> Reply:
    """Present a renewal from this address."""
    asked = {
        "grant_type": oauth.TOKEN_EXCHANGE,
        "subject_token": refresh_token,
        "subject_token_type": "urn:ietf:params:oauth:token-type:refresh_token",
    }
    return await rig.exchange(json.dumps(asked).encode(), headers={"x-daypass-peer": peer})


async def buy(rig: Rig, access_token: str, peer: str) -> Reply:
    """Buy a narrower token from this address."""
    asked = {
        "grant_type": oauth.TOKEN_EXCHANGE,
        "subject_token": access_token,
        "subject_token_type": oauth.TYPE_ACCESS_TOKEN,
    }
    return await rig.exchange(json.dumps(asked).encode(), headers={"x-daypass-peer": peer})


def replaced(rig: Rig, old: Sandbox) -> Sandbox:
    """The sandbox with the new launch credential that its orchestrator asked for."""
    with db.begin(rig.engine) as conn:
        act = Act(conn, "crd_test", int(rig.clock.now() * 1000), rig.services.new_id)
        row = sandbox.replace_launch(act, ADMIN, old.id)
    claims = rig.launch_claims(old.id, row.launch, row.launch_jti, row.launch_iat, row.deadline)
    return replace(old, launch=rig.services.signer.sign_launch(claims), launch_jti=row.launch_jti)


def made(rig: Rig, source: str, launch: str = "reusable") -> Sandbox:
    """A sandbox that is bound so."""
    sandbox = rig.sandbox(launch)
    rig.change(sandbox, source=source)
    return sandbox


@pytest.mark.parametrize(
    ("written", "row"),
    [
        ("any", "any"),
        ("first", "first"),
        (["10.0.0.0/8"], "10.0.0.0/8"),
        (["10.1.1.1", "2001:db8::/32", "10.1.1.1/32"], "10.1.1.1/32 2001:db8::/32"),
    ],
)
def test_a_source_is_read_and_written_again(written: object, row: str) -> None:
    """What a row holds, once, is what reads to the same again."""
    assert read(Fields({"source": written})) == row
    assert read(Fields({"source": document(row)})) == row


@pytest.mark.parametrize("written", ["10.0.0.0/8", ["any"], ["first"], [["10.0.0.0/8"]], {}, 1])
def test_what_is_no_source_is_refused(written: object) -> None:
    """A text other than the two words, and words in a list, are not networks."""
    with pytest.raises(FieldError, match=r"^source"):
        read(Fields({"source": written}))


@pytest.mark.parametrize(
    ("most", "wanted", "result"),
    [
        ("any", None, "any"),
        ("any", "first", "first"),
        ("any", "10.0.0.0/8", "10.0.0.0/8"),
        ("first", None, "first"),
        ("first", "10.1.1.1/32", "10.1.1.1/32"),
        ("first", "2001:db8::/64", "2001:db8::/64"),
        ("10.0.0.0/8 ::/0", "10.2.0.0/16 2001:db8::/32", "10.2.0.0/16 2001:db8::/32"),
        ("10.0.0.0/8", "10.0.0.0/8", "10.0.0.0/8"),
    ],
)
def test_a_source_is_narrowed(most: str, wanted: str | None, result: str) -> None:
    """From any to first to networks to networks within."""
    assert narrowed(most, wanted) == result


@pytest.mark.parametrize(
    ("most", "wanted", "said"),
    [
        ("first", "any", "must be first, or the network of one host"),
        ("first", "10.0.0.0/31", "must be first, or the network of one host"),
        ("first", "10.1.1.1/32 10.1.1.2/32", "must be first, or the network of one host"),
        ("10.0.0.0/8", "any", "must be networks within 10.0.0.0/8"),
        ("10.0.0.0/8", "first", "must be networks within 10.0.0.0/8"),
        ("10.0.0.0/8", "10.0.0.0/7", "must be networks within 10.0.0.0/8"),
        ("10.0.0.0/8", "10.1.0.0/16 11.0.0.0/16", "must be networks within 10.0.0.0/8"),
    ],
)
def test_a_source_is_never_widened(most: str, wanted: str, said: str) -> None:
    """What is more than there is is refused with what there is."""
    with pytest.raises(ValueError, match=f"^{said}$"):
        narrowed(most, wanted)


async def test_an_unbound_sandbox_is_asked_nothing(rig: Rig) -> None:
    """Source any: no claim, whatever the address, none included."""
    for peer in (HERE, "unix", ""):
        reply = await launch(rig, made(rig, "any"), peer)
        assert rig.verify(reply).source == ()


async def test_networks_go_into_the_token(rig: Rig) -> None:
    """The token says all of them, so it can move within them."""
    reply = await launch(rig, made(rig, "10.0.0.0/8 2001:db8::/32"), HERE)
    assert rig.verify(reply).source == ("10.0.0.0/8", "2001:db8::/32")


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        (HERE, "10.1.2.3/32"),
        ("::ffff:10.1.2.3", "10.1.2.3/32"),
        ("2001:db8:0:7::5", "2001:db8:0:7::/64"),
    ],
)
async def test_first_is_bound_by_the_first_exchange(rig: Rig, peer: str, network: str) -> None:
    """It is written down once, told in the audit, and in every token from then on."""
    sandbox = made(rig, "first")
    for _ in range(2):
        assert rig.verify(await launch(rig, sandbox, peer)).source == (network,)
        rig.clock.advance(6)
    assert rig.row(sandbox).source_bound == network
    (told,) = rig.rows(schema.audit, tag="source.pinned", sandbox=sandbox.id)
    assert json.loads(told.detail) == {"source": network}


@pytest.mark.parametrize("source", ["first", "10.1.2.0/24"])
@pytest.mark.parametrize("peer", [THERE, "2001:db8::1", "unix", "unknown", ""])
async def test_a_credential_from_elsewhere_is_an_incident(rig: Rig, source: str, peer: str) -> None:
    """No token, a refusal that stops clients, a count; the sandbox itself goes on."""
    sandbox = made(rig, source)
    await launch(rig, sandbox, HERE)
    rig.clock.advance(6)
    reply = await launch(rig, sandbox, peer)
    assert (reply.status, reply.error) == (400, "invalid_grant")
    assert "bound to" in reply.description
    assert HERE not in reply.description
    counts = rig.counts(sandbox.id)
    assert counts == {"foreign_source": 1, "token_refused:foreign_source": 1}
    assert (await launch(rig, sandbox, HERE)).status == 200


@pytest.mark.parametrize("peer", ["unix", "unknown", "", "localhost"])
async def test_nobody_knows_where_is_never_first(rig: Rig, peer: str) -> None:
    """A client without an address binds nothing: it fails closed, and the next one may."""
    sandbox = made(rig, "first")
    assert (await launch(rig, sandbox, peer)).status == 400
    assert rig.row(sandbox).source_bound is None
    assert (await launch(rig, sandbox, HERE)).status == 200


async def test_a_thief_elsewhere_spends_nothing(rig: Rig) -> None:
    """A single-use credential or a renewal that comes from elsewhere stays good for its owner."""
    sandbox = made(rig, "10.1.2.0/24", "single_use")
    assert (await launch(rig, sandbox, THERE)).status == 400
    assert rig.row(sandbox).launch_used_at is None
    first = await launch(rig, sandbox, HERE)
    assert rig.verify(first).source == ("10.1.2.0/24",)
    refresh = str(first.body["refresh_token"])
    assert (await renew(rig, refresh, THERE)).status == 400
    assert (await renew(rig, refresh, HERE)).status == 200
    assert "clone" not in rig.counts(sandbox.id)
    assert {row.state for row in rig.rows(schema.lineage, sandbox=sandbox.id)} == {"active"}


async def test_a_renewal_of_before_is_never_first(rig: Rig) -> None:
    """When a sandbox may begin anew elsewhere, a stolen generation neither works nor binds it."""
    old = made(rig, "first", "single_use")
    refresh = str((await launch(rig, old, HERE)).body["refresh_token"])
    new = replaced(rig, old)
    assert "quarantined" in (await renew(rig, refresh, THERE)).description
    assert rig.row(new).source_bound is None
    assert rig.verify(await launch(rig, new, "10.3.3.3")).source == ("10.3.3.3/32",)


async def test_a_token_of_before_is_never_first(rig: Rig) -> None:
    """Nobody locks a sandbox up in another place with an access token that is bound elsewhere."""
    old = rig.sandbox(budget=10**9)
    rig.change(old, source="first")
    token = str((await launch(rig, old, HERE)).body["access_token"])
    new = replaced(rig, old)
    assert "bound to another" in (await buy(rig, token, THERE)).description
    assert (await buy(rig, token, HERE)).status == 200
    assert rig.row(new).source_bound is None
    assert (await launch(rig, new, THERE)).status == 200


async def test_who_is_refused_binds_nothing(rig: Rig) -> None:
    """An exchange that gets no token leaves the first place to the next."""
    empty = rig.sandbox(level=0)
    rig.change(empty, source="first")
    assert (await launch(rig, empty, THERE)).error == "slow_down"
    assert rig.row(empty).source_bound is None


async def test_an_attested_sandbox_is_restored_where_it_is_bound(rig: Rig) -> None:
    """It has no new credential, so whoever holds an assertion of before could come first."""
    bound = made(rig, "first")
    rig.change(bound, launch="attested", state="revoked", activated_at=1)
    rig.change(bound, source_bound=HERE + "/32")
    with db.begin(rig.engine) as conn:
        act = Act(conn, "crd_test", int(rig.clock.now() * 1000), rig.services.new_id)
        assert sandbox.restore(act, ADMIN, bound.id).source_bound == HERE + "/32"


async def test_a_token_is_not_given_out_again_elsewhere_in_its_networks(rig: Rig) -> None:
    """Within five seconds the same token comes again, with the same networks."""
    sandbox = made(rig, "10.0.0.0/8")
    one, two = (
        rig.verify(await launch(rig, sandbox, HERE)),
        rig.verify(await launch(rig, sandbox, THERE)),
    )
    assert one == two


@pytest.mark.parametrize(
    ("trusted", "client", "bound"),
    [
        ((), "10.7.0.1", "10.7.0.1/32"),
        (("10.7.0.0/24",), "10.7.0.1", "198.51.100.1/32"),
        (("10.7.0.0/24",), "10.8.0.1", "10.8.0.1/32"),
    ],
)
async def test_over_tcp_only_a_trusted_proxy_says_whose_request_it_is(
    rig: Rig, trusted: tuple[str, ...], client: str, bound: str
) -> None:
    """Anybody else is taken for itself, whatever it writes into the header."""
    settings = replace(
        rig.services.settings, internal=Listen("127.0.0.1", 8702), trusted_proxies=trusted
    )
    endpoint = TokenEndpoint(replace(rig.services, settings=settings))
    headers = {"x-daypass-peer": "198.51.100.1"}
    scope = {"type": "http", "client": (client, 1), "headers": []}
    told = Request({**scope, "headers": Headers(headers).raw})
    assert endpoint._peer(told) + "/32" == bound
    missing = endpoint._peer(Request(scope))
    assert missing == ("" if inside(trusted, client) else client)

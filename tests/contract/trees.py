"""A delegation tree beside the real one: bought at the real token endpoint, spent in a real ledger.

`Tree` takes steps that a test draws and says, from sums of its own, what every answer has to be.
It knows nothing of `lent_nano`: what is set aside is what is left of the slices, nothing more.
"""

from dataclasses import dataclass, field
from itertools import count

from daypass_broker import db, revocation, schema, slices
from daypass_broker.act import SYSTEM, Act
from daypass_broker.revoke import Order, revoke
from daypass_core.claims import Claims
from daypass_core.scope import Scope, scope_to_wire
from daypass_proxy.ledger import LedgerRefused, Reserved
from daypass_proxy.ledger.face import BatchedLedger
from tests.contract.ledgers import bill, reservation
from tests.support import make_scope
from tests.unit.broker.desk import ADMIN
from tests.unit.broker.rig import Rig

BUDGET = 1_000
MODELS = ("claude-sonnet-*", "claude-sonnet-5", "claude-haiku-*", "*")
ENDPOINTS = ("messages", "count_tokens", "models")
FEATURES = ("web_search", "code_execution")
DOMAINS = ("example.com", "docs.example.com")
ROOT = make_scope(
    models=("claude-sonnet-*", "claude-haiku-*"),
    features=FEATURES,
    allowed_domains=("example.com",),
    max_output_tokens=100,
)
_usage_ids = count(1)


@dataclass
class Node:
    """One grant: `slice` is what is set aside for it at its buyer, None when nothing is."""

    claims: Claims
    token: str = field(repr=False)
    buyer: "Node | None" = None
    ceiling: int | None = None
    slice: int | None = None
    revoked: bool = False
    spent: int = 0
    held: int = 0
    open: dict[str, int] = field(default_factory=dict)
    children: "list[Node]" = field(default_factory=list)

    def chain(self) -> "list[Node]":
        """The node and all it hangs on, the leaf first."""
        return [self, *(self.buyer.chain() if self.buyer else [])]

    def subtree(self) -> "list[Node]":
        """The node and all that hangs on it."""
        return [self, *(one for child in self.children for one in child.subtree())]

    def aside(self) -> int:
        """What is left of the slices bought from it."""
        return sum(
            max(one.slice - one.spent - one.held, 0)
            for one in self.children
            if one.slice is not None
        )

    def free(self) -> int:
        """What may be sold or spent directly."""
        assert self.ceiling is not None
        return self.ceiling - self.spent - self.held - self.aside()

    def fits(self, nano: int) -> bool:
        """Whether a call through this node must be admitted."""
        through = None
        for one in self.chain():
            aside = 0 if through is not None and through.slice is not None else one.aside()
            if one.ceiling is not None and one.spent + one.held + aside + nano > one.ceiling:
                return False
            through = one
        return True


class Tree:
    """A sandbox with BUDGET and the tree of grants below its root."""

    def __init__(self, rig: Rig, ledger: BatchedLedger) -> None:
        self.rig, self.ledger = rig, ledger

    async def plant(self) -> None:
        """Register the sandbox and get its first token; what another tree left behind is over."""
        self.rig.clock.advance(4_000)
        self._return()
        self.sandbox = self.rig.sandbox(budget=BUDGET, wide=ROOT, ttl=3600, level=60.0)
        reply = await self.rig.launch(self.sandbox)
        claims = self.rig.verify(reply)
        self.root = Node(claims, reply.body["access_token"], ceiling=BUDGET)

    @property
    def nodes(self) -> list[Node]:
        """All nodes, the root first."""
        return self.root.subtree()

    def alive(self, node: Node) -> bool:
        """Whether the tokens of a node are good."""
        now = self.rig.clock.now()
        return all(not one.revoked and now < one.claims.expires_at for one in node.chain())

    async def buy(self, node: Node, scope: Scope | None, nano: int | None, life: int) -> None:
        """Buy a child; it is sold exactly when the buyer is alive and it is no more than it."""
        more: dict[str, object] = {"daypass_lifetime_seconds": str(life)}
        if scope is not None:
            more["authorization_details"] = scope_to_wire(scope)
        if nano is not None:
            more["daypass_limits"] = {"budget_usd": f"{nano // 10**9}.{nano % 10**9:09d}"}
        self.rig.change(self.sandbox, bucket_level=60.0)
        reply = await self.rig.buy(node.token, **more)
        if reply.status != 200:
            assert reply.error in self._reasons(node, scope, nano), reply.body
            return
        assert not self._reasons(node, scope, nano), reply.body
        claims = self.rig.verify(reply)
        child = Node(claims, reply.body["access_token"], node, ceiling=nano, slice=nano)
        node.children.append(child)
        self._check_less(child, node)

    def _reasons(self, node: Node, scope: Scope | None, nano: int | None) -> set[str]:
        """The errors a purchase may be refused with; none when it must be sold."""
        found = set()
        if not self.alive(node) or len(node.claims.grants) == 4:
            found.add("invalid_grant")
        if scope is not None and not is_within(scope, node.claims.scope):
            found.add("invalid_authorization_details")
        if nano is not None and node.ceiling is None:
            found.add("invalid_request")
        elif nano is not None and nano > node.free():
            found.add("insufficient_budget")
        return found

    def _check_less(self, child: Node, buyer: Node) -> None:
        """No child exceeds its parent in any dimension."""
        mine, theirs = child.claims, buyer.claims
        assert mine.grants[:-1] == theirs.grants
        assert is_within(mine.scope, theirs.scope)
        assert mine.expires_at <= theirs.expires_at
        assert (mine.sandbox, mine.tenant, mine.source) == (
            theirs.sandbox,
            theirs.tenant,
            theirs.source,
        )
        assert self.rig.account(mine.account).parent == theirs.account

    async def call(self, node: Node, nano: int) -> None:
        """Hold a call; it is admitted exactly when every account of the chain has room."""
        usage_id = f"req_{next(_usage_ids)}"
        wanted = reservation(usage_id, nano, account=node.claims.account, sandbox=self.sandbox.id)
        expected = node.fits(nano)
        answer = await self.ledger.reserve(wanted)
        assert isinstance(answer, Reserved if expected else LedgerRefused), (answer, expected)
        if expected:
            node.open[usage_id] = nano
            for one in node.chain():
                one.held += nano

    async def settle(self, node: Node, cost: int) -> None:
        """Bill the oldest open call of a node; the bill may be more than was held."""
        if not node.open:
            return
        usage_id = next(iter(node.open))
        held = node.open.pop(usage_id)
        await self.ledger.settle(bill(usage_id, cost))
        for one in node.chain():
            one.held -= held
            one.spent += cost

    def revoke(self, node: Node) -> None:
        """Revoke a bought grant, and with it all below it."""
        if node is self.root:
            return
        with db.begin(self.rig.engine) as conn:
            revocation.lock_version(conn)
            now = self.rig.services.now_ms(conn)
            act = Act(conn, SYSTEM, now, self.rig.services.new_id)
            revoke(act, ADMIN, Order("grant", node.claims.grants[-1]))
        for one in node.subtree():
            one.revoked = True

    def give_back(self) -> None:
        """Give back what is over and has no open call; what was used stays the buyer's."""
        returned = self._return()
        due = [one for one in self.nodes if one.slice is not None and self._is_over(one)]
        assert returned == len(due)
        for one in due:
            assert one.slice is not None
            one.ceiling, one.slice = min(one.spent, one.slice), None

    def _return(self) -> int:
        with db.begin(self.rig.engine) as conn:
            now = self.rig.services.now_ms(conn)
            return slices.give_back(Act(conn, SYSTEM, now, self.rig.services.new_id))

    def _is_over(self, node: Node) -> bool:
        """Whether a slice is to be given back."""
        over = node.revoked or self.rig.clock.now() >= node.claims.expires_at + 5
        return over and not any(one.open for one in node.subtree())

    def check(self) -> None:
        """The accounts hold, to the nano-dollar, what the model holds."""
        for node in self.nodes:
            row = self.rig.account(node.claims.account)
            assert (row.spent_nano, row.reserved_nano) == (node.spent, node.held)
            assert row.lent_nano - row.lent_used_nano == node.aside()
            assert row.ceiling_nano == node.ceiling
            assert row.sliced == (node.slice is not None)

    async def fell(self) -> int:
        """Bill what is open at its hold and let everything end; return what is left."""
        for node in self.nodes:
            while node.open:
                await self.settle(node, next(iter(node.open.values())))
        self.rig.clock.advance(4_000)
        self.give_back()
        self.check()
        (row,) = self.rig.rows(schema.account, id=self.root.claims.account)
        assert row.lent_nano == row.lent_used_nano
        return int(row.ceiling_nano - row.spent_nano)


def is_within(child: Scope, parent: Scope) -> bool:
    """Whether a scope allows nothing that the other does not; by hand, without `narrow`."""
    (inner,), (outer,) = child.details, parent.details
    models = ("claude-sonnet-5", "claude-sonnet-5-1", "claude-haiku-4", "claude-opus-5", "gpt")
    hosts = ("example.com", "docs.example.com", "a.docs.example.com", "other.com")

    def reached(domains: tuple[str, ...]) -> set[str]:
        return {h for h in hosts for d in domains if h == d or h.endswith(f".{d}")}

    return (
        set(inner.endpoints) <= set(outer.endpoints)
        and set(inner.features) <= set(outer.features)
        and reached(inner.allowed_domains) <= reached(outer.allowed_domains)
        and all(outer.allows_model(model) for model in models if inner.allows_model(model))
        and "strict compat open".index(inner.body) <= "strict compat open".index(outer.body)
        and (inner.max_output_tokens or 10**9) <= (outer.max_output_tokens or 10**9)
    )

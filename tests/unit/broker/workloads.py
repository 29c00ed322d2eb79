"""An issuer, rules for it and a broker's gate to it, for tests of attested workloads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.routing import Route

from daypass_broker import db, oauth, revocation, rule_request, rule_store, schema
from daypass_broker.act import acting
from daypass_broker.attest.federation import Federation, Workload
from daypass_broker.issue import TokenEndpoint
from daypass_broker.rule import Rule, State
from daypass_broker.rule_request import Own
from daypass_broker.settings import FederationSettings, KubernetesSettings
from daypass_core.scope import scope_to_wire
from tests.servers.ca import Authority
from tests.servers.issuer import AUDIENCE, Issuer
from tests.support import TENANT, make_scope
from tests.unit.broker.rig import Reply, Rig


class Gate:
    """A federation over a rig's store, whose clocks are the rig's; `rule` makes rules."""

    def __init__(
        self,
        rig: Rig,
        issuer: Issuer | None,
        authority: Authority,
        networks: tuple[str, ...],
        kubernetes: KubernetesSettings | None = None,
    ) -> None:
        self.rig, self._issuer = rig, issuer
        settings = FederationSettings(networks, authority.file)
        if kubernetes is not None:
            settings = replace(settings, kubernetes=kubernetes)
        self.services = replace(
            rig.services, settings=replace(rig.services.settings, federation=settings)
        )
        self.federation = Federation(self.services, rig.clock.monotonic)
        self.own = Own((rig.services.settings.issuer,), frozenset())
        with db.begin(rig.engine) as conn:
            conn.execute(sa.update(schema.tenant).values(profiles='["coding"]'))
            scope = db.to_json(scope_to_wire(make_scope()))
            conn.execute(
                sa.update(schema.profile).values(
                    details=scope, budget_nano=10**9, max_budget_nano=10**9, lifetime_s=4 * 3600
                )
            )

    @property
    def issuer(self) -> Issuer:
        """The issuer that rules are for unless they say another one."""
        assert self._issuer is not None
        return self._issuer

    def rule(self, **fields: Any) -> Rule:
        """Make a rule for the issuer, in force from the next look on."""
        said: dict[str, Any] = {
            "name": f"rule-{len(self.rig.rows(schema.federation_rule))}",
            "tenant": TENANT,
            "profile": "coding",
            "issuer": None if self._issuer is None else self._issuer.url,
            "audience": AUDIENCE,
            "conditions": {"sub": ["workload-1", "workload-2"]},
        }
        body = {name: value for name, value in (said | fields).items() if value is not None}
        rule = rule_request.read(body, self.rig.services.new_id("fdrl"), self.own)
        with acting(
            self.rig.engine, "crd_admin", self.rig.services.new_id, lock=revocation.lock_version
        ) as act:
            rule_store.make(act, rule)
        self.rig.clock.advance(1)
        return rule

    def set_state(self, rule: Rule, state: State) -> None:
        """Disable or enable a rule."""
        with acting(self.rig.engine, "crd_admin", self.rig.services.new_id) as act:
            rule_store.set_state(act, rule.id, state)

    def token(self, **claims: Any) -> str:
        """An honest assertion of the clock's now."""
        return self.issuer.token(now=self.rig.clock.now(), **claims)

    def serve(self) -> None:
        """Let the rig's token endpoint take assertions by this gate."""
        endpoint = TokenEndpoint(self.services, self.federation, sleep=self.rig._sleep)
        route = Route(oauth.TOKEN_PATH, endpoint.post, methods=["POST"])
        self.rig.app = Starlette(routes=[route])

    async def exchange(self, token: str, rule: Rule, **more: str) -> Reply:
        """Exchange an assertion as stock clients do."""
        named = {"federation_rule_id": rule.id, "organization_id": TENANT}
        return await self.rig.launch(token, **{**named, **more})

    async def attest(self, token: str, rule: Rule | str) -> Workload:
        """Show an assertion now."""
        rule_id = rule if isinstance(rule, str) else rule.id
        return await self.federation.attest(token, rule_id, self.rig.clock.now())


def cluster_files(folder: Path, authority: Authority, url: str) -> KubernetesSettings:
    """Settings for a cluster at `url`, with the broker's own token in a file."""
    token = folder / "token"
    token.write_text("broker-token-1")
    return KubernetesSettings(url, authority.file, token)

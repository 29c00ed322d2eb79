"""A broker without listeners for tests: a migrated SQLite file, a clock that stands still, keys.

`Rig.exchange` speaks to the token endpoint as a client does, through ASGI; `Rig.sandbox` writes the
rows of a sandbox and signs its launch credential; `Rig.revoke` writes a revocation row.
"""

import itertools
import json
import shutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.routing import Route

import daypass_migrations
from daypass_broker import db, oauth, schema
from daypass_broker.issue import TokenEndpoint
from daypass_broker.key_ring import open_ring
from daypass_broker.keys import Purpose
from daypass_broker.services import Services
from daypass_broker.settings import KeySettings, Settings
from daypass_broker.signing import Signer
from daypass_core.claims import Claims, LaunchClaims, account_id, subject
from daypass_core.ids import new_id
from daypass_core.scope import Scope, scope_to_wire
from daypass_core.settings import Listen
from daypass_core.verify import verify_access
from tests.fakes.clock import FakeClock
from tests.support import AUDIENCE, ISSUER, NOW, TENANT, TRUST_DOMAIN, make_scope

DAY = 24 * 3600


def make_template(folder: Path) -> Path:
    """Make a migrated database and its signing keys in `folder`, once for all tests."""
    settings = make_settings(folder)
    daypass_migrations.upgrade(settings.database_url)
    engine = db.connect(settings.database_url)
    open_ring(engine, settings.keys, new_id)
    engine.dispose()
    return folder


def make_settings(folder: Path) -> Settings:
    """Return settings of a broker that lives in `folder`."""
    return Settings(
        issuer=ISSUER,
        audience=AUDIENCE,
        trust_domain=TRUST_DOMAIN,
        database_url=f"sqlite:///{folder / 'daypass.db'}",
        log_level="info",
        internal=Listen(path=str(folder / "broker.sock")),
        admin=Listen("127.0.0.1", 8701),
        keys=KeySettings(directory=folder / "keys"),
        public_url=ISSUER,
        ca_file=None,
        tls_cert=None,
        tls_key=None,
        min_token_ttl=2,
    )


@dataclass(frozen=True)
class Reply:
    """One answer of the token endpoint."""

    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def error(self) -> str:
        assert "error" in self.body, "the request was not refused"
        return str(self.body["error"])

    @property
    def description(self) -> str:
        return str(self.body.get("error_description", ""))


@dataclass(frozen=True)
class Sandbox:
    """A registered sandbox as its orchestrator got it."""

    id: str
    launch: str
    launch_jti: str
    deadline: int
    grant: str


class Rig:
    """The broker's issuing half with time in the test's hands."""

    def __init__(self, settings: Settings, clock: FakeClock) -> None:
        self.clock = clock
        self.slept: list[float] = []
        self.behind = 0.0  # seconds the store's clock has gone back since the broker's was set
        self._numbers = itertools.count(1)
        self.engine = db.connect(settings.database_url)
        self.keys = open_ring(self.engine, settings.keys, new_id)
        self.services = Services(
            engine=self.engine,
            clock=clock,
            settings=settings,
            signer=Signer(self.keys),
            keys=self.keys,
            new_id=lambda prefix: f"{prefix}_{next(self._numbers):026d}",
            now_ms=lambda _: int((clock.now() - self.behind) * 1000),
        )
        self.endpoint = TokenEndpoint(self.services, sleep=self._sleep)
        self.app = Starlette(routes=[Route(oauth.TOKEN_PATH, self.endpoint.post, methods=["POST"])])
        self._make_tenant(TENANT)

    @classmethod
    def copy_of(cls, template: Path, folder: Path, clock: FakeClock) -> "Rig":
        """Return a rig on a copy of what `make_template` made."""
        shutil.copytree(template, folder, dirs_exist_ok=True)
        return cls(make_settings(folder), clock)

    def close(self) -> None:
        """Close the database."""
        self.engine.dispose()

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds)

    def _make_tenant(self, tenant: str) -> None:
        moment = {"created_at": 0, "updated_at": 0}
        with db.begin(self.engine) as conn:
            conn.execute(
                sa.insert(schema.tenant).values(id=tenant, profiles="[]", state="active", **moment)
            )
            conn.execute(
                sa.insert(schema.profile).values(
                    name="coding",
                    details="[]",
                    budget_nano=0,
                    max_budget_nano=0,
                    lifetime_s=DAY,
                    max_lifetime_s=DAY,
                    token_ttl_s=600,
                    launch="reusable",
                    **moment,
                )
            )

    def sandbox(
        self,
        launch: str = "reusable",
        *,
        ttl: int = 600,
        life: int = 4 * 3600,
        iat: int | None = None,
        level: float = 60.0,
        wide: Scope | None = None,
        budget: int | None = None,
    ) -> Sandbox:
        """Register a sandbox now (or at `iat`), active for `life` seconds.

        With a `budget` (nano-dollars) it has an account, and its tenant has one without limits.
        """
        now = int(self.clock.now()) if iat is None else iat
        numbered = self.services.new_id
        ident, jti, grant = numbered("sbx"), numbered("lch"), numbered("grt")
        scope = db.to_json(scope_to_wire(wide or make_scope()))
        with db.begin(self.engine) as conn:
            conn.execute(
                sa.insert(schema.sandbox).values(
                    id=ident,
                    tenant=TENANT,
                    profile="coding",
                    state="active",
                    launch=launch,
                    launch_jti=jti,
                    launch_iat=now,
                    scope=scope,
                    token_ttl_s=ttl,
                    labels="{}",
                    connect="direct",
                    bucket_level=level,
                    bucket_at=now * 1000,
                    deadline=now + life,
                    created_by="crd_test",
                    created_at=now * 1000,
                )
            )
            conn.execute(
                sa.insert(schema.grant_).values(
                    id=grant,
                    sandbox=ident,
                    scope=scope,
                    expires_at=now + life,
                    state="active",
                    created_at=now * 1000,
                )
            )
        if budget is not None:
            self._make_accounts(ident, budget)
        claims = self.launch_claims(ident, launch, jti, now, now + life)
        return Sandbox(ident, self.services.signer.sign_launch(claims), jti, now + life, grant)

    def _make_accounts(self, sandbox: str, budget: int) -> None:
        tenant = f"tenant:{TENANT}"
        own = {"id": account_id(sandbox), "kind": "sandbox", "sandbox": sandbox, "parent": tenant}
        table, given = schema.account, {"tenant": TENANT, "updated_at": 0}
        with db.begin(self.engine) as conn:
            if conn.execute(sa.select(table.c.id).where(table.c.id == tenant)).first() is None:
                conn.execute(sa.insert(table).values(id=tenant, kind="tenant", **given))
            conn.execute(sa.insert(table).values(**own, ceiling_nano=budget, **given))

    def account(self, ident: str) -> sa.Row[Any]:
        """Read an account."""
        (row,) = self.rows(schema.account, id=ident)
        return row

    def launch_claims(self, sandbox: str, mode: str, jti: str, iat: int, exp: int) -> LaunchClaims:
        """Return the claims of a launch credential of this broker."""
        return LaunchClaims(
            issuer=ISSUER,
            audience=self.services.settings.broker_audience,
            subject=subject(TRUST_DOMAIN, TENANT, sandbox),
            tenant=TENANT,
            sandbox=sandbox,
            token_id=jti,
            issued_at=iat,
            expires_at=exp,
            mode="single_use" if mode == "single_use" else "reusable",
        )

    def replace_launch(self, sandbox: Sandbox, *, grace_s: int = 60) -> Sandbox:
        """Give the sandbox a new launch credential; the old one works for `grace_s` seconds."""
        now, jti = int(self.clock.now()), self.services.new_id("lch")
        self.change(
            sandbox,
            launch_jti=jti,
            launch_iat=now,
            launch_used_at=None,
            previous_launch_jti=sandbox.launch_jti,
            previous_launch_until_at=(now + grace_s) * 1000,
        )
        mode = str(self.row(sandbox).launch)
        claims = self.launch_claims(sandbox.id, mode, jti, now, sandbox.deadline)
        launch = self.services.signer.sign_launch(claims)
        return Sandbox(sandbox.id, launch, jti, sandbox.deadline, sandbox.grant)

    def change(self, sandbox: Sandbox, **values: object) -> None:
        """Write columns of the sandbox row."""
        table = schema.sandbox
        with db.begin(self.engine) as conn:
            conn.execute(sa.update(table).where(table.c.id == sandbox.id).values(**values))

    def row(self, sandbox: Sandbox) -> sa.Row[Any]:
        """Read the sandbox row."""
        table = schema.sandbox
        with db.read(self.engine) as conn:
            return conn.execute(sa.select(table).where(table.c.id == sandbox.id)).one()

    def revoke(self, scope: str, ident: str = "*", not_before: int | None = None) -> None:
        """Write a revocation row: a cut-off at `not_before`, or an absolute one."""
        with db.begin(self.engine) as conn:
            conn.execute(
                sa.insert(schema.revocation).values(
                    id=self.services.new_id("rev"),
                    scope=scope,
                    ident=ident,
                    not_before=not_before,
                    expires_at=NOW + DAY,
                    reason="",
                    actor="test",
                    created_at=0,
                    version=1,
                )
            )

    def rows(self, table: sa.Table, **equal: object) -> list[sa.Row[Any]]:
        """Read the rows of a table whose columns equal the given values."""
        query = sa.select(table).where(*(table.c[name] == value for name, value in equal.items()))
        with db.read(self.engine) as conn:
            return list(conn.execute(query))

    def counts(self, subject: str) -> dict[str, int]:
        """What was counted about a subject, summed over minutes."""
        found: dict[str, int] = {}
        for row in self.rows(schema.incident, subject=subject):
            found[row.kind] = found.get(row.kind, 0) + int(row._mapping["count"])
        return found

    def verify(self, reply: Reply) -> Claims:
        """Verify the access token of an answer as the proxy does, at the clock's time."""
        assert reply.status == 200, reply.body
        return verify_access(
            reply.body["access_token"],
            self.keys.public(Purpose.ACCESS),
            issuer=ISSUER,
            audience=AUDIENCE,
            now=self.clock.now(),
        )

    async def launch(self, sandbox: Sandbox | str, **more: str) -> Reply:
        """Exchange a launch credential as stock clients do."""
        credential = sandbox if isinstance(sandbox, str) else sandbox.launch
        asked = {"grant_type": oauth.JWT_BEARER, "assertion": credential, **more}
        return await self.exchange(json.dumps(asked).encode())

    async def renew(self, refresh_token: str) -> Reply:
        """Present a renewal generation as our own clients do."""
        asked = {
            "grant_type": oauth.TOKEN_EXCHANGE,
            "subject_token": refresh_token,
            "subject_token_type": oauth.TYPE_REFRESH_TOKEN,
        }
        return await self.exchange(json.dumps(asked).encode())

    async def buy(self, access_token: str, **more: object) -> Reply:
        """Buy a narrower token; what is no text goes as JSON."""
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in more.items()}
        asked = {
            "grant_type": oauth.TOKEN_EXCHANGE,
            "subject_token": access_token,
            "subject_token_type": oauth.TYPE_ACCESS_TOKEN,
        }
        return await self.exchange(json.dumps(asked | texts).encode())

    async def exchange_form(self, **parameters: str) -> Reply:
        """Send a token exchange as a form."""
        body = urlencode({"grant_type": oauth.TOKEN_EXCHANGE, **parameters}).encode()
        return await self.exchange(body, "application/x-www-form-urlencoded")

    async def exchange(
        self,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        receive: Callable[[], Awaitable[dict[str, Any]]] | None = None,
    ) -> Reply:
        """Send one request to the token endpoint; `receive` replaces how its body arrives."""
        sent: list[dict[str, Any]] = []
        named = {"content-type": content_type, **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": oauth.TOKEN_PATH,
            "raw_path": oauth.TOKEN_PATH.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "client": None,
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        }

        async def receive_body() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive or receive_body, send)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        data = b"".join(message.get("body", b"") for message in sent[1:])
        return Reply(sent[0]["status"], found, json.loads(data))

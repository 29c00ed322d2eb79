"""The broker's admin listener for tests: a migrated SQLite file, a policy, three credentials.

`Desk.call` speaks HTTP to the real application in process. Every answer it gets is checked against
the OpenAPI document, so each test of a route is a test of its description too.
"""

import json
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
from jsonschema import Draft202012Validator, FormatChecker
from starlette.testclient import TestClient

from daypass_broker import credential, db, policy_store, revocation, schema
from daypass_broker.act import Act, acting
from daypass_broker.admin import admin_app, openapi
from daypass_broker.credential import Issued, Principal, Role
from daypass_broker.key_ring import open_ring
from daypass_broker.services import Services
from daypass_broker.settings import Settings
from daypass_broker.signing import Signer
from daypass_core.clock import SystemClock
from daypass_core.ids import new_id
from tests.unit.broker.rig import make_settings

POLICY = """
profiles:
  coding:
    authorization_details:
      - type: llm_inference
        provider: anthropic
        endpoints: [messages, count_tokens]
        models: ["claude-sonnet-*", "claude-haiku-4-5"]
        max_output_tokens: 8000
    budget_usd: "5.00"
    max_budget_usd: "20.00"
    lifetime_seconds: 14400
    max_lifetime_seconds: 36000
    token_ttl_seconds: 600
  sealed:
    authorization_details:
      - {type: llm_inference, provider: anthropic, endpoints: [messages], models: ["*"]}
    budget_usd: 1
    launch: single_use
tenants:
  acme: {profiles: [coding]}
  globex: {profiles: [coding, sealed]}
orchestrators:
  acme-ci: {tenant: acme}
  globex-ci: {tenant: globex}
"""

ADMIN = Principal("crd_admin", Role.ADMIN)
ACME = Principal("crd_acme", Role.ORCHESTRATOR, "acme-ci", "acme")
GLOBEX = Principal("crd_globex", Role.ORCHESTRATOR, "globex-ci", "globex")


@dataclass(frozen=True)
class Reply:
    """One answer of the admin listener."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The decoded body."""
        return cast(dict[str, Any], json.loads(self.content))


class Store:
    """A database with a policy applied, and what tests do to it directly.

    What tests write past the broker, as `owner`, they may write with another login than its own.
    """

    def __init__(self, url: str, owner_url: str = "") -> None:
        self.url = url
        self.engine = db.connect(url)
        self.owner = db.connect(owner_url) if owner_url else self.engine
        self.actor = "crd_test"

    def close(self) -> None:
        """Close the database."""
        self.engine.dispose()
        self.owner.dispose()

    def apply(
        self, policy: str = POLICY, *, dry_run: bool = False, min_token_ttl: int = 2
    ) -> policy_store.Summary:
        """Apply a policy."""
        wanted = policy_store.read(policy.encode(), min_token_ttl=min_token_ttl)
        with self.acting(revocation.lock_version) as act:
            return policy_store.apply(act, wanted, dry_run=dry_run)

    def credential(self, role: Role = Role.ADMIN, orchestrator: str | None = None) -> Issued:
        """Make a credential."""
        with self.acting() as act:
            return credential.issue(act, role, orchestrator)

    def acting(self, lock: Any = None) -> AbstractContextManager[Act]:
        """Open an act of nobody in particular."""
        return acting(self.engine, self.actor, new_id, lock=lock)

    def rows(self, table: sa.Table, **equal: object) -> list[sa.Row[Any]]:
        """Read the rows of a table whose columns equal the given values, in their written order."""
        query = sa.select(table).where(*(table.c[name] == value for name, value in equal.items()))
        order = [table.c.seq] if table is schema.audit else list(table.primary_key.columns)
        with db.read(self.engine) as conn:
            return list(conn.execute(query.order_by(*order)))

    def change(self, table: sa.Table, ident: str, **values: object) -> None:
        """Write columns of one row."""
        (key,) = table.primary_key.columns
        with db.begin(self.owner) as conn:
            changed = conn.execute(sa.update(table).where(key == ident).values(**values))
        assert changed.rowcount == 1

    def tags(self, **equal: object) -> list[str]:
        """The tags of audit events, oldest first."""
        return [row.tag for row in self.rows(schema.audit, **equal)]


_CREDENTIALS = "credentials.json"


def make_desk_template(folder: Path, template: Path) -> Path:
    """Furnish a copy of `template` in `folder` with policy and credentials, once for all desks."""
    shutil.copytree(template, folder, dirs_exist_ok=True)
    store = Store(make_settings(folder).database_url)
    store.apply()
    made = {
        "admin": store.credential(),
        "acme": store.credential(Role.ORCHESTRATOR, "acme-ci"),
        "globex": store.credential(Role.ORCHESTRATOR, "globex-ci"),
    }
    store.close()
    texts = {name: issued.text for name, issued in made.items()}
    (folder / _CREDENTIALS).write_text(json.dumps(texts), encoding="utf-8")
    return folder


class Desk(Store):
    """The admin listener over such a store, with an admin and an orchestrator of each tenant."""

    def __init__(self, folder: Path, template: Path, **settings: object) -> None:
        shutil.copytree(template, folder, dirs_exist_ok=True)
        self.settings: Settings = replace(make_settings(folder), **cast(Any, settings))
        super().__init__(self.settings.database_url)
        texts = json.loads((folder / _CREDENTIALS).read_text(encoding="utf-8"))
        self.admin, self.acme, self.globex = texts["admin"], texts["acme"], texts["globex"]
        clock = SystemClock()
        self.keys = open_ring(self.engine, self.settings.keys, new_id)
        self.services = Services(
            engine=self.engine,
            clock=clock,
            settings=self.settings,
            signer=Signer(self.keys),
            keys=self.keys,
            new_id=new_id,
        )
        self.serve(self.services)

    def serve(self, services: Services) -> None:
        """Answer with these collaborators from now on."""
        self.client = TestClient(admin_app(services), base_url="http://broker")

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        credential: str | None = "",
        **headers: str,
    ) -> Reply:
        """One request, as admin unless told otherwise; `body` is JSON, bytes go as they are.

        A credential of None sends none. The answer is checked against the OpenAPI document.
        """
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if credential is not None:
            sent["authorization"] = f"Bearer {credential or self.admin}"
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        answer = self.client.request(method, path, content=content, headers=sent)
        reply = Reply(answer.status_code, dict(answer.headers), answer.content)
        check_against_openapi(method, path, reply)
        return reply

    def sandbox(self, credential: str = "", **fields: object) -> dict[str, Any]:
        """Register a sandbox of tenant acme and return the answer."""
        body = {"tenant": "acme", **fields} if not credential else fields
        reply = self.call("POST", "/v1/sandboxes", body, credential=credential)
        assert reply.status == 201, reply.body
        return reply.body


def usage_row(number: int, **values: object) -> dict[str, object]:
    """A settled usage row that started on the given day after the epoch."""
    started = number * 86_400_000
    return {
        "id": f"req_{number}",
        "attempt": 1,
        "state": "settled",
        "account": "sandbox:sbx_a",
        "tenant": "acme",
        "sandbox": "sbx_a",
        "grant_id": "grt_a",
        "token_id": "tok_a",
        "provider": "anthropic",
        "endpoint": "messages",
        "model": "claude-sonnet-4-5",
        "reserved_nano": 5,
        "cost_nano": 7,
        "input_tokens": 10,
        "outcome": "complete",
        "worker": "w",
        "lease_until": started,
        "started_at": started,
        "settled_at": started,
        "accounts": "sandbox:sbx_a tenant:acme",
        "tokens": 10,
        **values,
    }


DOCUMENT = json.loads(openapi())


def check_against_openapi(method: str, path: str, reply: Reply) -> None:
    """Fail unless the document describes this answer: its status, media type and body."""
    operation = _operation(method, path.partition("?")[0])
    if operation is None:
        assert reply.status in (404, 405), f"{method} {path} is not described"
        schema_of_body: dict[str, Any] = {"$ref": "#/components/schemas/Problem"}
        media_type = "application/problem+json"
    else:
        described = operation["responses"].get(str(reply.status))
        assert described is not None, f"{method} {path} answered {reply.status}: {reply.content!r}"
        contents = _resolved(described)["content"]
        media_type = reply.headers["content-type"]
        assert media_type in contents
        schema_of_body = contents[media_type]["schema"]
    assert reply.headers["content-type"] == media_type
    if method != "HEAD" and "json" in media_type:
        _check(reply.body, schema_of_body)


def check_request(name: str, body: object) -> bool:
    """Say whether the document's schema of that name takes this body."""
    return _validator({"$ref": f"#/components/schemas/{name}"}).is_valid(body)


def _operation(method: str, path: str) -> dict[str, Any] | None:
    verb = "get" if method == "HEAD" else method.lower()
    for template, operations in DOCUMENT["paths"].items():
        wanted, given = template.split("/"), path.split("/")
        pairs = zip(wanted, given, strict=False)
        if len(wanted) == len(given) and all(w == g or w[:1] == "{" for w, g in pairs):
            return cast(dict[str, Any] | None, operations.get(verb))
    return None


def _resolved(value: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in value:
        return value
    found = DOCUMENT
    for part in value["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return cast(dict[str, Any], found)


def _validator(body_schema: dict[str, Any]) -> Draft202012Validator:
    whole = {"components": DOCUMENT["components"], **body_schema}
    return Draft202012Validator(whole, format_checker=FormatChecker())


def _check(body: object, body_schema: dict[str, Any]) -> None:
    errors = [
        f"{error.json_path}: {error.message}" for error in _validator(body_schema).iter_errors(body)
    ]
    assert not errors, errors

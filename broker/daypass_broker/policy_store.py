"""Writing the policy to the store and reading it back: declarative, in one transaction.

What a document names is created or brought to what it says; what it does not name stays, because
sandboxes may still live under it. Running sandboxes keep what they were given; what holds for their
tenant as a whole holds for them from the next call on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from daypass_broker import account, db, fields, limits, policy, schema, source
from daypass_broker.act import Act
from daypass_broker.audit import AuditTag
from daypass_broker.policy import Policy, Profile, Tenant
from daypass_core import money
from daypass_core.scope import parse_scope, scope_to_wire


@dataclass(frozen=True, slots=True)
class Summary:
    """What applying did, or with `dry_run` would do: paths such as `profiles.coding`."""

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    dry_run: bool = False

    def as_dict(self) -> dict[str, object]:
        """Return the summary as it goes on the wire."""
        return {
            "created": self.created,
            "updated": self.updated,
            "unchanged": self.unchanged,
            "dry_run": self.dry_run,
        }


def read(data: bytes, *, min_token_ttl: int, json_only: bool = False) -> Policy:
    """Read a policy document (YAML, of which JSON is a part).

    Raises FieldError with the path of what is wrong.
    """
    document = fields.read_json(data) if json_only else fields.read_yaml(data)
    return policy.parse(document, min_token_ttl=min_token_ttl)


def apply(act: Act, wanted: Policy, *, dry_run: bool = False) -> Summary:
    """Bring the store to the policy.

    The act was opened with `revocation.lock_version`: two appliers at once would both read "not
    there" and both insert. Raises FieldError when the policy names a profile or tenant that neither
    it nor the store has, or moves an orchestrator to another tenant.
    """
    _check_references(act.conn, wanted)
    summary = Summary(dry_run=dry_run)
    for table, path, key, values in _wanted_rows(wanted):
        _put(act, table, path, key, values, summary)
    changed = {*summary.created, *summary.updated}
    tenants = [one for one in wanted.tenants if f"tenants.{one.name}" in changed]
    if tenants and not dry_run:
        account.put_tenants(act, tenants)
    if not dry_run and (summary.created or summary.updated):
        act.tell(
            AuditTag.POLICY_APPLIED,
            detail={"created": summary.created, "updated": summary.updated},
        )
    return summary


def export(conn: sa.Connection) -> dict[str, object]:
    """Return the policy as a document that `read` takes again."""
    profiles = conn.execute(sa.select(schema.profile).order_by(schema.profile.c.name))
    tenants = conn.execute(sa.select(schema.tenant).order_by(schema.tenant.c.id))
    orchestrators = conn.execute(
        sa.select(schema.orchestrator).order_by(schema.orchestrator.c.name)
    )
    return {
        "profiles": {row.name: _profile_document(row) for row in profiles},
        "tenants": {row.id: _tenant_document(row) for row in tenants},
        "orchestrators": {row.name: {"tenant": row.tenant} for row in orchestrators},
    }


def load_profile(conn: sa.Connection, name: str) -> Profile | None:
    """Return a profile of the store, None when there is none of that name."""
    row = conn.execute(sa.select(schema.profile).where(schema.profile.c.name == name)).first()
    if row is None:
        return None
    return Profile(
        name=row.name,
        scope=parse_scope(db.from_json(row.details)),
        budget_nano=row.budget_nano,
        max_budget_nano=row.max_budget_nano,
        lifetime_s=row.lifetime_s,
        max_lifetime_s=row.max_lifetime_s,
        token_ttl_s=row.token_ttl_s,
        launch=row.launch,
        limits=limits.from_document(db.from_json(row.limits)),
        source=row.source,
        on_clone=row.on_clone,
        heartbeat_s=row.heartbeat_s,
        max_depth=row.max_depth,
    )


def load_tenant(conn: sa.Connection, name: str) -> tuple[Tenant, bool] | None:
    """Return a tenant of the store and whether it is active; None when there is no such tenant."""
    row = conn.execute(sa.select(schema.tenant).where(schema.tenant.c.id == name)).first()
    if row is None:
        return None
    tenant = Tenant(
        name=row.id,
        profiles=tuple(db.from_json(row.profiles)),
        time_zone=row.time_zone,
        limits=limits.from_document(db.from_json(row.limits)),
    )
    return tenant, row.state == "active"


def _check_references(conn: sa.Connection, wanted: Policy) -> None:
    profiles = {profile.name for profile in wanted.profiles}
    profiles |= set(conn.execute(sa.select(schema.profile.c.name)).scalars())
    for one in wanted.tenants:
        for i, name in enumerate(one.profiles):
            if name not in profiles:
                raise fields.FieldError(f"tenants.{one.name}.profiles[{i}]", f"no profile {name}")
    tenants = {one.name for one in wanted.tenants}
    tenants |= set(conn.execute(sa.select(schema.tenant.c.id)).scalars())
    table = schema.orchestrator
    owners: dict[str, str] = {row.name: row.tenant for row in conn.execute(sa.select(table))}
    for name, tenant in wanted.orchestrators.items():
        path = f"orchestrators.{name}.tenant"
        if tenant not in tenants:
            raise fields.FieldError(path, f"no tenant {tenant}")
        if owners.get(name, tenant) != tenant:
            # Its credentials would reach into the other tenant from one moment to the next.
            raise fields.FieldError(path, f"belongs to {owners[name]}: use another name")


def _wanted_rows(wanted: Policy) -> Iterator[tuple[sa.Table, str, str, dict[str, Any]]]:
    """Yield (table, path, key, columns) in the order foreign keys need."""
    for profile in wanted.profiles:
        yield schema.profile, f"profiles.{profile.name}", profile.name, _profile_columns(profile)
    for one in wanted.tenants:
        yield schema.tenant, f"tenants.{one.name}", one.name, _tenant_columns(one)
    for name, tenant in wanted.orchestrators.items():
        yield schema.orchestrator, f"orchestrators.{name}", name, {"tenant": tenant}


def _put(
    act: Act, table: sa.Table, path: str, key: str, values: dict[str, Any], summary: Summary
) -> None:
    (key_column,) = table.primary_key.columns
    row = act.conn.execute(sa.select(table).where(key_column == key)).mappings().first()
    if row is None:
        summary.created.append(path)
        values = {key_column.name: key, "created_at": act.at, **values}
        if table is schema.tenant:
            values["state"] = "active"
        if "updated_at" in table.c:
            values["updated_at"] = act.at
        statement: sa.Executable = sa.insert(table).values(**values)
    elif any(row[name] != value for name, value in values.items()):
        summary.updated.append(path)
        statement = sa.update(table).where(key_column == key).values(**values, updated_at=act.at)
    else:
        summary.unchanged.append(path)
        return
    if not summary.dry_run:
        act.conn.execute(statement)


def _profile_columns(profile: Profile) -> dict[str, Any]:
    return {
        "details": db.to_json(scope_to_wire(profile.scope)),
        "budget_nano": profile.budget_nano,
        "max_budget_nano": profile.max_budget_nano,
        "lifetime_s": profile.lifetime_s,
        "max_lifetime_s": profile.max_lifetime_s,
        "token_ttl_s": profile.token_ttl_s,
        "launch": profile.launch,
        "limits": db.to_json(profile.limits.document()),
        "source": profile.source,
        "on_clone": profile.on_clone,
        "heartbeat_s": profile.heartbeat_s,
        "max_depth": profile.max_depth,
    }


def _tenant_columns(tenant: Tenant) -> dict[str, Any]:
    return {
        "profiles": db.to_json(list(tenant.profiles)),
        "time_zone": tenant.time_zone,
        "limits": db.to_json(tenant.limits.document()),
    }


def _profile_document(row: sa.Row[Any]) -> dict[str, object]:
    return {
        "authorization_details": db.from_json(row.details),
        "budget_usd": money.format_usd(row.budget_nano),
        "max_budget_usd": money.format_usd(row.max_budget_nano),
        "lifetime_seconds": row.lifetime_s,
        "max_lifetime_seconds": row.max_lifetime_s,
        "token_ttl_seconds": row.token_ttl_s,
        "launch": row.launch,
        "source": source.document(row.source),
        "on_clone": row.on_clone,
        **({} if row.heartbeat_s is None else {"heartbeat_seconds": row.heartbeat_s}),
        "max_depth": row.max_depth,
        **db.from_json(row.limits),
    }


def _tenant_document(row: sa.Row[Any]) -> dict[str, object]:
    return {
        "profiles": db.from_json(row.profiles),
        "time_zone": row.time_zone,
        **db.from_json(row.limits),
    }

"""The orchestrator's and admin's client of the broker's admin listener.

    with Broker().sandbox(profile="coder", budget_usd="2.00") as sandbox:
        start_my_container(env=sandbox.environment, files=sandbox.files)

Each method is one HTTP call; whatever the broker refuses is raised as `Refused` with the field
it is about. Amounts are decimal strings of US dollars, times RFC 3339.
"""

from __future__ import annotations

import builtins
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, cast
from urllib.parse import quote, urlencode

from daypass._beating import beating
from daypass._errors import DaypassError, NotRevoked, Refused, Unavailable, Unreachable
from daypass._files import private_dir, write_private
from daypass._http import Origin, refusal
from daypass._settings import admin_settings

Row = dict[str, Any]
_PAGE = 100
_LARGE_PAGE = 1000


@dataclass(frozen=True)
class Sandbox:
    """A registered sandbox: `files` and `environment` go into it, `raw` is the whole answer.

    An idle one has no deadline (""), files and environment yet.
    """

    id: str
    tenant: str
    profile: str
    state: str
    deadline: str
    environment: Mapping[str, str] = field(repr=False)
    files: Mapping[str, str] = field(repr=False)
    raw: Row = field(repr=False)

    @classmethod
    def from_answer(cls, row: Row) -> Sandbox:
        """Read one sandbox from an answer of the broker."""
        return cls(
            id=str(row["id"]),
            tenant=str(row["tenant"]),
            profile=str(row["profile"]),
            state=str(row["state"]),
            deadline=str(row["deadline"] or ""),
            environment=row.get("environment") or {},
            files=row.get("files") or {},
            raw=row,
        )

    @property
    def launch(self) -> str:
        """The launch credential; only the answer that created it has one."""
        return str((self.raw.get("launch") or {}).get("credential", ""))

    @property
    def launch_mode(self) -> str:
        """`reusable` or `single_use`."""
        launch = self.raw.get("launch")
        return str(launch.get("mode", "")) if isinstance(launch, dict) else str(launch or "")

    def write(self, directory: Path) -> dict[str, str]:
        """Put the files into `directory` (private) and return the environment pointing at them.

        For sandboxes on this machine that share its file system; elsewhere mount `files`.
        """
        private_dir(directory)
        placed: dict[str, str] = {}
        for path, content in self.files.items():
            target = directory / PurePosixPath(path).name
            write_private(target, content.encode())
            placed[path] = str(target)
        return {name: placed.get(value, value) for name, value in self.environment.items()}


class Broker:
    """One broker, one credential.

    Without arguments it reads DAYPASS_ADMIN_URL and DAYPASS_CREDENTIAL[_FILE], else the
    `config.json` of `daypass up`. Raises `SettingsError` when either is nowhere to be found.
    """

    def __init__(
        self,
        url: str | None = None,
        credential: str | None = None,
        *,
        ca_file: str | Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        ca = str(ca_file) if ca_file else None
        found = admin_settings(url=url, credential=credential, ca_file=ca, env=env)
        self.url = found.url
        self._origin = Origin(found.url, ca_file=found.ca_file, env=env)
        self._headers = {"authorization": f"Bearer {found.credential}"}

    def __repr__(self) -> str:
        """Name the broker, never the credential."""
        return f"Broker({self.url!r})"

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Row:
        """One call; raises `Refused`, `Unavailable` or `Unreachable`."""
        sent = {**self._headers, **(headers or {})}
        answer = self._origin.call(method, path, query=query, body=body, raw=raw, headers=sent)
        if answer.status >= 300:
            raise refusal(answer)
        return cast("Row", answer.json()) if answer.body else {}

    @contextmanager
    def sandbox(self, **fields: Any) -> Iterator[Sandbox]:
        """Register a sandbox, give it, and end it whatever happens inside the block.

        One with a heartbeat is said to be alive for as long as the block runs.
        """
        made = self.create(**fields)
        try:
            with beating(partial(self.beat, made.id), made.raw.get("heartbeat_seconds")):
                yield made
        except BaseException:
            with suppress(DaypassError):  # the first error is the one to see
                self.end(made.id)
            raise
        self.end(made.id)

    def create(self, *, idempotency_key: str | None = None, **fields: object) -> Sandbox:
        """Register one sandbox; `fields` as in `POST /v1/sandboxes`.

        The same key gives the same sandbox again; without one, each call has a key of its own.
        """
        return Sandbox.from_answer(self._post_sandboxes(fields, idempotency_key))

    def create_many(
        self, count: int, *, idempotency_key: str | None = None, **fields: object
    ) -> list[Sandbox]:
        """Register `count` sandboxes in one call."""
        answer = self._post_sandboxes({**fields, "count": count}, idempotency_key)
        rows = answer.get("sandboxes", [answer])
        return [Sandbox.from_answer(row) for row in rows]

    def _post_sandboxes(self, fields: Mapping[str, object], key: str | None) -> Row:
        body = {name: value for name, value in fields.items() if value is not None}
        headers = {"idempotency-key": key or uuid.uuid4().hex}
        try:
            return self.call("POST", "/v1/sandboxes", body=body, headers=headers)
        except Unreachable as error:
            if not error.sent:
                raise
            # The answer was lost; the key makes the repetition give the same sandboxes.
            return self.call("POST", "/v1/sandboxes", body=body, headers=headers)

    def get(self, sandbox: str) -> Row:
        """One sandbox with what it spent, holds and has left."""
        return self.call("GET", f"/v1/sandboxes/{_segment(sandbox)}")

    def list(self, *, limit: int | None = None, **filters: object) -> Iterator[Row]:
        """Sandboxes by `tenant` and `state`, newest first, page by page until `limit`."""
        after: object = None
        left = limit
        while left is None or left > 0:
            page = min(left, _PAGE) if left is not None else _PAGE
            query = {**filters, "limit": page, "after": after}
            answer = self.call("GET", "/v1/sandboxes", query=query)
            rows = answer.get("sandboxes") or []
            yield from rows
            after = answer.get("next")
            left = None if left is None else left - len(rows)
            if not rows or after is None:
                return

    def limit(self, sandbox: str, **limits: object) -> Row:
        """Change limits of a sandbox, for its next call; `limits` as in the policy, None: none.

        Orchestrators may only lower them.
        """
        return self.call("PATCH", f"/v1/sandboxes/{_segment(sandbox)}", body=limits)

    def activate(self, sandbox: str, **fields: object) -> Sandbox:
        """Give an idle sandbox out, with its launch credential; its lifetime begins.

        `fields` as in `POST /v1/sandboxes/{id}/activate`. If the answer was lost, ask for a new
        launch credential: it can be activated once.
        """
        body = {name: value for name, value in fields.items() if value is not None}
        path = f"/v1/sandboxes/{_segment(sandbox)}/activate"
        return Sandbox.from_answer(self.call("POST", path, body=body))

    def beat(self, sandbox: str) -> Row:
        """Say that a sandbox lives; one with a heartbeat is ended when nobody does."""
        return self.call("POST", f"/v1/sandboxes/{_segment(sandbox)}/heartbeat")

    def end(self, sandbox: str) -> Row:
        """End a sandbox: its tokens die at once. Ending it twice is no error."""
        return self.call("DELETE", f"/v1/sandboxes/{_segment(sandbox)}")

    def restore(self, sandbox: str) -> Row:
        """Lift a revocation from a sandbox (admin)."""
        return self.call("POST", f"/v1/sandboxes/{_segment(sandbox)}/restore")

    def replace_launch(self, sandbox: str) -> Row:
        """Give a sandbox a new launch credential; the old one dies within a minute."""
        return self.call("POST", f"/v1/sandboxes/{_segment(sandbox)}/launch")

    def revoke(
        self,
        scope: str,
        ident: str | None = None,
        *,
        not_before: str | int | None = None,
        reason: str | None = None,
    ) -> Row:
        """Revoke `global`, or one `tenant`, `sandbox`, `grant`, `kid` or `jti`.

        Without `not_before` a tenant is closed until `restore_tenant`. Raises `NotRevoked` when the
        broker did not confirm it: then nothing has to have ended.
        """
        body = {"scope": scope, "ident": ident, "not_before": not_before, "reason": reason}
        given = {name: value for name, value in body.items() if value is not None}
        with _confirmed():
            return self.call("POST", "/v1/revocations", body=given)

    def revoke_token(self, token: str) -> Row:
        """Revoke one token, or the id of one (RFC 7009); {} when there was nothing to end.

        Raises `NotRevoked` like `revoke`.
        """
        with _confirmed():
            return self._post_form("/v1/oauth/revoke", token)

    def inspect(self, token: str) -> Row:
        """What a token says, if it is good now (RFC 7662); else `{"active": False}`."""
        return self._post_form("/v1/oauth/introspect", token)

    def _post_form(self, path: str, token: str) -> Row:
        raw = urlencode({"token": token}).encode()
        kind = "application/x-www-form-urlencoded"
        return self.call("POST", path, raw=raw, headers={"content-type": kind})

    def tenants(self) -> builtins.list[Row]:
        """Tenants with their state and how many active sandboxes they have."""
        return cast("builtins.list[Row]", self.call("GET", "/v1/tenants").get("tenants", []))

    def restore_tenant(self, tenant: str) -> Row:
        """Open a revoked tenant again (admin); its sandboxes stay revoked."""
        return self.call("POST", f"/v1/tenants/{_segment(tenant)}/restore")

    def revocations(self) -> Row:
        """The revocations in force."""
        return self.call("GET", "/v1/revocations")

    def usage(self, **filters: object) -> Row:
        """Usage and cost: `tenant`, `sandbox`, `model`, `since`, `until`, `group_by`."""
        return self.call("GET", "/v1/usage", query=filters)

    def usage_csv(
        self, *, tell_pruned: Callable[[str], object] | None = None, **filters: object
    ) -> Iterator[str]:
        """All rows of the same as CSV (RFC 4180), page by page; the first begins with a heading.

        `tell_pruned` is told, once, before which moment usage was pruned, if some of this was.
        """
        return self._csv("/v1/usage", filters, tell_pruned)

    def incidents(self, *, limit: int = 100, **filters: object) -> Row:
        """Incidents by `tenant`, `sandbox`, `kind`, `since`, `until`: the newest minutes."""
        return self.call("GET", "/v1/incidents", query={**filters, "limit": limit})

    def incidents_csv(self, **filters: object) -> Iterator[str]:
        """All rows of the same as CSV, as `usage_csv` gives them."""
        return self._csv("/v1/incidents", filters)

    def _csv(
        self,
        route: str,
        filters: Mapping[str, object],
        tell_pruned: Callable[[str], object] | None = None,
    ) -> Iterator[str]:
        query: Mapping[str, object] | None = {**filters, "format": "csv", "limit": _LARGE_PAGE}
        path, is_first = route, True
        while path == route or path.startswith(f"{route}?"):
            answer = self._origin.call("GET", path, query=query, headers=self._headers)
            if answer.status >= 300:
                raise refusal(answer)
            before = answer.headers.get("daypass-pruned-before")
            if is_first and before and tell_pruned:
                tell_pruned(before)
            text = answer.body.decode()
            yield text if is_first else text.partition("\r\n")[2]
            # RFC 8288: the next page is this one's own path with another query.
            path = answer.headers.get("link", "").partition(">")[0].removeprefix("<")
            query, is_first = None, False

    def audit(self, *, limit: int = 100, after: int | None = None, **filters: object) -> Row:
        """Audit events by `sandbox`, `tenant`, `tag`: the newest, or those that follow `after`."""
        return self.call("GET", "/v1/audit", query={**filters, "limit": limit, "after": after})

    def policy(self) -> Row:
        """The policy in force."""
        return self.call("GET", "/v1/policy")

    def apply(self, policy: str | bytes | Mapping[str, object], *, dry_run: bool = False) -> Row:
        """Put a policy (YAML or JSON text, or a mapping) in force; says what changed."""
        query = {"dry_run": "true" if dry_run else None}
        if isinstance(policy, Mapping):
            return self.call("PUT", "/v1/policy", query=query, body=policy)
        raw = policy.encode() if isinstance(policy, str) else policy
        kind = "application/json" if raw.lstrip()[:1] == b"{" else "application/yaml"
        return self.call("PUT", "/v1/policy", query=query, raw=raw, headers={"content-type": kind})

    def create_credential(self, role: str, orchestrator: str | None = None) -> Row:
        """Make a credential for an admin or an orchestrator; this answer alone shows it."""
        body = {"role": role, **({"orchestrator": orchestrator} if orchestrator else {})}
        return self.call("POST", "/v1/credentials", body=body)

    def credentials(self) -> Row:
        """Credentials without their secret part."""
        return self.call("GET", "/v1/credentials")

    def revoke_credential(self, credential: str) -> Row:
        """End a credential at once."""
        return self.call("DELETE", f"/v1/credentials/{_segment(credential)}")

    def keys(self, *, purpose: str | None = None) -> Row:
        """Signing keys of one purpose or all, newest first."""
        return self.call("GET", "/v1/keys", query={"purpose": purpose})

    def rotate_keys(self, purpose: str = "access", *, now: bool = False) -> Row:
        """Prepare the next signing key; with `now` it signs within seconds. May be repeated."""
        return self.call("POST", "/v1/keys/rotate", body={"purpose": purpose, "now": now})


@contextmanager
def _confirmed() -> Iterator[None]:
    """Turn every way of not being answered into `NotRevoked`; a refusal says no by itself."""
    try:
        yield
    except (Unavailable, Unreachable) as error:
        raise NotRevoked(f"NOT revoked: {error.message}") from error
    except Refused as error:
        if error.status < 500:
            raise
        raise NotRevoked(f"NOT revoked: {error.message}") from error


def _segment(value: str) -> str:
    return quote(value, safe="")

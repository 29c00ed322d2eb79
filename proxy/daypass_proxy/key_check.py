"""`python -m daypass_proxy check`: can each provider key be read, and as whom. No value is shown.

Reads every key once, by the login and from the places that a serving proxy would. An identity token
is not exchanged: many may be used once only, and the proxy that serves needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from daypass_core.clock import Clock
from daypass_core.secret import BadReference, Reference
from daypass_core.vault import Vault, VaultError
from daypass_proxy.key_references import KeySource, references
from daypass_proxy.keyring import Keyring
from daypass_proxy.settings import Settings

BY_TENANT = "not read: name a tenant with --tenant"


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one thing that was tried; `problem` is None where it works."""

    what: str
    problem: str | None = None
    note: str = ""

    def __str__(self) -> str:
        word = "ok" if self.problem is None else "PROBLEM"
        rest = self.problem or self.note
        return f"{word:8}{self.what}" + (f": {rest}" if rest else "")


def check(settings: Settings, clock: Clock, tenant: str | None) -> list[Finding]:
    """Try the login and every key; those of the "*" templates are those of `tenant`."""
    with ExitStack() as stack:
        findings, vault = list[Finding](), None
        if settings.vault is not None:
            vault = Vault(settings.vault)
            stack.callback(vault.close)
            findings.append(_login(vault, settings.vault.address))
        return findings + asyncio.run(_keys(settings, clock, vault, tenant))


def _login(vault: Vault, address: str) -> Finding:
    what = f"vault {address}, {vault.login}"
    try:
        vault.reach()
    except VaultError as error:
        return Finding(what, str(error))
    left = vault.seconds_left
    return Finding(what, note="" if left is None else f"the token ends in {left:.0f} s")


async def _keys(
    settings: Settings, clock: Clock, vault: Vault | None, tenant: str | None
) -> list[Finding]:
    users, sources = _wanted(settings, tenant)
    ring = Keyring(sources, env_secrets=settings.env_secrets, vault=vault, clock=clock)
    try:
        await ring.start()
        found = ring.findings
    finally:
        await ring.close()
    return [_finding(reference, names, found) for reference, names in users.items()]


def _wanted(
    settings: Settings, tenant: str | None
) -> tuple[dict[Reference, list[str]], dict[str, Mapping[str, KeySource]]]:
    """Return who uses each key, and the same as sources of a keyring, of identity files too."""
    users: dict[Reference, list[str]] = {}
    sources: dict[str, Mapping[str, KeySource]] = {}
    for provider, tenants in settings.keys.items():
        for whose, source in tenants.items():
            for reference in references(source):
                own = _of(reference, tenant)
                users.setdefault(own, []).append(f"{provider}, {whose}")
                sources[str(own)] = {"*": _readable(own)}
    return users, sources


def _of(reference: Reference, tenant: str | None) -> Reference:
    if tenant is None or not reference.per_tenant:
        return reference
    try:
        return reference.for_tenant(tenant)
    except BadReference:
        return reference


def _readable(reference: Reference) -> Reference:
    return replace(reference, kind="file", field="") if _is_identity(reference) else reference


def _is_identity(reference: Reference) -> bool:
    return reference.kind == "federation"


def _finding(
    reference: Reference, names: list[str], found: Mapping[Reference, str | None]
) -> Finding:
    what = f"{reference} ({'; '.join(names)})"
    if reference.per_tenant:
        return Finding(what, note=BY_TENANT)
    note = "the identity token can be read; it was not exchanged" if _is_identity(reference) else ""
    return Finding(what, found.get(_readable(reference), "was not read"), note)


def show(findings: list[Finding], write: Callable[[str], object]) -> int:
    """Write a line for each finding; return the exit code, 1 when one is a problem."""
    for finding in findings:
        write(f"{finding}\n")
    return int(any(finding.problem is not None for finding in findings))

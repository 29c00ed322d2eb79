"""A federation rule: which attested workloads of one tenant may have a sandbox, and how.

A rule names the issuer to believe, the audience its assertions are made out to, the claims that are
demanded, and the claims that tell one workload from another. `rule_request` reads one from what an
administrator sends, `rule_store` keeps it, `attest.federation` holds assertions against it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

Scalar = str | int | bool

_MAX_IDENTITY = 2048
_ABSENT = object()


class Kind(StrEnum):
    """How an assertion is checked: by the issuer's public keys, or by asking the cluster."""

    OIDC = "oidc"
    KUBERNETES = "kubernetes"


class Replay(StrEnum):
    """How often one assertion may be shown: until it expires by one sandbox, or once."""

    UNTIL_EXP = "until_exp"
    ONCE = "once"


class AfterDeadline(StrEnum):
    """What a workload gets whose sandbox has come to its deadline: nothing more, or a new one."""

    REFUSE = "refuse"
    NEW = "new"


class State(StrEnum):
    """Whether a rule is in force."""

    ACTIVE = "active"
    DISABLED = "disabled"


class NoIdentity(ValueError):
    """An assertion lacks a claim that would name its workload; the message names the claim."""


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where the issuer's public keys are: a URL, here (`inline`, a JWK set), or by discovery."""

    url: str | None = None
    inline: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; `conditions` map a claim to the values allowed, `identity` names claims.

    `max_life_s` is the longest an assertion may live, from its `iat` to its `exp`; `max_sandboxes`
    how many sandboxes of this rule may live at once.
    """

    id: str
    name: str
    tenant: str
    profile: str
    kind: Kind
    issuer: str
    audience: str
    conditions: Mapping[str, tuple[Scalar, ...]]
    identity: tuple[str, ...]
    keys: KeySource = KeySource()
    replay: Replay = Replay.UNTIL_EXP
    after_deadline: AfterDeadline = AfterDeadline.REFUSE
    max_life_s: int = 3600
    max_sandboxes: int = 1000
    state: State = State.ACTIVE

    def unmet(self, claims: Mapping[str, object]) -> str | None:
        """Return the first claim that is not as the rule demands, None when all are."""
        for path, allowed in self.conditions.items():
            found = claim(claims, path)
            if not any(_equals(found, value) for value in allowed):
                return path
        return None

    def name_workload(self, claims: Mapping[str, object]) -> str:
        """Return the canonical JSON of the claims that name a workload; raises NoIdentity."""
        values: dict[str, object] = {}
        for path in self.identity:
            value = claim(claims, path)
            # Null, a list or an empty text would make one workload of many.
            if value == "" or type(value) not in (str, int):
                raise NoIdentity(path)
            values[path] = value
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        if len(text) > _MAX_IDENTITY:
            raise NoIdentity(f"{self.identity[0]}: is too long")
        return text


def claim(claims: Mapping[str, object], path: str) -> object:
    """Return a claim by its name, or inside of others by its JSON pointer (RFC 6901, with a `/`).

    What is not there is equal to nothing.
    """
    if not path.startswith("/"):
        return claims.get(path, _ABSENT)
    found: object = claims
    for part in path[1:].split("/"):
        if not isinstance(found, dict):
            return _ABSENT
        found = found.get(part.replace("~1", "/").replace("~0", "~"), _ABSENT)
    return found


def _equals(found: object, allowed: Scalar) -> bool:
    """Compare a claim with an allowed value; a text that ends with `*` allows a beginning."""
    # By type as well: True is 1 in Python, and 1 is not "1" to an issuer.
    if type(found) is not type(allowed):
        return False
    if isinstance(found, str) and isinstance(allowed, str) and allowed.endswith("*"):
        return found.startswith(allowed[:-1])
    return found == allowed

"""Revocations in force, and the rules by which they end tokens.

The broker writes the rows; broker and proxy build this immutable set from them and ask it at
every issue and every call. Two kinds of rows: a *cut-off* ends everything of its scope issued at
or before its second (`iat <= not_before`), an *absolute* row has no `not_before` and ends its
subject for good. Cut-offs over global, tenant, sandbox and grants combine by max().
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from daypass_core.claims import Claims

SCOPES = ("global", "tenant", "sandbox", "grant", "kid", "jti")
CHANNEL = "daypass_revocations"
"""The PostgreSQL channel on which the broker tells that there is a new version: a hint to look."""
_GLOBAL = ("global", "")
# One key or one token is either good or not: a row that names it is absolute, whatever it carries.
_ALWAYS_ABSOLUTE = frozenset({"kid", "jti"})


@dataclass(frozen=True, slots=True)
class Revocation:
    """One row; times in epoch seconds, `not_before` None makes it absolute."""

    scope: str
    ident: str
    not_before: int | None
    expires_at: int


class Verdict(StrEnum):
    """How a token ended."""

    # This one token only: answered like expiry, a new one may be fetched.
    TOKEN_ENDED = "token_ended"  # noqa: S105  a word, no password
    # Its whole line: no new one will be issued.
    REVOKED = "revoked"


class RevocationSet:
    """All revocations in force at one version of the store."""

    def __init__(
        self, cut_offs: dict[tuple[str, str], int], absolute: frozenset[tuple[str, str]]
    ) -> None:
        self._cut_offs = cut_offs
        self._absolute = absolute
        # What any row names, by scope: nearly every token is none of these, which is soon seen.
        named = self._named = absolute.union(cut_offs)
        self._everybody = _GLOBAL in named
        self._tenants, self._sandboxes, self._grants, self._keys, self._tokens = (
            frozenset(ident for scope, ident in named if scope == wanted)
            for wanted in ("tenant", "sandbox", "grant", "kid", "jti")
        )

    @classmethod
    def from_rows(cls, rows: Iterable[Revocation]) -> "RevocationSet":
        """Build the set. Raises ValueError on an unknown scope: not understood is not enforced."""
        cut_offs: dict[tuple[str, str], int] = {}
        absolute: set[tuple[str, str]] = set()
        for row in rows:
            if row.scope not in SCOPES:
                raise ValueError(f"unknown revocation scope {row.scope!r}")
            key = _key(row.scope, row.ident)
            if row.not_before is None or row.scope in _ALWAYS_ABSOLUTE:
                absolute.add(key)
            else:
                cut_offs[key] = max(row.not_before, cut_offs.get(key, row.not_before))
        return cls(cut_offs, frozenset(absolute))

    def verdict(self, claims: Claims) -> Verdict | None:
        """Return how this access token ended, None while it is in force."""
        if not self._named or not self._names(claims):
            return None
        subjects = _subjects(claims.tenant, claims.sandbox, claims.grants)
        if self.absolute("kid", claims.key_id) or not self._absolute.isdisjoint(subjects):
            return Verdict.REVOKED
        cut_off = self.cut_off(claims.tenant, claims.sandbox, claims.grants)
        # <= and not <: iat has whole seconds, and the broker issues nothing in a cut-off's second.
        if cut_off is not None and claims.issued_at <= cut_off:
            return Verdict.REVOKED
        return Verdict.TOKEN_ENDED if self.absolute("jti", claims.token_id) else None

    def _names(self, claims: Claims) -> bool:
        """Say whether any row could speak of this token, whatever its time."""
        return (
            self._everybody
            or claims.sandbox in self._sandboxes
            or claims.tenant in self._tenants
            or claims.token_id in self._tokens
            or claims.key_id in self._keys
            or not self._grants.isdisjoint(claims.grants)
        )

    def cut_off(self, tenant: str, sandbox: str, grants: Iterable[str]) -> int | None:
        """Return the latest second (epoch) whose tokens are ended, None without a cut-off."""
        keys = _subjects(tenant, sandbox, grants)
        return max((self._cut_offs[key] for key in keys if key in self._cut_offs), default=None)

    def absolute(self, scope: str, ident: str) -> bool:
        """Say whether this subject was ended for good; `ident` is ignored for global."""
        return _key(scope, ident) in self._absolute

    def __len__(self) -> int:
        return len(self._cut_offs) + len(self._absolute)


def _key(scope: str, ident: str) -> tuple[str, str]:
    return _GLOBAL if scope == "global" else (scope, ident)


def _subjects(tenant: str, sandbox: str, grants: Iterable[str]) -> list[tuple[str, str]]:
    return [
        _GLOBAL,
        ("tenant", tenant),
        ("sandbox", sandbox),
        *(("grant", grant) for grant in grants),
    ]

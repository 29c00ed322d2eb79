"""What each role may do in a PostgreSQL database: as the catalogue has it, and one statement each.

The form is that of `tests/vectors/grants.json`: role, table, privilege, and the columns, or `*`
where the whole table is granted. Grants to everybody stand under `public`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import psycopg

Grants = dict[str, dict[str, dict[str, list[str] | str]]]
ROLES = ("daypass_broker", "daypass_proxy")

_TABLES = """
SELECT coalesce(grantee::regrole::text, ''), c.relname, privilege_type
FROM pg_class c, aclexplode(c.relacl) WHERE c.relnamespace = 'public'::regnamespace
    AND c.relkind IN ('r', 'p', 'S', 'v', 'm') AND grantee <> c.relowner
"""
_COLUMNS = """
SELECT grantee::regrole::text, c.relname, privilege_type, a.attname
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid, aclexplode(a.attacl)
WHERE c.relnamespace = 'public'::regnamespace AND grantee <> c.relowner ORDER BY a.attnum
"""
_FUNCTIONS = """
SELECT grantee::regrole::text, p.proname || '()', privilege_type
FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner)))
WHERE p.pronamespace = 'public'::regnamespace AND grantee <> p.proowner
"""
_EVERY_COLUMN = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
ORDER BY c.relname, a.attnum
"""


class Attempt(NamedTuple):
    """One privilege on one table, of one column unless it is about whole rows; and its use."""

    table: str
    column: str
    privilege: str
    statement: str


def granted(owner: psycopg.Connection) -> Grants:
    """Return every grant in the catalogue that is not the owner's own."""
    found: Grants = {}
    for query in (_TABLES, _FUNCTIONS):
        for role, name, privilege in owner.execute(query.encode()).fetchall():
            found.setdefault(_role(role), {}).setdefault(name, {})[privilege] = "*"
    for role, name, privilege, column in owner.execute(_COLUMNS.encode()).fetchall():
        columns = found.setdefault(_role(role), {}).setdefault(name, {}).setdefault(privilege, [])
        if isinstance(columns, list):
            columns.append(column)
    return found


def attempts(owner: psycopg.Connection) -> Iterator[Attempt]:
    """Yield every privilege that there could be, with a statement that needs it and no other.

    No statement touches a row, so what is granted is proved as well as what is not.
    """
    tables: list[str] = []
    for table, column, kind in owner.execute(_EVERY_COLUMN.encode()).fetchall():
        if table not in tables:
            tables.append(table)
        new = f"INSERT INTO {table} ({column}) SELECT CAST(NULL AS {kind}) WHERE false"
        yield Attempt(table, column, "SELECT", f"SELECT {column} FROM {table} WHERE false")
        yield Attempt(table, column, "INSERT", new)
        yield Attempt(table, column, "UPDATE", f"UPDATE {table} SET {column} = NULL WHERE false")
    for table in tables:
        yield Attempt(table, "", "DELETE", f"DELETE FROM {table} WHERE false")
        yield Attempt(table, "", "TRUNCATE", f"TRUNCATE {table}")
        trigger = (
            f"CREATE TRIGGER own BEFORE UPDATE ON {table} EXECUTE FUNCTION audit_is_appended()"
        )
        yield Attempt(table, "", "TRIGGER", trigger)


def allows(grants: Grants, role: str, wanted: Attempt) -> bool:
    """Say whether a grant covers an attempt."""
    columns = grants.get(role, {}).get(wanted.table, {}).get(wanted.privilege, [])
    return columns == "*" or wanted.column in columns


def _role(name: str) -> str:
    return "public" if name == "-" else name

"""Logins that are members of the roles of the migrations, as broker and proxy have them outside.

What runs on PostgreSQL in tests runs under these, so a grant that is missing fails some test.
"""

import psycopg
from sqlalchemy.engine import make_url

BROKER = "daypass_broker"
PROXY = "daypass_proxy"

# Roles belong to the server: other databases' tests may make the same login at this moment.
_LOGIN = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{login}') THEN
        CREATE ROLE {login} LOGIN IN ROLE {role};
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
END $$
"""


def as_member(owner_url: str, role: str) -> str:
    """Return the URL of a migrated database for a login that is a member of `role`, no more.

    SQLite has no roles.
    """
    if not owner_url.startswith("postgresql"):
        return owner_url
    login = f"{role}_login"
    with psycopg.connect(owner_url.replace("+psycopg", "")) as connection:
        connection.execute(_LOGIN.format(login=login, role=role).encode())
    return make_url(owner_url).set(username=login).render_as_string(hide_password=False)

#!/bin/sh
# Runs once in the fresh database: the logins of broker and proxy, each a member of its role, with the password of its URL.
set -eu
psql --no-psqlrc -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
\set broker `sed -E 's|^[^:]+://[^:]+:([^@]+)@.*$|\1|' "${SECRETS:-/run/secrets}/broker-url"`
\set proxy `sed -E 's|^[^:]+://[^:]+:([^@]+)@.*$|\1|' "${SECRETS:-/run/secrets}/proxy-url"`
SELECT format('CREATE ROLE %I NOLOGIN', wanted)
  FROM unnest(ARRAY['daypass_broker', 'daypass_proxy']) AS wanted
 WHERE wanted NOT IN (SELECT rolname FROM pg_roles) \gexec
CREATE ROLE broker LOGIN PASSWORD :'broker' IN ROLE daypass_broker;
CREATE ROLE proxy LOGIN PASSWORD :'proxy' IN ROLE daypass_proxy;
SQL

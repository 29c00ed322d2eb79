#!/bin/sh
# Makes what compose.yaml mounts, once: random passwords, the database's URLs. Needs openssl only.
# The folder is yours alone; files in it are readable, since they are mounted for another user.
set -eu
umask 022
here=$(cd "$(dirname "$0")" && pwd)
secrets=${1:-$here/secrets}
mkdir -m 0700 -p "$secrets"
make() { [ -e "$secrets/$1" ] || printf '%s' "$2" >"$secrets/$1"; }
make owner-password "$(openssl rand -hex 24)"
make owner-url "postgresql://owner:$(cat "$secrets/owner-password")@postgres:5432/daypass"
make broker-url "postgresql://broker:$(openssl rand -hex 24)@postgres:5432/daypass"
make proxy-url "postgresql://proxy:$(openssl rand -hex 24)@postgres:5432/daypass"
echo "secrets are in $secrets; still missing: tls (server.pem, server.key, ca.pem) and vault-secret-id, see compose.yaml"

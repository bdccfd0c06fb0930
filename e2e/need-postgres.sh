#!/usr/bin/env bash
# need-postgres.sh: make sure that the tests find a Postgres server; install one where we may.
set -euo pipefail

[ -n "${TEST_POSTGRES_DSN:-}" ] && exit 0
command -v initdb >/dev/null && exit 0
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
	echo "installing postgresql for the tests" >&2
	export DEBIAN_FRONTEND=noninteractive
	{ apt-get install -y --no-install-recommends postgresql ||
		{ apt-get update && apt-get install -y --no-install-recommends postgresql; }; } >/dev/null && exit 0
fi
echo "no Postgres server: install one (Debian: apt-get install postgresql) or set TEST_POSTGRES_DSN" >&2
exit 1

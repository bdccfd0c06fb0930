#!/usr/bin/env bash
# tidy-check.sh: fail when a go.mod or go.sum of this repository is not what `go mod tidy` makes of it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
status=0
while read -r module; do
	if ! (cd "$(dirname "$module")" && GOWORK=off go mod tidy -diff); then
		echo "tidy-check: run go mod tidy in $(dirname "$module")" >&2
		status=1
	fi
done < <(find . -name go.mod -not -path '*/testdata/*' -not -path './.git/*' | sort)
exit $status

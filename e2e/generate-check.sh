#!/usr/bin/env bash
# generate-check.sh: fail when `make generate` changes a file. It compares with what is there, not with a commit,
# so that it also works before one; what it changed stays, for you to look at.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
fingerprints() {
	find proto internal/index migrations -type f -print0 2>/dev/null | sort -z | xargs -0r sha256sum
}
before=$(fingerprints)
make --no-print-directory generate
if ! diff <(echo "$before") <(fingerprints); then
	echo "generate-check: generated code is out of date: run make generate, and commit" >&2
	exit 1
fi

#!/usr/bin/env bash
# previous.sh: print the path of bctl as the release before this one had it, building it if it is not in the cache.
# previous.sh --commit: print the commit of that release.
#
# The file previous-release has the commit. The source is taken from this clone: where that does not have the commit
# (a shallow clone, an archive), it exits with status 3.
# The cache is tool.sh's; its key is the commit and Go's version.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
commit=$(grep -v '^#' "$here/previous-release")
git() { command git -c safe.directory="*" -C "$here/.." "$@"; } # it is only read, whoever made the clone
if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
	echo "previous.sh: commit $commit, which e2e/previous-release names, is not in this clone (git fetch --unshallow may bring it)" >&2
	exit 3
fi
if [ "${1:-}" = --commit ]; then
	echo "$commit"
	exit 0
fi
cache=${BCTL_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/bctl-tools}/$(go env GOVERSION)
directory=$cache/bctl@$commit
binary=$directory/bctl
if [ ! -x "$binary" ]; then
	mkdir -p "$directory"
	exec 9>"$directory/lock"
	flock 9 # several test binaries may ask at once: one builds, the rest wait
	if [ ! -x "$binary" ]; then
		echo "building bctl of $commit (once on this machine)" >&2
		source=$(mktemp -d)
		trap 'rm -rf "$source"' EXIT
		git archive "$commit" | tar -x -C "$source"
		CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly go build -C "$source" -trimpath -buildvcs=false -o "$binary.partial" ./services/bctl >&2
		mv "$binary.partial" "$binary"
	fi
	exec 9>&-
fi
echo "$binary"

#!/usr/bin/env bash
# tool.sh NAME...: print the path of each pinned program, one a line, building what is not in the cache.
#
# A program is a directory under e2e/servers or e2e/tools whose go.mod names it in its tool directive:
# a module each, because their dependencies disagree and because none of them belongs in bctl's own.
# The cache outlives a clone. Its key is what decides the binary: the program's version and Go's.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${BCTL_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/bctl-tools}/$(go env GOVERSION)
mkdir -p "$cache"

# A module's own settings decide, not those of a caller's environment.
export CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly

build() {
	local name=$1 module package version binary started
	for module in "$here"/servers/"$name" "$here"/tools/"$name"; do
		[ -f "$module/go.mod" ] && break
	done
	[ -f "$module/go.mod" ] || { echo "tool.sh: no $name under e2e/servers or e2e/tools" >&2; return 2; }
	read -r package version < <(go list -C "$module" -f '{{.ImportPath}} {{.Module.Version}}' tool)
	binary=$cache/$name@$version/$name
	if [ ! -x "$binary" ]; then
		exec 9>"$cache/$name.lock"
		flock 9 # several test binaries may ask at once: one builds, the rest wait
		if [ ! -x "$binary" ]; then
			echo "building $name $version (once on this machine)" >&2
			started=$SECONDS
			mkdir -p "${binary%/*}"
			go build -C "$module" -trimpath -buildvcs=false -ldflags='-s -w' -o "$binary.partial" "$package" >&2
			mv "$binary.partial" "$binary"
			echo "built $name in $((SECONDS - started)) s" >&2
		fi
		exec 9>&-
	fi
	echo "$binary"
}

for name in "$@"; do
	build "$name"
done

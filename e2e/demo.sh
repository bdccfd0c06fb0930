#!/usr/bin/env bash
# The main job, shown: back a tree up, change it, back it up again, list, restore, compare.
# usage: demo.sh [DIR]     DIR is only read: what is changed is a copy. Needs bctl on PATH, and Go.
set -euo pipefail

work=$(mktemp -d "${TMPDIR:-/tmp}/bctl-demo.XXXXXX")
trap 'rm -rf "$work"' EXIT
export BCTL_REPO=$work/repository XDG_CONFIG_HOME=$work/config
tree=$work/tree restored=$work/restored

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }

if [ $# -gt 0 ]; then
	say "A copy of $1 is what we back up"
	cp -a --reflink=auto "$1" "$tree"
else
	say "A tree to back up: this project's source, and some oddities"
	mkdir "$tree"
	(cd "$(dirname "$0")/.." && cp -a README.md go.mod docs internal proto services "$tree")
	ln -s README.md "$tree/link"
	ln "$tree/README.md" "$tree/hardlink"
	mkfifo "$tree/fifo"
	truncate -s 1G "$tree/sparse" # one gigabyte of hole
	printf 'end' >>"$tree/sparse"
	printf 'any bytes' >"$tree/$(printf 'name \xff\xfe with\nany bytes')"
	chmod 0600 "$tree/README.md"
fi
find "$tree" | wc -l | xargs printf '%s entries\n'

say "Make a repository, and back the tree up"
run bctl init
run bctl backup "$tree"

say "Change something: one file added, one removed, one directory moved"
echo 'written between two backups' >"$tree/new-file"
victim=$(find "$tree" -mindepth 1 -maxdepth 1 -type f ! -name new-file | sort | head -n 1)
[ -z "$victim" ] || run rm "$victim"
moved=$(find "$tree" -mindepth 1 -maxdepth 1 -type d | sort | head -n 1)
[ -z "$moved" ] || run mv "$moved" "$moved-moved"

say "Back it up again: every entry is looked at once, and only what changed is read"
run bctl backup "$tree"

say "What there is"
run bctl snapshot ls

say "Restore the newest snapshot, and compare it with the tree in every attribute"
run bctl restore latest --target "$restored"
(cd "$(dirname "$0")/.." && go run ./internal/source/treetest/treediff "$tree" "$restored")
echo "the restored tree equals the tree"

say "Restore again: files that are in place are skipped"
run bctl restore latest --target "$restored"

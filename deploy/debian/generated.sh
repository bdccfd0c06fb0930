#!/bin/sh
# generated.sh DIRECTORY: write what a package holds and is made from the source: completions of shells, and the changelog.
set -eu

directory=$1
mkdir -p "$directory"
program=$directory/bctl
CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$program" ./services/bctl
for shell in bash zsh fish; do
	"$program" completion "$shell" >"$directory/bctl.$shell"
done
rm "$program"
gzip -9n <CHANGELOG.md >"$directory/changelog.gz"

#!/usr/bin/env bash
# fuzz.sh DURATION [PACKAGE...]: run every fuzz target of the packages for that long, one after another.
# `go test -fuzz` takes one target of one package at a time.
set -euo pipefail

duration=$1
shift
found=0
for package in $(go list "${@:-./...}"); do
	for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		echo "== $package $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" "$package"
		found=$((found + 1))
	done
done
echo "$found fuzz targets ran for $duration each"

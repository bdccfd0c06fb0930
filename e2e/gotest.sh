#!/usr/bin/env bash
# gotest.sh [FLAGS…] -- PACKAGES…: go test of packages of two modules: bctl's, and that of its end-to-end tests,
# whose packages begin with ./e2e. Both run side by side; the output of the second follows that of the first.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
flags=() main=() e2e=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	flags+=("$1")
	shift
done
for package in "${@:2}"; do
	case $package in
	./e2e) e2e+=(.) ;;
	./e2e/*) e2e+=("./${package#./e2e/}") ;;
	*) main+=("$package") ;;
	esac
done
if [ ${#main[@]} -eq 0 ]; then
	exec go test -C e2e "${flags[@]}" "${e2e[@]}"
elif [ ${#e2e[@]} -eq 0 ]; then
	exec go test "${flags[@]}" "${main[@]}"
fi
output=$(mktemp)
trap 'kill $e2e_pid 2>/dev/null; rm -f "$output"' EXIT
go test -C e2e "${flags[@]}" "${e2e[@]}" >"$output" 2>&1 &
e2e_pid=$!
status=0
go test "${flags[@]}" "${main[@]}" || status=$?
wait $e2e_pid || status=$?
cat "$output"
exit $status

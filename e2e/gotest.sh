#!/usr/bin/env bash
# gotest.sh [FLAGS…] -- PACKAGES… [--plain PACKAGES…]: go test of packages of two modules: bctl's, and that of its
# end-to-end tests, whose packages begin with ./e2e. Packages after --plain are tested without the race detector, and left
# out of the others. All run side by side; the outputs follow one another.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
flags=() main=() e2e=() plain_main=() plain_e2e=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	flags+=("$1")
	shift
done
prefix=
for package in "${@:2}"; do
	case $prefix$package in
	--plain) prefix=plain: ;;
	./e2e) e2e+=(.) ;;
	./e2e/*) e2e+=("./${package#./e2e/}") ;;
	plain:./e2e/*) plain_e2e+=("./${package#./e2e/}") ;;
	plain:*) plain_main+=("$package") ;;
	*) main+=("$package") ;;
	esac
done

# without DIRECTORY N PACKAGES… prints the packages after the first N that are not among these.
without() {
	local directory=$1 n=$2
	shift 2
	[ $# -gt "$n" ] || return 0
	if [ "$n" = 0 ]; then
		printf '%s\n' "$@"
		return
	fi
	go list -C "$directory" "${@:n+1}" | grep -vxFf <(go list -C "$directory" "${@:1:n}")
}
mapfile -t main < <(without . ${#plain_main[@]} "${plain_main[@]}" "${main[@]}")
mapfile -t e2e < <(without e2e ${#plain_e2e[@]} "${plain_e2e[@]}" "${e2e[@]}")
plain_flags=()
for flag in "${flags[@]}"; do
	[ "$flag" = -race ] || plain_flags+=("$flag")
done

outputs=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; rm -rf "$outputs"' EXIT
# beside NAME ARGS… runs go test in the background.
beside() {
	go test "${@:2}" >"$outputs/$1" 2>&1 &
	pids+=($!)
}
# Tests of fleets mostly wait for leases and processes: more of them than cores run in parallel.
[ ${#e2e[@]} -eq 0 ] || beside e2e -C e2e -parallel 4 "${flags[@]}" "${e2e[@]}"
[ ${#plain_main[@]} -eq 0 ] || beside plain-main "${plain_flags[@]}" "${plain_main[@]}"
[ ${#plain_e2e[@]} -eq 0 ] || beside plain-e2e -C e2e "${plain_flags[@]}" "${plain_e2e[@]}"
status=0
if [ ${#main[@]} -gt 0 ]; then
	go test "${flags[@]}" "${main[@]}" || status=$?
fi
for pid in "${pids[@]}"; do
	wait "$pid" || status=$?
done
for output in "$outputs"/*; do
	[ ! -e "$output" ] || cat "$output"
done
exit $status

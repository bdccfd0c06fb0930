#!/usr/bin/env bash
# gotest.sh [FLAGS…] -- PACKAGES… [--plain PACKAGES…]: go test of packages of two modules: bctl's, and that of its
# end-to-end tests, whose packages begin with ./e2e. Packages after --plain are tested without the race detector, and left
# out of the others. All run side by side; the outputs follow one another.
#
# With BCTL_TEST_AGAIN=1, a few tests that fail are run once more when all others have ended, and count as what they are
# then: on a busy machine, a test that waits for many processes can fail without a fault. A line that begins with FLAKY
# names them. Races, panics, and tests that print a seed, because they decide at random, are not run again.
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
	plain:./e2e) plain_e2e+=(.) ;;
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
main_flags=("${flags[@]}")
e2e_flags=(-C e2e -parallel 4 "${flags[@]}")
plain_main_flags=("${plain_flags[@]}")
plain_e2e_flags=(-C e2e -parallel 3 "${plain_flags[@]}")
[ ${#e2e[@]} -eq 0 ] || beside e2e "${e2e_flags[@]}" "${e2e[@]}"
[ ${#plain_main[@]} -eq 0 ] || beside plain_main "${plain_main_flags[@]}" "${plain_main[@]}"
[ ${#plain_e2e[@]} -eq 0 ] || beside plain_e2e "${plain_e2e_flags[@]}" "${plain_e2e[@]}"
status=0
if [ ${#main[@]} -gt 0 ]; then
	go test "${main_flags[@]}" "${main[@]}" 2>&1 | tee "$outputs/main" || status=$?
fi
for pid in "${pids[@]}"; do
	wait "$pid" || status=$?
done
for output in "$outputs"/*; do
	[ "$output" = "$outputs/main" ] || [ ! -e "$output" ] || cat "$output"
done
[ $status -ne 0 ] && [ -n "${BCTL_TEST_AGAIN:-}" ] || exit $status

# failures FILE… prints, for each package that failed, the output that it is in, the package, and the number and the names of
# the tests to run again. A package that must not be run again has no names.
failures() {
	awk '
		/^--- FAIL: / { names = names "|" $3; number++ }
		/DATA RACE|^panic: |[Ss]eed/ { final = 1 }
		/^FAIL\t/ { name = FILENAME; sub(/.*\//, "", name); print name, $2, number + 0, final ? "" : substr(names, 2) }
		/^(ok|FAIL|\?) *\t/ { names = ""; number = 0; final = 0 }
	' "$@"
}

mapfile -t failed < <(failures "$outputs"/*)
number=0
for line in "${failed[@]}"; do
	read -r _ _ n names <<<"$line"
	[ -n "$names" ] || exit $status
	number=$((number + n))
done
[ $number -gt 0 ] && [ $number -le 6 ] || exit $status
for line in "${failed[@]}"; do
	read -r output package _ names <<<"$line"
	declare -n again="${output}_flags"
	go test "${again[@]}" -count 1 -run "^($names)\$" "$package" || exit
	echo "FLAKY $package: ${names//|/, } failed beside other tests, and passed alone"
done

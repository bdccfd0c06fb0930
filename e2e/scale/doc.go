//go:build linux

// Package scale measures how a fleet scales: walkers on one shard, a walker
// that dies, and the index of hundreds of filers.
//
//	make bench-scale
//	go test -C e2e ./scale -run '^$' -bench ScaleOut -benchtime 1x -args -assert -markdown $PWD/docs/benchmarks.md
//
// These are benchmarks of whole runs, with processes and servers: one iteration each says it
// all. What must be true however fast the machine is (limits hold, plans use indexes) is checked always,
// some of it by a test on a small fleet; how fast it must be, with -assert only.
//
// A walk is measured at the filer, a slowfs, by the requests that come in: its clock is not
// that of any service.
package scale

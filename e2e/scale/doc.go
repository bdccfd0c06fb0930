//go:build linux

// Package scale measures how a fleet scales: walkers on one shard, a walker
// that dies, and the index of hundreds of filers.
//
//	make bench-scale
//	go test -C e2e ./scale -run '^$' -bench ScaleOut -benchtime 1x \
//		-args -assert -results $PWD/docs/bench
//
// Each benchmark runs processes and servers, and one iteration suffices. Conditions that do not
// depend on the speed of the machine (limits hold, plans use indexes) are always checked, some of
// them by a test on a small fleet. Conditions on the speed are checked only with -assert.
//
// A walk is measured at the filer, a slowfs, by the requests that it receives. No service's clock
// affects the measurement.
package scale

//go:build !race

package testenv

// Race reports whether the tests, and so the programs that they run, have the race detector.
const Race = false

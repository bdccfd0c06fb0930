//go:build race

package schedule

// With the race detector the simulation is a shorter one.
const raceDetector = true

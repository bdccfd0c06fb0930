//go:build race

package schedule

// With the race detector the simulation is shorter.
const raceDetector = true

//go:build race

package listing

// With the race detector, sync.Pool randomly drops items.
const raceDetector = true

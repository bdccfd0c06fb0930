//go:build race

package walk

// With the race detector, sync.Pool randomly drops objects.
const raceDetector = true

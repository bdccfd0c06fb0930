//go:build race

package walk

// With the race detector, sync.Pool drops what it is given now and then.
const raceDetector = true

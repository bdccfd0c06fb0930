//go:build !race

package listing

const raceDetector = false

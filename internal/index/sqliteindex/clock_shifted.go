//go:build shiftedclock

package sqliteindex

import (
	"os"
	"time"
)

// ClockSetting is the environment variable that shifts the clock of the index in programs that are
// built with the tag shiftedclock. Tests build such programs; releases are built without it.
const ClockSetting = "BCTL_TEST_CLOCK_SHIFT"

// clockShift returns by how much the clock of this index differs from that of the machine.
func clockShift() time.Duration {
	text := os.Getenv(ClockSetting)
	if text == "" {
		return 0
	}
	by, err := time.ParseDuration(text)
	if err != nil {
		panic(ClockSetting + ": " + err.Error()) // a mistake in the test
	}
	return by
}

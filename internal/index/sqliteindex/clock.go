//go:build !shiftedclock

package sqliteindex

import "time"

// clockShift returns by how much the clock of this index differs from that of the machine.
func clockShift() time.Duration { return 0 }

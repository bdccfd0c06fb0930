package policy

import (
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// The governor lets a slow filer do less than its limits, but never less than its floor.
const (
	// defaultFloor is the divisor of a limit that yields the floor if none is set.
	defaultFloor = 8
	// NearDeadline is the time before the first deadline of a filer's shards in which the filer's
	// floor is raised.
	NearDeadline = time.Hour
	// The floor is multiplied by nearFactor near the deadline, and by lateFactor after it.
	nearFactor, lateFactor = 2, 4
)

// CheckFloor refuses a floor that is not a percentage.
func CheckFloor(percent int) error {
	if percent < 0 || percent > 100 {
		return backup.WrongSetting("floor", "floor of %d%% is not between 0 and 100", percent)
	}
	return nil
}

// A Floor is the part of a filer's limits that the governor always leaves to it.
type Floor struct {
	percent int // 0: an eighth
	factor  int // 0: 1
}

// FloorOf returns the current floor of a filer: its own, or that of its policy, or an eighth. It is
// higher near the first deadline of the filer's shards, and higher still after it, because then the
// backup is more important than the filer's speed. deadline is zero if there is none.
func FloorOf(f *backup.Filer, policies []backup.Policy, deadline, now time.Time) Floor {
	floor := Floor{percent: f.Limits.Floor}
	if floor.percent == 0 {
		if p, ok := For(f.Labels, policies); ok {
			floor.percent = p.Floor
		}
	}
	switch {
	case deadline.IsZero():
	case now.After(deadline):
		floor.factor = lateFactor
	case now.After(deadline.Add(-NearDeadline)):
		floor.factor = nearFactor
	}
	return floor
}

// Of returns the floor for a limit: at least 1, and at most the limit.
func (f Floor) Of(limit int) int {
	factor := max(f.factor, 1)
	floor := (limit*factor + defaultFloor - 1) / defaultFloor
	if f.percent > 0 {
		floor = (limit*f.percent*factor + 99) / 100
	}
	return max(min(floor, limit), 1)
}

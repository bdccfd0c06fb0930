package policy

import (
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// The governor lets a filer that answers slowly do less than its limits, and never less than its floor.
const (
	// defaultFloor is the part of a limit that the floor is where nobody has said anything else, as one of so many.
	defaultFloor = 8
	// NearDeadline is how long before the first deadline of a filer's shards its floor is raised.
	NearDeadline = time.Hour
	// By nearFactor near the deadline, and by lateFactor once it has passed.
	nearFactor, lateFactor = 2, 4
)

// CheckFloor refuses a floor that is no percentage.
func CheckFloor(percent int) error {
	if percent < 0 || percent > 100 {
		return fmt.Errorf("floor of %d%% is not between 0 and 100: %w", percent, backup.ErrInvalid)
	}
	return nil
}

// A Floor is the part of a filer's limits that the governor leaves to it in any case.
type Floor struct {
	percent int // 0: an eighth
	factor  int // 0: 1
}

// FloorOf returns the floor of a filer now: its own, or that of its policy, or an eighth. It is higher where the first deadline of the filer's
// shards is near, and higher still where that has passed: then a backup counts for more than that the filer is fast. Deadline is zero where
// there is none.
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

// Of returns how much of a limit the floor is: at least 1, and at most the limit.
func (f Floor) Of(limit int) int {
	factor := max(f.factor, 1)
	floor := (limit*factor + defaultFloor - 1) / defaultFloor
	if f.percent > 0 {
		floor = (limit*f.percent*factor + 99) / 100
	}
	return max(min(floor, limit), 1)
}

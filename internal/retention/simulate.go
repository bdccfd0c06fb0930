package retention

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A Simulation is what would be kept of future snapshots.
type Simulation struct {
	Made int        // snapshots
	Kept []Decision // at the end, the newest first
	// Max is the greatest number of snapshots after forgetting, and MaxAt is when it is first
	// reached.
	Max   int
	MaxAt time.Time
	// Mean is the mean of the number of snapshots after each snapshot was made and the rules were
	// applied.
	Mean float64
}

// maxSteps bounds the decisions of a simulation to seconds of work, which is enough for a year of
// hourly snapshots that are all kept. It is smaller in tests.
var maxSteps = 50_000_000

// ErrTooLong is the error of a simulation that would take too long.
var ErrTooLong = fmt.Errorf("too many snapshots to simulate: simulate a shorter time, or rules that keep fewer: %w", backup.ErrInvalid)

// Simulate makes a good snapshot at each of the given times, which are in ascending order, and
// applies the rules after each. It begins with the given snapshots, which must not be newer.
// Options.Now is ignored. The errors are those of Decide, and ErrTooLong.
func Simulate(rules backup.Retention, begin []Snapshot, times iter.Seq[time.Time], o Options) (s Simulation, err error) {
	o.Now = time.Time{}
	decisions, err := Decide(rules, begin, o)
	if err != nil {
		return Simulation{}, err
	}
	kept, sum, steps := make([]Snapshot, 0, len(begin)+1), 0, 0
	for _, d := range decisions {
		kept = append(kept, d.Snapshot)
	}
	for at := range times {
		if len(kept) > 0 && at.Before(kept[0].Time) {
			return Simulation{}, fmt.Errorf("%s is before the previous snapshot, of %s: %w", at.Format(time.RFC3339), kept[0].Time.Format(time.RFC3339), backup.ErrInvalid)
		}
		if steps += len(kept) + 1; steps > maxSteps {
			return Simulation{}, ErrTooLong
		}
		s.Made++
		kept = slices.Insert(kept, 0, Snapshot{ID: simulatedID(s.Made), Time: at, Good: true})
		decisions = decide(decisions, &rules, kept, o)
		kept = kept[:0]
		for n := range decisions {
			if decisions[n].Keep {
				kept = append(kept, decisions[n].Snapshot)
			}
		}
		sum += len(kept)
		if len(kept) > s.Max {
			s.Max, s.MaxAt = len(kept), at
		}
	}
	for _, d := range decisions {
		if d.Keep {
			s.Kept = append(s.Kept, d)
		}
	}
	if s.Made > 0 {
		s.Mean = float64(sum) / float64(s.Made)
	}
	return s, nil
}

// simulatedID returns the id of the n-th snapshot: greater than those before.
func simulatedID(n int) (id backup.SnapshotID) {
	for i := range 8 {
		id[i] = 0xff
	}
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return id
}

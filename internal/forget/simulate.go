package forget

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/retention"
)

// maxMeasured is the number of recent snapshots from which the stored bytes of future ones are
// estimated.
const maxMeasured = 10

// A Month is one month of a simulation.
type Month struct {
	Until      time.Time
	Made, Kept int // snapshots made in the month, and kept at its end
}

// A Course is what rules would keep of a shard.
type Course struct {
	Months    []Month
	Made      int
	Now       int                  // snapshots that exist now and have ended
	Kept      []retention.Snapshot // at the end, newest first
	NewKept   int                  // those of Kept that do not exist yet
	Measured  int                  // snapshots from which EachBytes is computed; 0: it is unknown
	EachBytes int64                // mean of the bytes that a snapshot adds to packs
}

// Now returns the time of the index's clock at which New made the Decider.
func (d *Decider) Now() time.Time { return d.now }

// Simulate begins with the snapshots of a shard, makes a good one at each of the times that from
// returns, and applies the rules after each. from returns the times after its argument, in
// ascending order. months are the ends of the months, also ascending. Rule.Wanted is ignored. The
// errors are those of retention.Simulate.
func (d *Decider) Simulate(ctx context.Context, shard *index.ShardStatus, r Rule, months []time.Time, from func(time.Time) iter.Seq[time.Time]) (c Course, err error) {
	all, err := d.index.Snapshots(ctx, index.SnapshotFilter{Filer: shard.Filer.Name, Shard: shard.Name})
	if err != nil {
		return c, err
	}
	u, err := d.use(ctx, shard.ID, nil) // the running one will have ended
	if err != nil {
		return c, err
	}
	var kept []retention.Snapshot
	existing, last, sum := map[backup.SnapshotID]bool{}, d.now, int64(0)
	for _, s := range slices.Backward(all) {
		if s.State == backup.Running {
			continue
		}
		now := d.considered(&s, u)
		kept, existing[s.ID] = append(kept, now), true
		if s.Started.After(last) {
			last = s.Started
		}
		// The first snapshot of a shard stores everything.
		if now.Good && s.Base != 0 && c.Measured < maxMeasured {
			c.Measured++
			sum += s.Counts.StoredBytes
		}
	}
	c.Now = len(kept)
	if c.Measured > 0 {
		c.EachBytes = sum / int64(c.Measured)
	}
	next, stop := iter.Pull(from(last))
	defer stop()
	at, more := next()
	o := retention.Options{Zone: r.Zone, Retired: retired(shard)}
	for _, end := range months {
		until := func(yield func(time.Time) bool) {
			for more && at.Before(end) && ctx.Err() == nil && yield(at) {
				at, more = next()
			}
		}
		s, err := retention.Simulate(r.Retention, kept, until, o)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return c, err
		}
		if s.Made > 0 { // rules are applied after a snapshot
			kept = kept[:0]
			for _, k := range s.Kept {
				kept = append(kept, k.Snapshot)
			}
		}
		c.Made += s.Made
		c.Months = append(c.Months, Month{end, s.Made, len(kept)})
	}
	c.Kept = kept
	for _, k := range kept {
		if !existing[k.ID] {
			c.NewKept++
		}
	}
	return c, nil
}

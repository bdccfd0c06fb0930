// Package forget applies the rules of retention to the snapshots of shards. It reads the snapshots
// and holds from the index, lets package retention decide, and adds the snapshots that the index
// keeps in any case. So it reports beforehand exactly what would be forgotten (I19).
//
// # Files
//
//	forget.go    decides about the snapshots of a shard
//	simulate.go  simulates the next year of a shard
package forget

import (
	"context"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/retention"
)

// An Index is the part of the index on which the decisions depend.
type Index interface {
	Clock(ctx context.Context) (time.Time, error)
	Snapshots(ctx context.Context, f index.SnapshotFilter) ([]backup.Snapshot, error)
	Holds(ctx context.Context) ([]index.Hold, error)
	HeldByPaths(ctx context.Context, shard backup.ShardID) (map[backup.SnapshotID]int64, error)
	Unrecorded(ctx context.Context, only []backup.SnapshotID, limit int) ([]backup.Snapshot, error)
}

// maxUnrecorded bounds how many snapshots without a record are read. The index refuses to forget
// the others, too.
const maxUnrecorded = 10_000

// A Decider decides about snapshots, as of the time at which New made it.
type Decider struct {
	index      Index
	now        time.Time
	onSnapshot map[backup.SnapshotID]index.Hold
	onShard    map[backup.ShardID]index.Hold
	onPaths    map[backup.ShardID]map[int64]index.Hold // by their ids
	unrecorded map[backup.SnapshotID]bool
}

// New returns a Decider. It reads the holds and the clock of the index.
func New(ctx context.Context, idx Index) (*Decider, error) {
	d := &Decider{
		index: idx, onSnapshot: map[backup.SnapshotID]index.Hold{}, onShard: map[backup.ShardID]index.Hold{},
		onPaths: map[backup.ShardID]map[int64]index.Hold{}, unrecorded: map[backup.SnapshotID]bool{},
	}
	holds, err := idx.Holds(ctx)
	if err != nil {
		return nil, err
	}
	for _, h := range holds {
		switch {
		case h.Path != "":
			if d.onPaths[h.Shard] == nil {
				d.onPaths[h.Shard] = map[int64]index.Hold{}
			}
			d.onPaths[h.Shard][h.ID] = h
		case h.Shard != 0:
			d.onShard[h.Shard] = h
		default:
			d.onSnapshot[h.Snapshot] = h
		}
	}
	unrecorded, err := idx.Unrecorded(ctx, nil, maxUnrecorded)
	if err != nil {
		return nil, err
	}
	for i := range unrecorded {
		d.unrecorded[unrecorded[i].ID] = true
	}
	d.now, err = idx.Clock(ctx)
	return d, err
}

// A Fate is the decision about one snapshot.
type Fate struct {
	backup.Snapshot
	Keep    bool
	Reasons []string // never empty
}

// A Rule selects the snapshots of a shard that are kept.
type Rule struct {
	backup.Retention
	Zone *time.Location // of hours, days …; nil: UTC
	// Wanted, if not nil, selects the snapshots to which the rules apply. The others have no Fate.
	Wanted func(*backup.Snapshot) bool
}

// Shard returns the decisions about the snapshots of a shard that have ended, newest first.
func (d *Decider) Shard(ctx context.Context, shard *index.ShardStatus, r Rule) ([]Fate, error) {
	all, err := d.index.Snapshots(ctx, index.SnapshotFilter{Filer: shard.Filer.Name, Shard: shard.Name})
	if err != nil {
		return nil, err
	}
	u, err := d.use(ctx, shard.ID, all)
	if err != nil {
		return nil, err
	}
	byID := make(map[backup.SnapshotID]*backup.Snapshot, len(all))
	var considered []retention.Snapshot
	for i := range all {
		s := &all[i]
		if s.State == backup.Running || r.Wanted != nil && !r.Wanted(s) {
			continue
		}
		byID[s.ID] = s
		considered = append(considered, d.considered(s, u))
	}
	// If the last good snapshot is not considered, a considered one need not be kept in its place.
	o := retention.Options{Zone: r.Zone, Now: d.now, Retired: retired(shard) || byID[shard.LastGood] == nil}
	decisions, err := retention.Decide(r.Retention, considered, o)
	if err != nil {
		return nil, err
	}
	fates := make([]Fate, len(decisions))
	for i := range decisions {
		s := byID[decisions[i].Snapshot.ID]
		f := Fate{Snapshot: *s, Keep: decisions[i].Keep}
		for _, reason := range decisions[i].Reasons {
			f.Reasons = append(f.Reasons, reason.String())
		}
		if !f.Keep {
			if kept := d.kept(s, shard, u); len(kept) > 0 {
				f.Keep, f.Reasons = true, kept
			}
		}
		fates[i] = f
	}
	return fates, nil
}

// A use is what needs the snapshots of a shard.
type use struct {
	base    backup.SnapshotID // of the running snapshot; zero: there is none
	byPaths map[backup.SnapshotID]index.Hold
}

// use returns what needs the snapshots of a shard. all must have the running ones; the others do
// not matter.
func (d *Decider) use(ctx context.Context, shard backup.ShardID, all []backup.Snapshot) (use, error) {
	u := use{base: baseOf(all), byPaths: map[backup.SnapshotID]index.Hold{}}
	if len(d.onPaths[shard]) == 0 {
		return u, nil
	}
	held, err := d.index.HeldByPaths(ctx, shard)
	for id, hold := range held {
		if h, known := d.onPaths[shard][hold]; known {
			u.byPaths[id] = h
		} else { // added since
			u.byPaths[id] = index.Hold{ID: hold}
		}
	}
	return u, err
}

// considered returns the properties of a snapshot on which the rules depend.
func (d *Decider) considered(s *backup.Snapshot, u use) retention.Snapshot {
	of := retention.Of(s)
	hold, held := d.hold(s, u)
	of.Held, of.Hold, of.InUse = held, hold.Reason, s.ID == u.base
	return of
}

// Kept returns the reasons why the index would refuse to forget a snapshot that has ended, or none.
func (d *Decider) Kept(ctx context.Context, s *backup.Snapshot, shard *index.ShardStatus) ([]string, error) {
	running, err := d.index.Snapshots(ctx, index.SnapshotFilter{Filer: s.Filer.Name, Shard: s.Shard.Name, States: []backup.State{backup.Running}})
	if err != nil {
		return nil, err
	}
	u, err := d.use(ctx, shard.ID, running)
	if err != nil {
		return nil, err
	}
	return d.kept(s, shard, u), nil
}

// kept lists what index.Forgetting checks, except restores in progress, which only the index knows.
func (d *Decider) kept(s *backup.Snapshot, shard *index.ShardStatus, u use) (reasons []string) {
	if s.ID == shard.LastGood && !retired(shard) {
		reasons = append(reasons, retention.Reason{Cause: retention.LastGood}.String())
	}
	if hold, held := d.hold(s, u); held {
		reasons = append(reasons, retention.Reason{Cause: retention.OnHold, Hold: hold.Reason}.String())
	}
	if s.ID == u.base {
		reasons = append(reasons, retention.Reason{Cause: retention.InUse}.String())
	}
	if d.unrecorded[s.ID] {
		reasons = append(reasons, "the store has no record of it yet")
	}
	return reasons
}

func (d *Decider) hold(s *backup.Snapshot, u use) (h index.Hold, held bool) {
	if h, held = d.onSnapshot[s.ID]; held {
		return h, held
	}
	if h, held = d.onShard[s.Shard.ID]; held {
		return h, held
	}
	h, held = u.byPaths[s.ID]
	return h, held
}

// baseOf returns the base of the running one of a shard's snapshots; zero if there is none.
func baseOf(snapshots []backup.Snapshot) (base backup.SnapshotID) {
	for i := range snapshots {
		if snapshots[i].State == backup.Running {
			base = snapshots[i].BaseID
		}
	}
	return base
}

// Deletion returns what forgetting by these fates deletes of a shard, for the brake: its
// committed snapshots. One that has failed is no loss. One that is marked as bad counts like a good
// one: otherwise marks would be a way around the brake.
func Deletion(fates []Fate, shard *index.ShardStatus, by string) index.Deletion {
	d := index.Deletion{By: by, Shard: shard.ID}
	var last *Fate
	for i := range fates {
		f := &fates[i]
		if f.State != backup.Committed {
			continue
		}
		d.OfSnapshots++
		if last == nil || f.ID == shard.LastGood || f.Number > last.Number && last.ID != shard.LastGood {
			last = f
		}
		if !f.Keep {
			d.Snapshots = append(d.Snapshots, f.ID)
		}
	}
	if last != nil && !last.Keep {
		d.Last, d.LastBytes = last.ID, last.Counts.Bytes
	}
	return d
}

func retired(s *index.ShardStatus) bool { return s.Retired || s.Filer.Retired }

// ByPolicy returns the name that a policy has in the log, as the one who forgot a snapshot.
func ByPolicy(name string) string { return byPolicy + name }

const byPolicy = "policy "

// PolicyOf returns the policy whose run the brake has stopped; "" if it was another run.
func PolicyOf(d *index.Deletion) string {
	name, ok := strings.CutPrefix(d.By, byPolicy)
	if !ok || d.Shard == 0 {
		return ""
	}
	return name
}

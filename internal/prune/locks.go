package prune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/policy"
	"github.com/bctl/bctl/internal/retention"
	"github.com/bctl/bctl/internal/store"
)

// Objects are locked in the store (object lock) for as long as the kept snapshots need them by the
// rules of their policies.
//
// A new object is locked for store.InitialLock by the PUT. Within this time, a pass extends the
// lock. For each kept snapshot, package retention predicts when its rules will forget it, if the
// schedule of its policy continues. If this end is later than the index has noted, the snapshot is
// due: all packs that it needs are locked until its end, and so are the journals of its chain. Then
// the index notes this. So a pass marks only the chunks of new snapshots, and of snapshots whose
// end has moved. For each snapshot, it sends one request per object whose lock ends too early.
//
// Snapshots without an end by the rules, without rules, or on hold are locked for openLock. The
// lock is extended while they are kept.
//
// A lock is never shortened. A locked pack that nothing needs stays in the index until its lock has
// ended. It is not condemned, so that backups may rely on it. If the store refuses a deletion
// nevertheless, because its clock is behind or because the index does not know a lock, the object
// stays to be deleted.
//
// A locked pack is not thinned, because it would stay beside the copy until its lock ends. It may
// be split instead, when its lock must be extended (split.go).

const (
	// openLock is the duration of locks that have no end by the rules.
	openLock = 30 * 24 * time.Hour
	// An open lock is longer than necessary by its duration divided by slack. So it is extended
	// once in 36 hours, and not in each pass.
	slack = 20
	// journalSlack is slack for journals.
	journalSlack = 3
	// maxClasses bounds the classes of ends: each of them takes a reading of all places.
	maxClasses = 16
	// requestsAtOnce is how many locks are extended at the same time.
	requestsAtOnce = 8
)

// A wanted is a snapshot that needs longer locks.
type wanted struct {
	*backup.Snapshot
	until time.Time
}

// loadLocks reads what the index has noted of locks, and the snapshots.
func (p *pass) loadLocks(ctx context.Context) (err error) {
	p.locks, err = p.Index.Locks(ctx)
	p.locks.Now = p.locks.Now.Truncate(time.Second)
	if err != nil || !p.ObjectLock {
		return err
	}
	all, err := p.Index.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Running, backup.Committed, backup.Failed, backup.Deleting}})
	p.known = make(map[backup.SnapshotID]*backup.Snapshot, len(all))
	for i := range all {
		p.known[all[i].ID] = &all[i]
	}
	return err
}

// isLocked reports whether the object of a pack is locked: by what the index has noted, or by its
// PUT, which came before the snapshot ended.
func (p *pass) isLocked(k *index.Pack) bool {
	return k.LockedUntil.After(p.locks.Now) || p.ObjectLock && p.isFresh(k.Snapshot)
}

// isFresh reports whether objects of a snapshot may be locked by their PUT.
func (p *pass) isFresh(id backup.SnapshotID) bool {
	s := p.known[id]
	return s != nil && (s.Ended.IsZero() || s.Ended.Add(store.InitialLock).After(p.locks.Now))
}

// lock extends the locks of what snapshots need, except of packs that are split.
func (p *pass) lock(ctx context.Context) error {
	if !p.ObjectLock {
		return nil
	}
	if err := p.planLocks(ctx); err != nil {
		return err
	}
	p.step("extending locks")
	err := p.lockPacks(ctx, func(k *packState) time.Time {
		if k.split {
			return k.rest
		}
		return k.need
	})
	if err != nil {
		return err
	}
	if err := p.lockJournals(ctx); err != nil {
		return err
	}
	return p.lockOthers(ctx)
}

// lockRest extends the locks of the packs that were not split after all, and notes the snapshots
// for which everything that they need is locked. A snapshot that is not noted is due again.
func (p *pass) lockRest(ctx context.Context) error {
	if !p.ObjectLock {
		return nil
	}
	err := p.lockPacks(ctx, func(k *packState) time.Time {
		if k.Deleting {
			return time.Time{}
		}
		return k.need
	})
	if err != nil {
		return err
	}
	byTime := map[time.Time][]string{}
	for _, w := range p.wanted {
		byTime[w.until] = append(byTime[w.until], index.ContentLock(w.ID))
	}
	for until, names := range byTime {
		if err := p.Index.LockObjects(ctx, p.term, names, until); err != nil {
			return err
		}
	}
	return nil
}

// planLocks finds until when each pack must be locked. It changes nothing in the index and the
// store.
func (p *pass) planLocks(ctx context.Context) error {
	if !p.ObjectLock {
		return nil
	}
	p.step("finding what must be locked for longer")
	if err := p.findWanted(ctx); err != nil {
		return err
	}
	p.endOf, p.stays = make([]uint8, 64*len(p.frames)), map[backup.PackID]bool{}
	for _, class := range p.classes() {
		if err := p.need(ctx, class); err != nil {
			return err
		}
	}
	for i := range p.packs {
		k := &p.packs[i]
		// A snapshot may run for longer than the first lock lasts.
		if began := p.known[k.Snapshot]; k.Running && began != nil {
			until := laterOf(k.LockedUntil, began.Started.Add(store.InitialLock))
			if until.Sub(p.locks.Now) < store.InitialLock/2 {
				k.need = laterOf(k.need, p.locks.Now.Add(store.InitialLock))
			}
		}
	}
	return p.chooseSplits(ctx)
}

// findWanted finds the snapshots that need longer locks than the index has noted.
func (p *pass) findWanted(ctx context.Context) error {
	shards, err := p.Index.ListShards(ctx, index.ShardFilter{Retired: true})
	if err != nil {
		return err
	}
	policies, err := p.Index.ListPolicies(ctx)
	if err != nil {
		return err
	}
	holds, err := p.Index.Holds(ctx)
	if err != nil {
		return err
	}
	byPaths := map[backup.SnapshotID]int64{}
	for _, shard := range shardsWithPathHolds(holds) {
		held, err := p.Index.HeldByPaths(ctx, shard)
		if err != nil {
			return err
		}
		maps.Copy(byPaths, held)
	}
	of := map[backup.ShardID][]retention.Snapshot{}
	for _, s := range p.known {
		if s.State == backup.Committed {
			considered := retention.Of(s)
			_, held := byPaths[s.ID]
			considered.Held = held || slices.ContainsFunc(holds, func(h index.Hold) bool {
				return h.Path == "" && (h.Snapshot == s.ID || h.Shard == s.Shard.ID)
			})
			of[s.Shard.ID] = append(of[s.Shard.ID], considered)
		}
	}
	for i := range shards {
		ends, err := p.ends(&shards[i], policies, of[shards[i].ID])
		if err != nil {
			return err
		}
		for id, end := range ends {
			p.want(id, end)
		}
	}
	slices.SortFunc(p.wanted, func(a, b wanted) int { return cmp.Or(b.until.Compare(a.until), slices.Compare(a.ID[:], b.ID[:])) })
	return nil
}

// shardsWithPathHolds returns the shards of which paths are on hold.
func shardsWithPathHolds(holds []index.Hold) (shards []backup.ShardID) {
	for _, h := range holds {
		if h.Path != "" {
			shards = append(shards, h.Shard)
		}
	}
	slices.Sort(shards)
	return slices.Compact(shards)
}

// ends returns how long the snapshots of a shard are kept.
func (p *pass) ends(shard *index.ShardStatus, policies []backup.Policy, snapshots []retention.Snapshot) (map[backup.SnapshotID]retention.End, error) {
	rules, o := backup.Retention{}, retention.Options{Retired: shard.Retired || shard.Filer.Retired}
	next := func(time.Time) time.Time { return time.Time{} }
	i := slices.IndexFunc(policies, func(b backup.Policy) bool { return b.ID == shard.Plan.Policy })
	if i >= 0 && !policies[i].Paused && !o.Retired {
		schedule, err := policy.Parse(policies[i])
		if err != nil {
			return nil, fmt.Errorf("policy %s: %w", policies[i].Name, err)
		}
		if o.Zone, err = time.LoadLocation(policies[i].TimeZone); err != nil {
			return nil, fmt.Errorf("policy %s: %w", policies[i].Name, err)
		}
		rules = policies[i].Retention
		next = func(after time.Time) time.Time { return schedule.Next(shard.ID, after) }
	}
	return retention.Ends(rules, snapshots, next, p.locks.Now, o)
}

// want notes a snapshot if what it needs is not locked until its end.
func (p *pass) want(id backup.SnapshotID, end retention.End) {
	until, noted := end.At, p.locks.Until[index.ContentLock(id)]
	if end.Open {
		until = p.locks.Now.Add(openLock)
	}
	if !until.After(noted) {
		return
	}
	if end.Open {
		until = until.Add(openLock / slack)
	}
	p.wanted = append(p.wanted, wanted{p.known[id], until.Truncate(time.Second).Add(time.Second)})
}

// A class is the snapshots whose needed objects are locked until the same time.
type class struct {
	until  time.Time
	needed map[backup.ShardID][]backup.SnapshotNumber
}

// classes groups the wanted snapshots by their ends, so that a lock is little longer than it must
// be.
func (p *pass) classes() (classes []class) {
	for share := time.Duration(50); ; share /= 2 {
		classes = nil
		for _, w := range p.wanted {
			last := len(classes) - 1
			if last < 0 || share > 0 && classes[last].until.Sub(w.until) > classes[last].until.Sub(p.locks.Now)/share {
				classes = append(classes, class{w.until, map[backup.ShardID][]backup.SnapshotNumber{}})
				last++
			}
			of := classes[last].needed
			of[w.Shard.ID] = append(of[w.Shard.ID], w.Number)
		}
		if len(classes) <= maxClasses {
			for _, c := range classes {
				for _, numbers := range c.needed {
					slices.Sort(numbers)
				}
			}
			return classes
		}
	}
}

// need finds the packs that the snapshots of a class need. It marks them in a copy of the pass. It
// is called for the latest class first.
func (p *pass) need(ctx context.Context, c class) error {
	p.until = append(p.until, c.until)
	marking := *p
	marking.packs = slices.Clone(p.packs)
	marking.frames = make([]uint64, len(p.frames))
	for i := range marking.packs {
		marking.packs[i].marked = 0
	}
	if err := marking.markNeeded(ctx, c.needed); err != nil {
		return err
	}
	for i := range p.packs {
		k := &p.packs[i]
		if marking.packs[i].marked == 0 || k.Deleting || !c.until.After(k.LockedUntil) {
			continue
		}
		k.need = laterOf(k.need, c.until)
		for n := k.frame; n < k.frame+k.frames; n++ {
			if p.endOf[n] == 0 && marking.frames[n/64]&(1<<(n%64)) != 0 {
				p.endOf[n] = uint8(len(p.until))
			}
		}
	}
	return nil
}

func laterOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// lockPacks locks packs until the times that until returns, if these are not zero. The packs of an
// object are locked together.
func (p *pass) lockPacks(ctx context.Context, until func(*packState) time.Time) error {
	needs := map[string]time.Time{}
	name := func(k *packState) string { return store.PackName(k.Snapshot, k.Object) }
	for i := range p.packs {
		if at := until(&p.packs[i]); !at.IsZero() {
			needs[name(&p.packs[i])] = laterOf(needs[name(&p.packs[i])], at)
		}
	}
	byTime := map[time.Time][]string{}
	for object, until := range needs {
		byTime[until] = append(byTime[until], object)
	}
	for _, until := range slices.SortedFunc(maps.Keys(byTime), time.Time.Compare) {
		for group := range slices.Chunk(byTime[until], objectsAtOnce) {
			missing, err := p.lockObjects(ctx, group, until)
			if err != nil {
				return err
			}
			if len(missing) > 0 {
				p.Log.Warn("packs cannot be locked, because the store does not have them (bctl doctor says more)", "packs", len(missing), "object", missing[0])
			}
			var rows []int64
			locked := make(map[string]bool, len(group))
			for _, object := range group {
				locked[object] = true
			}
			for i := range p.packs {
				k := &p.packs[i]
				if !locked[name(k)] {
					continue
				}
				k.LockedUntil, k.locked = laterOf(k.LockedUntil, until), true
				if !k.need.After(until) {
					k.need, k.split = time.Time{}, false
				}
				rows = append(rows, k.Row)
			}
			if err := p.Index.LockPacks(ctx, p.term, rows, until); err != nil {
				return err
			}
		}
	}
	return nil
}

// lockObjects locks objects until a time, several at once. It returns those that the store does not
// have: packs may be lost, and the record of a snapshot follows its commit.
func (p *pass) lockObjects(ctx context.Context, names []string, until time.Time) (missing []string, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(requestsAtOnce)
	gone := make([]bool, len(names))
	for i, name := range names {
		group.Go(func() error {
			err := p.Store.Lock(ctx, name, until)
			if gone[i] = errors.Is(err, backup.ErrNotFound); gone[i] {
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i, name := range names {
		if gone[i] {
			missing = append(missing, name)
		}
	}
	p.result.Extended += len(names) - len(missing)
	return missing, nil
}

// lockJournals locks the journals through which the chains of wanted snapshots go.
func (p *pass) lockJournals(ctx context.Context) error {
	until := map[backup.SnapshotID]time.Time{}
	for _, w := range p.wanted { // the latest end first
		for at := w.Snapshot; at != nil && until[at.ID].IsZero(); at = p.baseOf(at) {
			until[at.ID] = w.until
			if at.Segment.Checkpoint && at.Segment.Parts > 0 {
				break
			}
		}
	}
	byTime := map[time.Time][]string{}
	for id, end := range until {
		if !end.After(p.locks.Until[index.RecordLock(id)]) {
			continue
		}
		// Journals are small, and are needed for longer with each snapshot that follows.
		end = end.Add(end.Sub(p.locks.Now) / journalSlack).Truncate(time.Second)
		s := p.known[id]
		names := []string{store.AmendedName(id, p.locks.Amendments[id].Sequence)}
		for part := range s.Segment.Parts {
			names = append(names, store.SegmentName(id, s.Segment.Attempt, part))
		}
		missing, err := p.lockObjects(ctx, names, end)
		if err != nil {
			return err
		}
		if len(missing) > 0 { // its record is not written yet: the next pass locks it
			p.wanted = slices.DeleteFunc(p.wanted, func(w wanted) bool { return w.Shard.ID == s.Shard.ID && w.Number >= s.Number })
			continue
		}
		byTime[end] = append(byTime[end], index.RecordLock(id))
	}
	for end, names := range byTime {
		if err := p.Index.LockObjects(ctx, p.term, names, end); err != nil {
			return err
		}
	}
	return nil
}

// baseOf returns the snapshot on whose pages the segment of another one is based; nil if there is
// none.
func (p *pass) baseOf(s *backup.Snapshot) *backup.Snapshot {
	if a, ok := p.locks.Amendments[s.ID]; ok {
		return p.known[a.Base]
	}
	return p.known[s.BaseID]
}

// lockOthers locks the repository object, the keys and the newest catalog for as long as anything
// is locked.
func (p *pass) lockOthers(ctx context.Context) error {
	if len(p.wanted) == 0 {
		return nil
	}
	names := []string{store.ConfigName}
	for o, err := range p.Store.List(ctx, store.KeysPrefix) {
		if err != nil {
			return err
		}
		if _, statement := store.ParseRecipientsName(o.Name); statement {
			names = append(names, o.Name)
		} else if _, _, part := store.ParseWrapsName(o.Name); part {
			names = append(names, o.Name)
		}
	}
	if p.locks.Catalog > 0 {
		names = append(names, store.CatalogName(p.locks.Catalog))
	}
	end := p.wanted[0].until
	names = slices.DeleteFunc(names, func(name string) bool { return !end.After(p.locks.Until[name]) })
	if len(names) == 0 {
		return nil
	}
	end = end.Add(end.Sub(p.locks.Now) / slack).Truncate(time.Second)
	missing, err := p.lockObjects(ctx, names, end)
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(missing, name) })
	return p.Index.LockObjects(ctx, p.term, names, end)
}

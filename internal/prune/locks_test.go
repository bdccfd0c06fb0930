package prune_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/zeebo/blake3"
	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/forget"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/retention"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// A lockingStore locks objects as S3 servers do, by a clock of its own.
type lockingStore struct {
	store.Store
	t     testing.TB
	now   func() time.Time
	locks bool // a PUT locks
	names chan map[string]locked
	asked int // requests for locks

	refused int // deletions
}

type locked struct {
	until time.Time
	bytes int64
}

func newLockingStore(t testing.TB, s store.Store, now func() time.Time, locks bool) *lockingStore {
	l := &lockingStore{Store: s, t: t, now: now, locks: locks, names: make(chan map[string]locked, 1)}
	l.names <- map[string]locked{}
	return l
}

func (s *lockingStore) Put(ctx context.Context, name string, data []byte) error {
	names := <-s.names
	defer func() { s.names <- names }()
	l := locked{bytes: int64(len(data))}
	if s.locks && store.Lockable(name) {
		l.until = s.now().Add(store.InitialLock)
	}
	names[name] = l
	return s.Store.Put(ctx, name, data)
}

func (s *lockingStore) Lock(_ context.Context, name string, until time.Time) error {
	names := <-s.names
	defer func() { s.names <- names }()
	s.asked++
	l, ok := names[name]
	if !ok {
		return backup.ErrNotFound
	}
	if until.Before(s.now()) {
		s.t.Errorf("%s is to be locked until %v, and it is %v", name, until, s.now())
	}
	l.until = later(l.until, until)
	names[name] = l
	return nil
}

func (s *lockingStore) Delete(ctx context.Context, deleted ...string) error {
	names := <-s.names
	defer func() { s.names <- names }()
	var refused []string
	for _, name := range deleted {
		if names[name].until.After(s.now()) {
			refused = append(refused, name)
			continue
		}
		if err := s.Store.Delete(ctx, name); err != nil {
			return err
		}
		delete(names, name)
	}
	if len(refused) > 0 {
		s.refused += len(refused)
		return &store.LockedError{Names: refused}
	}
	return nil
}

// stored returns the bytes of all objects.
func (s *lockingStore) stored() (bytes int64) {
	names := <-s.names
	defer func() { s.names <- names }()
	for _, l := range names {
		bytes += l.bytes
	}
	return bytes
}

func (s *lockingStore) lockOf(name string) time.Time {
	names := <-s.names
	defer func() { s.names <- names }()
	return names[name].until
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// A clockIndex is an index with a clock of the test's.
type clockIndex struct {
	index.Index
	now func() time.Time
}

func (x *clockIndex) Clock(context.Context) (time.Time, error) { return x.now(), nil }

func (x *clockIndex) Locks(ctx context.Context) (index.Locks, error) {
	l, err := x.Index.Locks(ctx)
	l.Now = x.now()
	return l, err
}

// An hourly is a shard with an hourly policy, in simulated time.
type hourly struct {
	*world
	x     *clockIndex
	s     *lockingStore
	locks bool

	files    []int                       // chunk of each file; 20 in a directory
	next     int                         // chunk
	packOf   map[int]string              // by chunk
	contents map[backup.SnapshotID][]int // chunks of the files
}

const (
	filesOfDirectory = 20
	fileBytes        = 4000
)

// keyNames are the names of a statement of recipients and of a part of a rotation: all keys are
// needed for as long as any snapshot is.
var keyNames = []string{store.RecipientsName(1), store.WrapsName(1, [16]byte{})}

// newHourly registers the shard and its policy.
func newHourly(t testing.TB, rules backup.Retention, locks bool) *hourly {
	m := &hourly{world: newWorld(t, openSQLite(t), 1), locks: locks, packOf: map[int]string{}, contents: map[backup.SnapshotID][]int{}}
	m.now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := func() time.Time { return m.now }
	m.x, m.s = &clockIndex{m.world.x, now}, newLockingStore(t, m.world.s, now, locks)
	p, err := m.x.SetPolicy(m.ctx, backup.Policy{Name: "hourly", Schedule: "@every 1h", Retention: rules}, "test")
	m.must(err)
	term, _, err := m.x.Lead(m.ctx, "scheduler", "test", time.Hour)
	m.must(err)
	_, err = m.x.Bind(m.ctx, term, map[backup.FilerID]index.Binding{m.shards[0].Filer: {Policy: p.ID, Revision: p.Revision}})
	m.must(err)
	m.must(m.s.Put(m.ctx, store.ConfigName, []byte("repository")))
	for _, name := range keyNames {
		m.must(m.s.Put(m.ctx, name, []byte("keys")))
	}
	return m
}

// takeSnapshot makes a snapshot in which some files have new content.
func (m *hourly) takeSnapshot(changed ...int) backup.Snapshot {
	m.Helper()
	s := m.shards[0]
	snap, err := m.x.BeginSnapshot(m.ctx, s.ID, backup.Snapshot{}, m.now)
	m.must(err)
	tasks, err := m.x.ClaimTasks(m.ctx, index.Claim{Snapshots: []backup.SnapshotID{snap.ID}, Lease: time.Hour, Limit: 1, Now: m.now})
	m.must(err)
	result := &backup.SliceWalked{Snapshot: snap.ID, Task: tasks[0].ID, Attempt: tasks[0].Attempt, Last: true}
	var results []index.Result
	directories := map[int]bool{}
	var chunks []int
	for _, file := range changed {
		m.next++
		m.files[file] = m.next
		chunks = append(chunks, m.next)
		directories[file/filesOfDirectory] = true
	}
	for group := range slices.Chunk(chunks, 64) {
		results = append(results, index.Result{Pack: m.put(snap, group)})
	}
	for _, d := range slices.Sorted(maps.Keys(directories)) {
		result.Pages = append(result.Pages, m.page(d))
	}
	_, err = m.x.Apply(m.ctx, append(results, index.Result{Slice: result}))
	m.must(err)
	m.commit(&snap)
	m.contents[snap.ID] = slices.Clone(m.files)
	return snap
}

// put stores a pack of chunks.
func (m *hourly) put(snap backup.Snapshot, chunks []int) *backup.PackStored {
	p := &backup.PackStored{Snapshot: snap.ID, Pack: m.newPackID()}
	w, err := pack.NewWriter(pack.KindData, repository, p.Pack, m.sealer, nil)
	m.must(err)
	for n, chunk := range chunks {
		id := manyID(chunk)
		at := pack.Chunk{Length: fileBytes}
		copy(at.Hash[:], id[:])
		_, err := w.Add(pack.Frame{RawLength: fileBytes, Body: make([]byte, fileBytes), Chunks: []pack.Chunk{at}})
		m.must(err)
		p.Chunks = append(p.Chunks, backup.ChunkPlace{ID: id, Frame: uint32(n), Length: fileBytes})
		m.packOf[chunk] = store.PackName(snap.ID, p.Pack)
	}
	p.FrameBytes = slices.Clone(w.FrameBytes())
	data, err := w.Finish()
	m.must(err)
	p.StoredBytes = int64(len(data))
	m.must(m.s.Put(m.ctx, store.PackName(snap.ID, p.Pack), data))
	return p
}

// page returns the page of a directory.
func (m *hourly) page(d int) backup.PageVersion {
	var p backup.Page
	for n := range filesOfDirectory {
		chunk := m.files[d*filesOfDirectory+n]
		p.Entries = append(p.Entries, backup.Entry{Name: fmt.Sprintf("file %02d", n), Kind: backup.File, Size: fileBytes, Content: backup.Content{
			Refs: []backup.Ref{{Chunk: manyID(chunk), Length: fileBytes, Span: fileBytes}},
		}})
	}
	data, err := listing.Encode(nil, &p)
	m.must(err)
	sum := blake3.Sum256(data)
	return backup.PageVersion{Path: fmt.Sprint("directory ", d), Fingerprint: backup.Fingerprint(sum[:16]), Inode: uint64(d + 1), Listing: data}
}

func (m *hourly) commit(snap *backup.Snapshot) {
	_, err := m.x.CompleteSnapshots(m.ctx, []backup.SnapshotID{snap.ID})
	m.must(err)
	var set backup.PageSet
	for c, err := range m.x.AllPages(m.ctx, snap.ID) {
		m.must(err)
		set.Add(c.Digest)
	}
	snap.Segment = backup.Segment{Attempt: m.newPackID(), Parts: 1, Bytes: 300, Checkpoint: snap.Number%50 == 1}
	m.must(m.s.Put(m.ctx, store.SegmentName(snap.ID, snap.Segment.Attempt, 0), make([]byte, 300)))
	m.must(m.x.Commit(m.ctx, snap.ID, snap.Segment, set, m.now))
	m.must(m.s.Put(m.ctx, store.CommitName(snap.ID), make([]byte, 100)))
	m.must(m.x.Recorded(m.ctx, snap.ID))
}

// applyRules forgets what the policy does not keep, as a scheduler does.
func (m *hourly) applyRules() {
	m.Helper()
	decider, err := forget.New(m.ctx, m.x)
	m.must(err)
	shards, err := m.x.ListShards(m.ctx, index.ShardFilter{})
	m.must(err)
	policies, err := m.x.ListPolicies(m.ctx)
	m.must(err)
	fates, err := decider.Shard(m.ctx, &shards[0], forget.Rule{Retention: policies[0].Retention})
	m.must(err)
	for i := range fates {
		if !fates[i].Keep {
			m.must(m.x.Forget(m.ctx, fates[i].ID, "test", ""))
		}
	}
}

// pass prunes, and checks that all that is kept is locked for as long as the policy keeps it.
func (m *hourly) pass() prune.Summary {
	m.Helper()
	m.passes++
	result, err := prune.Run(m.ctx, prune.Options{
		Index: m.x, Store: m.s, Holder: fmt.Sprint("pass ", m.passes), Log: slog.New(slog.DiscardHandler), ObjectLock: m.locks, MaxUnused: prune.DefaultMaxUnused,
	})
	m.must(err)
	if m.locks && m.passes%10 == 1 {
		m.checkLocks()
	}
	return result
}

func (m *hourly) checkLocks() {
	m.Helper()
	policies, err := m.x.ListPolicies(m.ctx)
	m.must(err)
	all, err := m.x.Snapshots(m.ctx, index.SnapshotFilter{States: []backup.State{backup.Committed}})
	m.must(err)
	var of []retention.Snapshot
	byID := map[backup.SnapshotID]*backup.Snapshot{}
	for i := range all {
		of = append(of, retention.Snapshot{ID: all[i].ID, Time: all[i].Started, Good: true})
		byID[all[i].ID] = &all[i]
	}
	next := func(t time.Time) time.Time { return t.Truncate(time.Hour).Add(time.Hour) }
	ends, err := retention.Ends(policies[0].Retention, of, next, m.now, retention.Options{})
	m.must(err)
	for id, end := range ends {
		until := end.At
		if end.Open {
			until = m.now.Add(30 * 24 * time.Hour)
		}
		names := append([]string{store.ConfigName, store.CommitName(id)}, keyNames...)
		for part := range byID[id].Segment.Parts {
			names = append(names, store.SegmentName(id, byID[id].Segment.Attempt, part))
		}
		names = append(names, m.objectsOf(id)...)
		for _, name := range names {
			if got := m.s.lockOf(name); got.Before(until) {
				m.fatalf("at %v, %s is locked until %v, and snapshot %s of %v is kept until %v", m.now, name, got, id, byID[id].Started, until)
			}
		}
	}
}

// objectsOf returns the objects that have the chunks of a snapshot.
func (m *hourly) objectsOf(id backup.SnapshotID) (names []string) {
	m.Helper()
	var ids []backup.ChunkID
	for _, chunk := range m.contents[id] {
		ids = append(ids, manyID(chunk))
	}
	places, err := m.x.LocateReadable(m.ctx, ids)
	m.must(err)
	for _, p := range places {
		names = append(names, store.PackName(p.Snapshot, p.Object))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// run makes hourly snapshots for some days, and prunes once a day. It returns the stored bytes,
// summed up over all hours.
func (m *hourly) run(days int) (byteHours int64) {
	r := rand.New(rand.NewPCG(15, 6))
	const files = 10 * filesOfDirectory
	m.files = make([]int, files)
	changed := make([]int, files)
	for n := range changed {
		changed[n] = n
	}
	for hour := range days * 24 {
		m.takeSnapshot(changed...)
		if hour%24 == 3 {
			m.applyRules()
			m.pass()
		}
		byteHours += m.s.stored()
		m.now = m.now.Add(time.Hour)
		// Two files change in an hour: one of all, and one of the tenth that is in use.
		changed = []int{r.IntN(files), r.IntN(files / 10)}
		slices.Sort(changed)
		changed = slices.Compact(changed)
	}
	return byteHours
}

// Over 90 days of hourly snapshots with rules of grandfather, father and son, locks cost at most
// 10% more bytes. Only make test-exhaustive simulates 90 days.
func TestLocksCostLittle(t *testing.T) {
	days := 9
	if testtarget.Runs(testtarget.Exhaustive) {
		days = 90
	}
	rules := backup.Retention{Hourly: 24, Daily: 7, Weekly: 4, Monthly: 12}
	var bytes [2]int64
	var worlds [2]*hourly
	for i := range worlds {
		worlds[i] = newHourly(t, rules, i == 1)
	}
	var group errgroup.Group
	for i, m := range worlds {
		group.Go(func() error {
			bytes[i] = m.run(days)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	share := float64(bytes[1]) / float64(bytes[0])
	last := float64(worlds[1].s.stored()) / float64(worlds[0].s.stored())
	t.Logf("%.3f times the byte hours, %.3f times the bytes at the end (%d and %d bytes), %d requests for locks, %d refused deletions",
		share, last, worlds[1].s.stored(), worlds[0].s.stored(), worlds[1].s.asked, worlds[1].s.refused)
	if share > 1.1 {
		t.Errorf("locks cost %.3f times the bytes, want at most 1.1", share)
	}
	if worlds[1].s.refused > 0 {
		t.Errorf("%d deletions were refused", worlds[1].s.refused)
	}
}

// lockedUntil returns the locks of all objects.
func (s *lockingStore) lockedUntil() map[string]time.Time {
	names := <-s.names
	defer func() { s.names <- names }()
	until := map[string]time.Time{}
	for name, l := range names {
		until[name] = l.until
	}
	return until
}

// days makes a world with some days of hourly snapshots.
func days(t *testing.T, n int, rules backup.Retention) *hourly {
	t.Helper()
	m := newHourly(t, rules, true)
	m.run(n)
	m.pass()
	m.checkLocks()
	return m
}

// With a stolen operator's credential, one can make rules shorter and forget snapshots. No lock
// becomes shorter by that, and nothing is deleted before its lock has ended. Then it is.
func TestShorterRulesShortenNoLock(t *testing.T) {
	m := days(t, 2, backup.Retention{Hourly: 6, Daily: 7})
	before := m.s.lockedUntil()
	_, err := m.x.SetPolicy(m.ctx, backup.Policy{Name: "hourly", Schedule: "@every 1h", Retention: backup.Retention{Last: 1}}, "test")
	m.must(err)
	m.applyRules()
	result := m.pass()
	if result.Locked == 0 || result.LockedBytes == 0 {
		t.Errorf("nothing is locked: %+v", result)
	}
	// What is stored is needed, unused, or locked without need.
	if needed := result.KeptBytes - result.Unused - result.LockedKept; result.LockedKept > result.LockedBytes || needed <= 0 || needed >= result.KeptBytes {
		t.Errorf("needed %d: %+v", needed, result)
	}
	after := m.s.lockedUntil()
	for name, until := range before {
		if got, ok := after[name]; ok && got.Before(until) || !ok && until.After(m.now) {
			t.Errorf("%s was locked until %v, and is until %v", name, until, got)
		}
	}
	m.now = m.now.AddDate(0, 0, 10)
	m.pass()
	m.now = m.now.AddDate(0, 0, 10)
	m.pass()
	if left := m.s.stored(); left >= 1_000_000 { // a snapshot has 200 files of 4000 bytes
		t.Errorf("%d bytes are left", left)
	}
	if m.s.refused != 0 {
		t.Errorf("%d deletions were refused", m.s.refused)
	}
}

// A hold on a path keeps the snapshots that have versions of it, and only these are locked as what
// has no end.
func TestHoldOnPathLocksItsVersions(t *testing.T) {
	m := newHourly(t, backup.Retention{Hourly: 6, Daily: 2}, true)
	m.files = make([]int, 2*filesOfDirectory)
	all := make([]int, len(m.files))
	for n := range all {
		all[n] = n
	}
	// The versions of the first directory are those of the snapshots 2 and 5.
	for _, changed := range [][]int{all, {30}, {0, 31}, {32}, {33}} {
		m.takeSnapshot(changed...)
		m.now = m.now.Add(time.Hour)
	}
	_, err := m.x.AddHold(m.ctx, index.Hold{Shard: m.shards[0].ID, Path: "directory 0", By: "tester"})
	m.must(err)
	m.pass()
	held, err := m.x.HeldByPaths(m.ctx, m.shards[0].ID)
	m.must(err)
	locks, err := m.x.Locks(m.ctx)
	m.must(err)
	for id := range m.contents {
		_, want := held[id]
		if open := locks.Until[index.ContentLock(id)].Sub(m.now) > 29*24*time.Hour; open != want {
			t.Errorf("a snapshot is locked until %v; the hold keeps it: %t", locks.Until[index.ContentLock(id)], want)
		}
	}
	if len(held) != 2 || len(m.contents) != 5 {
		t.Errorf("%d of %d snapshots are held, want 2 of 5", len(held), len(m.contents))
	}
}

// The store's clock decides. If it is behind, deletions are refused, and nothing is lost or leaked:
// the objects stay to be deleted, and go when the store lets them. If the index's clock is behind,
// what could be deleted stays for longer.
func TestWrongClocksDelayDeletions(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"the store is behind": 30 * 24 * time.Hour, "the index is behind": -30 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			m := days(t, 2, backup.Retention{Hourly: 6})
			_, err := m.x.SetPolicy(m.ctx, backup.Policy{Name: "hourly", Schedule: "@every 1h", Retention: backup.Retention{Last: 1}}, "test")
			m.must(err)
			m.applyRules()
			before := m.s.lockedUntil()
			right := m.now
			m.x.now = func() time.Time { return right.Add(ahead) }
			for range 2 {
				m.pass()
			}
			after := m.s.lockedUntil()
			for name, until := range before {
				if _, ok := after[name]; !ok && until.After(m.now) {
					t.Errorf("%s is gone, and was locked until %v", name, until)
				}
			}
			if (m.s.refused > 0) != (ahead > 0) {
				t.Errorf("%d deletions were refused", m.s.refused)
			}
			m.x.now = func() time.Time { return m.now }
			for range 3 {
				m.now = m.now.AddDate(0, 0, 35)
				m.pass()
			}
			if left := m.s.stored(); left >= 1_000_000 {
				t.Errorf("afterwards, %d bytes are left", left)
			}
		})
	}
}

// A pass that fails anywhere between two requests is repeated, and locks the rest.
func TestFailedPassLocksLater(t *testing.T) {
	m := newHourly(t, backup.Retention{Hourly: 24, Daily: 7}, true)
	m.run(1)
	for allowed := 0; ; allowed += 7 {
		failing := &failingLocks{lockingStore: m.s, left: allowed}
		_, err := prune.Run(m.ctx, prune.Options{Index: m.x, Store: failing, Holder: fmt.Sprint("failing ", allowed), Log: slog.New(slog.DiscardHandler), ObjectLock: true, MaxUnused: 1})
		if err == nil {
			break
		}
		m.wants(err, backup.ErrUnavailable)
	}
	m.checkLocks()
}

type failingLocks struct {
	*lockingStore
	left int
}

func (s *failingLocks) Lock(ctx context.Context, name string, until time.Time) error {
	names := <-s.names
	s.left--
	gone := s.left < 0
	s.names <- names
	if gone {
		return backup.ErrUnavailable
	}
	return s.lockingStore.Lock(ctx, name, until)
}

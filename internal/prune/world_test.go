package prune_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/internal/testenv"
)

// A world is an index, a store, and what a test expects of both.
type world struct {
	testing.TB
	ctx    context.Context
	x      index.Index
	s      *dirstore.Store
	r      *rand.Rand
	now    time.Time
	shards []*shard
	late   []*message      // of snapshots that have ended
	left   map[string]bool // copies that no row names, and that no sweep deletes
	trace  []string
	exact  bool // nothing is left to chance
	ids    byte // the first one of the last id, if exact
	passes int
	counts map[string]int        // of what happened, over all histories
	known  map[int]backup.PackID // where a reader has stored chunks
	// Passes make parity groups of this layout now and then. The objects in protected had parity.
	parity    parity.Layout
	protected map[index.StoredObject]bool

	sealer *seal.Sealer
	opener *seal.Opener
	opened map[index.PackPlace]*pack.Reader // objects never change
}

var repository = backup.RepositoryID{1}

// plaintext returns the 100 bytes of a chunk.
func plaintext(id backup.ChunkID) []byte { return bytes.Repeat(id[:4], 25) }

// A shard is the expected state of a shard.
type shard struct {
	backup.Shard
	retired   bool
	closed    backup.SnapshotNumber // up to this one, nothing remains
	last      backup.SnapshotNumber
	running   *running
	snapshots []*snapshot // that have ended, oldest first
	hold      int64
}

// A snapshot is the expected state of one that has ended.
type snapshot struct {
	backup.Snapshot
	committed, recorded, forgotten, bad, removed bool

	pages   map[string]content
	hold    int64
	reading backup.PackID
}

// A running is the expected state of a running snapshot.
type running struct {
	backup.Snapshot
	base     *snapshot
	pages    map[string]content
	messages []*message // that were sent
}

// A message is a result that was sent to the committer. It may arrive late, or twice.
type message struct {
	index.Result
	accepted func() // changes the expectation
	tries    int
}

func newWorld(t testing.TB, x index.Index, shards int) *world {
	m := &world{
		TB: t, ctx: t.Context(), x: x, now: time.Now().UTC().Add(-24 * time.Hour), left: map[string]bool{}, counts: map[string]int{},
		r: rand.New(rand.NewPCG(1, 1)), known: map[int]backup.PackID{}, opened: map[index.PackPlace]*pack.Reader{},
	}
	identity, recipient, err := seal.GenerateIdentity()
	m.must(err)
	m.sealer, err = seal.NewSealer([]string{recipient})
	m.must(err)
	m.opener, err = seal.NewOpener([]byte(identity))
	m.must(err)
	s, err := dirstore.Create(filepath.Join(testenv.MemoryDir(t), "store"))
	m.must(err)
	m.s = s
	_, _, err = x.Migrate(m.ctx)
	m.must(err)
	m.must(x.CreateRepository(m.ctx, backup.Repository{ID: repository}))
	for i := range shards {
		m.shards = append(m.shards, &shard{Shard: m.ensureShard(fmt.Sprint("shard ", i))})
	}
	return m
}

func (m *world) ensureShard(name string) backup.Shard {
	m.Helper()
	filer, err := m.x.EnsureFiler(m.ctx, "filer")
	m.must(err)
	if filer.Limits.WalkTasks != 10_000 {
		filer.Limits = backup.Limits{WalkTasks: 10_000, ReadBatches: 10_000}
		m.must(m.x.SetFiler(m.ctx, filer))
	}
	s, err := m.x.EnsureShard(m.ctx, filer.ID, name, "posix:///srv")
	m.must(err)
	return s
}

func (m *world) must(err error) {
	m.Helper()
	if err != nil {
		m.fatalf("%v", err)
	}
}

func (m *world) wants(err, want error) {
	m.Helper()
	if !errors.Is(err, want) {
		m.fatalf("error %v, want %v", err, want)
	}
}

// fatalf fails the test, with what has happened.
func (m *world) fatalf(format string, args ...any) {
	m.Helper()
	for _, line := range m.trace {
		m.Log(line)
	}
	m.Fatalf(format, args...)
}

func (m *world) note(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
	if len(m.trace) > 2000 {
		m.trace = m.trace[1000:]
	}
}

func (m *world) newPackID() backup.PackID { return backup.PackID(m.newID()) }

// newID returns the bytes of an id. If nothing is left to chance, ids follow one another in their
// order, as they do when a run is repeated, and are new nevertheless.
func (m *world) newID() (id [16]byte) {
	if m.exact {
		id = backup.NewPackID()
		m.ids += 1 << 4
		id[0] = m.ids
		return id
	}
	for i := range id {
		id[i] = byte(m.r.Uint32())
	}
	return id
}

// tick advances the clock of claims, so that all leases run out.
func (m *world) tick() time.Time {
	m.now = m.now.Add(time.Second)
	return m.now
}

// head returns the newest committed snapshot of a shard, forgotten or not.
func (s *shard) head() *snapshot {
	for _, snap := range slices.Backward(s.snapshots) {
		if snap.committed && snap.Number > s.closed {
			return snap
		}
	}
	return nil
}

// lastGood returns the last good snapshot of a shard.
func (s *shard) lastGood() *snapshot {
	for _, snap := range slices.Backward(s.snapshots) {
		if snap.committed && !snap.forgotten && !snap.bad {
			return snap
		}
	}
	return nil
}

// begin begins a snapshot.
func (m *world) begin(s *shard) {
	m.Helper()
	snap, err := m.x.BeginSnapshot(m.ctx, s.ID, backup.Snapshot{ID: m.newID()}, time.Time{})
	m.must(err)
	s.last++
	m.note("shard %d: begin %d on %d", s.ID, snap.Number, snap.Base)
	r := &running{Snapshot: snap, base: s.head(), pages: map[string]content{}}
	if r.base != nil {
		r.pages = maps.Clone(r.base.pages)
	}
	if snap.Number != s.last || (snap.Base != 0) != (r.base != nil) || r.base != nil && (snap.Base != r.base.Number || snap.BaseID != r.base.ID) {
		m.fatalf("shard %d: snapshot %d begins on %d, want number %d on %+v", s.ID, snap.Number, snap.Base, s.last, r.base)
	}
	s.running = r
}

// fail ends the running snapshot without a commit.
func (m *world) fail(s *shard) {
	m.Helper()
	r := s.running
	m.note("shard %d: fail %d", s.ID, r.Number)
	m.must(m.x.Fail(m.ctx, r.ID, "the test says so", time.Time{}))
	m.end(s, &snapshot{Snapshot: r.Snapshot})
}

func (m *world) end(s *shard, ended *snapshot) {
	m.late = append(m.late, s.running.messages...)
	s.snapshots = append(s.snapshots, ended)
	s.running = nil
}

// commit commits the running snapshot if its work is settled, as a committer does. The segment may
// be a checkpoint, and there is none if nothing has changed.
func (m *world) commit(s *shard) bool {
	m.Helper()
	r := s.running
	ids, err := m.x.CompleteSnapshots(m.ctx, []backup.SnapshotID{r.ID})
	m.must(err)
	if len(ids) == 0 {
		return false
	}
	var set, sum backup.PageSet
	if r.base != nil {
		base, err := m.x.Snapshot(m.ctx, r.base.ID)
		m.must(err)
		set = base.Pages
	}
	changed := false
	for c, err := range m.x.Changes(m.ctx, r.ID) {
		m.must(err)
		changed = true
		if c.Ended {
			set.Remove(c.Digest)
		} else {
			set.Add(c.Digest)
		}
	}
	for c, err := range m.x.AllPages(m.ctx, r.ID) {
		m.must(err)
		sum.Add(c.Digest)
	}
	if set != sum {
		m.fatalf("shard %d: snapshot %d on %d: by its changes it is %+v, by its pages %+v", s.ID, r.Number, r.Base, set, sum)
	}
	segment := backup.Segment{Attempt: m.newPackID(), Checkpoint: m.r.IntN(3) == 0}
	if changed || segment.Checkpoint {
		segment.Parts, segment.Bytes = 1, 100
		m.must(m.s.Put(m.ctx, store.SegmentName(r.ID, segment.Attempt, 0), []byte("segment")))
	}
	m.note("shard %d: commit %d with %v", s.ID, r.Number, r.pages)
	m.must(m.x.Commit(m.ctx, r.ID, segment, set, time.Time{}))
	r.Segment = segment
	m.end(s, &snapshot{Snapshot: r.Snapshot, committed: true, pages: r.pages})
	return true
}

// record writes the record of a snapshot that has ended.
func (m *world) record(snap *snapshot) {
	m.Helper()
	m.must(m.s.Put(m.ctx, store.CommitName(snap.ID), []byte("record")))
	m.must(m.x.Recorded(m.ctx, snap.ID))
	snap.recorded = true
}

// forget forgets a snapshot if it may be forgotten, and checks that it is refused otherwise.
func (m *world) forget(s *shard, snap *snapshot) {
	m.Helper()
	err := m.x.Forget(m.ctx, snap.ID, "test", "")
	m.note("shard %d: forget %d: %v", s.ID, snap.Number, err)
	switch {
	case snap.forgotten:
		m.wants(err, backup.ErrNotFound)
	case !snap.recorded, s.hold != 0, snap.hold != 0, snap.reading != backup.PackID{},
		s.running != nil && s.running.base == snap, !s.retired && s.lastGood() == snap:
		m.wants(err, index.ErrKept)
	default:
		m.must(err)
		snap.forgotten = true
		m.counts["forgotten"]++
	}
}

// called takes note of a call of a pass.
func (m *world) called(call string, of backup.ShardID) {
	m.counts[call]++
	m.note("prune: %s", call)
	if call == "DropVersions" {
		for _, s := range m.shards {
			kept := slices.ContainsFunc(s.snapshots, func(snap *snapshot) bool { return snap.committed && !snap.forgotten })
			if s.ID == of && s.retired && s.running == nil && !kept {
				s.closed = s.last
			}
		}
	}
}

// check compares the index and the store with what is expected of them.
func (m *world) check() {
	m.Helper()
	needed := map[int]bool{}
	for _, s := range m.shards {
		head := s.head()
		for _, snap := range s.snapshots {
			switch {
			case snap.committed && !snap.forgotten:
				m.checkPages(s, snap.Number, snap.pages, func(yield func(backup.PageVersion, error) bool) { m.x.Pages(m.ctx, snap.ID, "")(yield) })
			case snap == head:
				m.checkPages(s, snap.Number, snap.pages, m.x.Subtree(m.ctx, s.ID, snap.Number, ""))
			default:
				continue
			}
			for _, c := range snap.pages {
				addChunks(needed, c.chunks())
			}
		}
		if r := s.running; r != nil {
			m.checkPages(s, r.Number, r.pages, m.x.Subtree(m.ctx, s.ID, r.Number, ""))
			for _, c := range r.pages {
				addChunks(needed, c.chunks())
			}
		}
		for _, c := range m.interrupted(s) {
			addChunks(needed, c.chunks())
		}
	}
	m.checkChunks(needed)
	m.checkParity()
}

func (m *world) checkPages(s *shard, number backup.SnapshotNumber, want map[string]content, pages func(func(backup.PageVersion, error) bool)) {
	m.Helper()
	got := map[string]content{}
	for p, err := range pages {
		if err != nil {
			m.fatalf("shard %d: pages of snapshot %d: %v", s.ID, number, err)
		}
		got[p.Path] = contentOfListing(p.Listing)
	}
	if !maps.Equal(got, want) {
		m.fatalf("shard %d: snapshot %d has pages %v, want %v", s.ID, number, got, want)
	}
}

// checkChunks checks that each chunk is in a pack that is registered and stored, and that the index
// knows the lists among them.
func (m *world) checkChunks(needed map[int]bool) {
	m.Helper()
	var ids, known []backup.ChunkID
	chunks := slices.Sorted(maps.Keys(needed))
	for _, n := range chunks {
		ids = append(ids, chunkID(n))
		if lists[n].depth > 0 {
			known = append(known, chunkID(n))
		}
	}
	places, err := m.x.LocateReadableCopies(m.ctx, ids)
	m.must(err)
	found, err := m.x.LocateReadable(m.ctx, ids)
	m.must(err)
	for i := range ids {
		if len(places[i]) == 0 || found[i] == (index.Location{}) {
			m.fatalf("chunk %d has no place", chunks[i])
		}
		// Restore tries one place after the other.
		there := false
		for _, p := range places[i] {
			there = there || m.restores(ids[i], p)
		}
		if !there {
			m.fatalf("chunk %d is in no pack in the store: %+v", chunks[i], places[i])
		}
	}
	all, err := m.x.HasLists(m.ctx, known)
	m.must(err)
	if !all {
		m.fatalf("the index does not know all of the lists in %d", chunks)
	}
}

// restores reports whether the chunk is at the place, in the store.
func (m *world) restores(id backup.ChunkID, at index.Location) bool {
	m.Helper()
	name := store.PackName(at.Snapshot, at.Object)
	if _, err := m.s.Stat(m.ctx, name); err != nil {
		delete(m.opened, at.PackPlace)
		return false
	}
	p := m.opened[at.PackPlace]
	if p == nil {
		var err error
		p, err = pack.Open(m.ctx, m.s, pack.Place{Object: name, Offset: at.Offset, Bytes: at.Bytes}, repository, cmp.Or(at.Sealed, at.Pack), m.opener)
		m.must(err)
		m.opened[at.PackPlace] = p
	}
	frame := p.Frames()[at.Frame]
	if frame.Removed {
		return false
	}
	sealed, err := m.s.GetRange(m.ctx, nil, name, at.Offset+frame.Offset, frame.SealedLength)
	m.must(err)
	data, err := p.DecodeFrame(nil, at.Frame, sealed, nil)
	m.must(err)
	return bytes.Equal(data[at.Start:][:at.Length], plaintext(id))
}

// interrupted returns the interrupted pages of a shard.
func (m *world) interrupted(s *shard) map[string]content {
	m.Helper()
	names := make([]backup.PageName, len(directories))
	for i, d := range directories {
		names[i].Path = d
	}
	listings, err := m.x.InterruptedListings(m.ctx, s.ID, names)
	m.must(err)
	found := map[string]content{}
	for i, data := range listings {
		if data != nil {
			found[directories[i]] = contentOfListing(data)
		}
	}
	return found
}

package prune_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/s3store"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// packBytes returns a pack with this id.
func (m *world) packBytes(id backup.PackID) []byte {
	m.Helper()
	w, err := pack.NewWriter(pack.KindData, repository, id, m.sealer, nil)
	m.must(err)
	chunk := chunkID(1)
	frame := pack.Frame{RawLength: 100, Body: plaintext(chunk), Chunks: []pack.Chunk{{Length: 100}}}
	copy(frame.Chunks[0].Hash[:], chunk[:])
	_, err = w.Add(frame)
	m.must(err)
	data, err := w.Finish()
	m.must(err)
	return data
}

// orphan puts a pack that nobody announces, and returns its name.
func (m *world) orphan(of backup.SnapshotID) string {
	m.Helper()
	id := m.newPackID()
	return m.put(store.PackName(of, id), m.packBytes(id))
}

func (m *world) put(name string, data []byte) string {
	m.Helper()
	m.must(m.s.Put(m.ctx, name, data))
	return name
}

// ended makes a snapshot that fails.
func (m *world) ended(s *shard) *snapshot {
	m.Helper()
	m.begin(s)
	m.fail(s)
	snap := s.snapshots[len(s.snapshots)-1]
	m.record(snap)
	return snap
}

// sweep sweeps the whole store, in one prune.
func (m *world) sweep(s store.Store, dry bool) prune.Swept {
	m.Helper()
	r, err := prune.Run(m.ctx, prune.Options{Index: m.x, Store: s, Holder: "sweep", Log: slog.New(slog.DiscardHandler), MaxUnused: 1, Sweep: true, DryRun: dry})
	m.must(err)
	return r.Swept
}

func (m *world) wantObjects(s store.Store, there bool, names ...string) {
	m.Helper()
	for _, name := range names {
		if _, err := s.Stat(m.ctx, name); (err == nil) != there || err != nil && !errors.Is(err, backup.ErrNotFound) {
			m.fatalf("%s: %v, want it there: %t", name, err, there)
		}
	}
}

// A sweep deletes what lost attempts have left, and nothing else. A dry run deletes nothing.
func TestSweep(t *testing.T) {
	for _, backend := range backends {
		t.Run(backend.name, func(t *testing.T) {
			m := newWorld(t, backend.open(t), 2)
			m.exact = true
			a, b := m.shards[0], m.shards[1]
			forgotten := m.backup(a, wants{"a": {1, 2}, "b": {3}})
			committed := m.backup(a, wants{"a": {1, 4}, "b": {3}})
			m.forget(a, forgotten)
			m.twoPasses()
			if m.counts["Move"] == 0 { // a row names the object of the copies, and not their ids
				t.Fatal("no pack was thinned")
			}
			failed := m.ended(a)
			m.begin(b)
			m.walkWants(b, wants{"a": {6}})
			m.readWants(b, wants{"a": {6}}) // uploaded, and not announced

			orphans := []string{
				m.orphan(failed.ID), m.orphan(committed.ID), m.orphan(committed.ID),
				m.put(store.SegmentName(failed.ID, m.newPackID(), 0), nil),
				m.put(store.SegmentName(committed.ID, m.newPackID(), 0), nil),
				m.put(store.SegmentName(committed.ID, committed.Segment.Attempt, 7), nil),
			}
			stay := []string{
				m.put(store.PackName(failed.ID, m.newPackID()), nil),
				m.put(store.PackName(failed.ID, m.newPackID()), bytes.Repeat([]byte("bctlpack"), 100)),
				m.put(store.PackName(failed.ID, m.newPackID()), m.packBytes(m.newPackID())), // a copy made by compaction
				m.put(store.PacksPrefix+"0", nil),
				m.put(store.PacksPrefix+failed.ID.String()+"/"+strings.ToUpper(backup.PackID{0xab}.String()), nil),
				m.put(store.PackName(failed.ID, m.newPackID())+"0", nil),
				m.put(strings.TrimSuffix(store.SegmentName(failed.ID, m.newPackID(), 1), "1"), nil),
				m.put(store.CommitsPrefix+"c0ffee", nil),
			}
			unknown := []string{m.orphan(backup.NewSnapshotID()), m.put(store.SegmentName(backup.NewSnapshotID(), m.newPackID(), 0), nil)}
			running := []string{m.orphan(b.running.ID), m.put(store.SegmentName(b.running.ID, m.newPackID(), 0), nil)}
			others := []string{m.put(store.CatalogName(1), nil), m.put(store.IndexName(1, 0), nil), m.put(store.ConfigName, nil), m.put(store.PackName(backup.SnapshotID{}, m.newPackID()), nil), m.put(store.SegmentName(backup.SnapshotID{}, m.newPackID(), 0), nil)}

			for _, dry := range []bool{true, false} {
				swept := m.sweep(m.s, dry)
				if swept.Orphans != int64(len(orphans)) || swept.Unknown != int64(len(unknown)) || swept.Unidentified != int64(len(stay)) || swept.Bytes < 100 || swept.Old {
					t.Fatalf("dry: %t: %+v", dry, swept)
				}
				m.wantObjects(m.s, dry, orphans...)
				m.wantObjects(m.s, true, stay...)
				m.wantObjects(m.s, true, unknown...)
				m.wantObjects(m.s, true, running...)
				m.wantObjects(m.s, true, others...)
				m.check()
			}
			m.deliverAll(b, wants{"a": {6}})
			m.finish(b)
			m.check()
			if swept := m.sweep(m.s, false); swept.Orphans != int64(len(running)) {
				t.Fatalf("%+v", swept)
			}
			m.wantObjects(m.s, false, running...)
		})
	}
}

// While the store has the record of a snapshot whose end the index does not have, nothing is
// deleted: the index is older than its store.
func TestSweepWithAnOldIndex(t *testing.T) {
	m := newWorld(t, openSQLite(t), 1)
	failed := m.ended(m.shards[0])
	m.begin(m.shards[0])
	orphan := m.orphan(failed.ID)
	for _, id := range []backup.SnapshotID{backup.NewSnapshotID(), m.shards[0].running.ID} {
		record := m.put(store.CommitName(id), nil)
		if swept := m.sweep(m.s, false); !swept.Old || swept.Orphans != 0 {
			t.Fatalf("%+v", swept)
		}
		m.wantObjects(m.s, true, orphan, record)
		m.must(m.s.Delete(m.ctx, record))
	}
	if swept := m.sweep(m.s, false); swept.Old || swept.Orphans != 1 {
		t.Fatalf("%+v", swept)
	}
}

// The record of a removed snapshot is an orphan: a committer that was paused may write it late.
func TestSweepOfALateRecord(t *testing.T) {
	m := newWorld(t, openSQLite(t), 1)
	m.exact = true
	s := m.shards[0]
	failed := m.ended(s)
	m.backup(s, wants{"a": {1}})
	m.forget(s, failed)
	m.twoPasses()
	names := []string{m.put(store.CommitName(failed.ID), nil), m.orphan(failed.ID), m.put(store.SegmentName(failed.ID, m.newPackID(), 0), nil)}
	if swept := m.sweep(m.s, false); swept.Orphans != int64(len(names)) || swept.Unknown+swept.Unidentified != 0 {
		t.Fatalf("%+v", swept)
	}
	m.wantObjects(m.s, false, names...)
}

// A failing store fails at some call of Delete or List.
type failingStore struct {
	store.Store
	calls  int // that succeed
	listed []string
}

func (s *failingStore) next() error {
	if s.calls--; s.calls < 0 {
		return errKilled
	}
	return nil
}

func (s *failingStore) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	s.listed = append(s.listed, prefix)
	return func(yield func(store.Object, error) bool) {
		if err := s.next(); err != nil {
			yield(store.Object{}, err)
			return
		}
		s.Store.List(ctx, prefix)(yield)
	}
}

func (s *failingStore) Delete(ctx context.Context, names ...string) error {
	if err := s.next(); err != nil {
		return err
	}
	return s.Store.Delete(ctx, names...)
}

// A sweep that was killed goes on with the section in which that happened.
func TestKilledSweepGoesOn(t *testing.T) {
	m := newWorld(t, openSQLite(t), 1)
	var orphans []string
	for range 20 {
		orphans = append(orphans, m.orphan(m.ended(m.shards[0]).ID))
	}
	deleted, sections := int64(0), 0
	for tries := 0; sections < prune.Sections; tries++ {
		next, err := m.x.NextSection(m.ctx)
		m.must(err)
		if next != sections {
			t.Fatalf("section %d is next, want %d", next, sections)
		}
		failing := &failingStore{Store: m.s, calls: 1 + m.r.IntN(6)}
		swept, err := prune.Sweep(m.ctx, prune.Options{Index: m.x, Store: failing, Holder: fmt.Sprint("sweep ", tries), Log: slog.New(slog.DiscardHandler)})
		if want := store.SegmentsPrefix + fmt.Sprintf("%x", sections); failing.listed[0] != want {
			t.Fatalf("%s was listed first, want %s", failing.listed[0], want)
		}
		deleted += swept.Orphans
		switch {
		case err == nil:
			sections++
		case !errors.Is(err, errKilled):
			t.Fatal(err)
		}
	}
	if deleted != int64(len(orphans)) {
		t.Errorf("%d orphans were deleted", deleted)
	}
	m.wantObjects(m.s, false, orphans...)
	if next, err := m.x.NextSection(m.ctx); err != nil || next != 0 {
		t.Errorf("section %d is next, %v", next, err)
	}
}

// Only the leading pruner deletes: once its term has ended, it deletes nothing.
func TestSweepOfAFormerLeader(t *testing.T) {
	m := newWorld(t, openSQLite(t), 1)
	orphan := m.orphan(m.ended(m.shards[0]).ID)
	usurping := &usurpedStore{Store: m.s, m: m}
	_, err := prune.Sweep(m.ctx, prune.Options{Index: m.x, Store: usurping, Holder: "former", Log: slog.New(slog.DiscardHandler)})
	for err == nil && !usurping.done {
		_, err = prune.Sweep(m.ctx, prune.Options{Index: m.x, Store: usurping, Holder: "former", Log: slog.New(slog.DiscardHandler)})
	}
	m.wants(err, index.ErrNotLeading)
	m.wantObjects(m.s, true, orphan)
}

// In a usurpedStore, the term of the pruner ends when it reads the header of a pack.
type usurpedStore struct {
	store.Store
	m    *world
	done bool
}

func (s *usurpedStore) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	leaders, err := s.m.x.Leaders(ctx)
	s.m.must(err)
	s.m.must(s.m.x.Resign(ctx, leaders[0].Term))
	s.done = true
	return s.Store.GetRange(ctx, dst, name, offset, length)
}

// A section may have many pages.
func TestSweepOfManyPages(t *testing.T) {
	t.Run("directory", func(t *testing.T) {
		m := newWorld(t, openSQLite(t), 2)
		m.sweepPages(m.s)
	})
	t.Run("S3", func(t *testing.T) {
		testtarget.Need(t, testtarget.S3)
		for name, start := range map[string]func(testing.TB) *testenv.S3Server{"versitygw": testenv.VersityGW, "minio": testenv.Minio} {
			t.Run(name, func(t *testing.T) {
				server := start(t)
				s, err := s3store.Open(t.Context(), s3store.Options{
					Endpoint: "http://" + server.Endpoint, Bucket: server.Bucket, Region: server.Region, AccessKey: server.AccessKey, SecretKey: server.SecretKey, Prefix: "some/prefix",
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { s.Close() })
				newWorld(t, openSQLite(t), 2).sweepPages(s)
			})
		}
	})
}

func (m *world) sweepPages(s store.Store) {
	m.Helper()
	m.begin(m.shards[1])
	of := []backup.SnapshotID{m.ended(m.shards[0]).ID, m.shards[1].running.ID, backup.NewSnapshotID()}
	const each = 1300
	names := make([][]string, len(of))
	putting, ctx := errgroup.WithContext(m.ctx)
	putting.SetLimit(16)
	for i, snapshot := range of {
		for range each {
			id := m.newPackID()
			name, data := store.PackName(snapshot, id), m.packBytes(id)
			names[i] = append(names[i], name)
			putting.Go(func() error { return s.Put(ctx, name, data) })
		}
	}
	m.must(putting.Wait())
	swept := m.sweep(s, false)
	if swept.Objects < 3*each || swept.Orphans != each || swept.Unknown != each || swept.Unidentified != 0 {
		m.fatalf("%+v", swept)
	}
	left := map[string]bool{}
	for o, err := range s.List(m.ctx, store.PacksPrefix) {
		m.must(err)
		left[o.Name] = true
	}
	for i := range of {
		for _, name := range names[i] {
			if left[name] != (i > 0) {
				m.fatalf("%s of snapshot %d: %t", name, i, left[name])
			}
		}
	}
}

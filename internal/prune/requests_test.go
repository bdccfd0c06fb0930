package prune_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
)

// A tracedStore notes what is deleted, and may fail.
type tracedStore struct {
	store.Store
	calls *[]string
	fails func(names []string) error
}

func (s *tracedStore) Delete(ctx context.Context, names ...string) error {
	kind, _, _ := strings.Cut(names[0], "/")
	*s.calls = append(*s.calls, kind)
	for _, name := range names {
		if other, _, _ := strings.Cut(name, "/"); other != kind {
			return errors.New("objects of two kinds in one request")
		}
	}
	if s.fails != nil {
		if err := s.fails(names); err != nil {
			return err
		}
	}
	return s.Store.Delete(ctx, names...)
}

// A tracedIndex notes which rows of snapshots are removed.
type tracedIndex struct {
	index.Index
	calls *[]string
}

func (x *tracedIndex) Remove(ctx context.Context, id backup.SnapshotID) error {
	*x.calls = append(*x.calls, "row")
	return x.Index.Remove(ctx, id)
}

// manyForgotten makes many snapshots, of which the index needs only the newest.
func manyForgotten(m *world, n int) {
	m.exact = true
	s := m.shards[0]
	var all []*snapshot
	for i := range n {
		all = append(all, m.backup(s, wants{"a": {i % 9}}))
	}
	// A checkpoint, so that no chain goes through the others.
	for head := s.head(); !head.Segment.Checkpoint; head = s.head() {
		all = append(all, head)
		m.backup(s, wants{"a": {len(all) % 9}})
	}
	for _, snap := range all {
		if snap != s.head() {
			m.forget(s, snap)
		}
	}
}

// However many snapshots are forgotten, a pass deletes all packs with one request per 1,000, then
// all segments, then all records, and then the rows. It lists nothing.
func TestRequestsOfAPass(t *testing.T) {
	for _, backend := range backends {
		t.Run(backend.name, func(t *testing.T) {
			m := newWorld(t, backend.open(t), 1)
			manyForgotten(m, 40)
			var calls []string
			result, err := prune.Run(m.ctx, prune.Options{
				Index: &tracedIndex{m.x, &calls}, Store: &tracedStore{Store: m.s, calls: &calls}, Holder: "pass", MaxUnused: 1, Log: slog.New(slog.DiscardHandler),
			})
			m.must(err)
			if want := (prune.Requests{Deletes: 3, Packs: 1}); result.Requests != want || result.Snapshots < 39 || result.Packs == 0 {
				t.Errorf("%+v, want %+v", result, want)
			}
			if got := slices.Compact(slices.Clone(calls)); !slices.Equal(got, []string{"packs", "segments", "commits", "row"}) {
				t.Errorf("deleted in the order %q", calls)
			}
			m.check()
			m.twoPasses()
			m.checkNoLeaks()
		})
	}
}

// A pass that fails after any of its deletions leaves what the next one finishes.
func TestJournalsAreDeletedInSteps(t *testing.T) {
	for _, at := range []string{"packs", "segments", "commits"} {
		for _, applied := range []bool{false, true} {
			m := newWorld(t, openSQLite(t), 1)
			manyForgotten(m, 5)
			var calls []string
			failing := &tracedStore{Store: m.s, calls: &calls, fails: func(names []string) error {
				if !strings.HasPrefix(names[0], at) {
					return nil
				}
				if applied {
					m.must(m.s.Delete(m.ctx, names...))
				}
				return backup.ErrUnavailable
			}}
			o := prune.Options{Index: m.x, Store: failing, Holder: "pass", MaxUnused: 1, Log: slog.New(slog.DiscardHandler)}
			_, err := prune.Run(m.ctx, o)
			m.wants(err, backup.ErrUnavailable)
			work, err := m.x.PruneWork(m.ctx)
			m.must(err)
			if prune.Idle(work, o) {
				t.Errorf("after a pass that failed at %s, there is nothing to do: %+v", at, work)
			}
			m.check()
			m.twoPasses()
			m.checkNoLeaks()
		}
	}
}

// putCatalogs puts catalogs, and notes them in the index if rows is set.
func (m *world) putCatalogs(rows bool, sequences ...int64) {
	m.Helper()
	for _, n := range sequences {
		m.put(store.CatalogName(n), nil)
		if rows {
			m.must(m.x.CatalogWritten(m.ctx, index.WrittenCatalog{Sequence: n, Written: m.now}))
		}
	}
}

func (m *world) wantCatalogs(rows, objects []int64) {
	m.Helper()
	got, err := m.x.Catalogs(m.ctx)
	m.must(err)
	if !slices.Equal(got, rows) {
		m.fatalf("the index has catalogs %d, want %d", got, rows)
	}
	var found []int64
	for o, err := range m.s.List(m.ctx, store.CatalogPrefix) {
		m.must(err)
		if n, ok := store.ParseCatalogName(o.Name); ok {
			found = append(found, n)
		}
	}
	slices.Sort(found)
	if !slices.Equal(found, objects) {
		m.fatalf("the store has catalogs %d, want %d", found, objects)
	}
}

// The newest catalogs stay. A sweep also deletes old ones that the index does not know. An index
// that is older than its store deletes none of the newer ones.
func TestOldCatalogs(t *testing.T) {
	for _, backend := range backends {
		t.Run(backend.name, func(t *testing.T) {
			m := newWorld(t, backend.open(t), 1)
			m.putCatalogs(true, 2, 3)
			m.putCatalogs(false, 1, 900)
			m.sweep(m.s, false)
			m.wantCatalogs([]int64{2, 3}, []int64{1, 2, 3, 900})
			m.putCatalogs(true, 4, 7, 8)
			m.twoPassesWithoutSweep()
			m.wantCatalogs([]int64{4, 7, 8}, []int64{1, 4, 7, 8, 900})
			strange := m.put(store.CatalogPrefix+"0000000000000001x", nil)
			if swept := m.sweep(m.s, true); swept.Orphans != 1 || swept.Unidentified != 1 {
				t.Errorf("it would sweep %+v", swept)
			}
			m.sweep(m.s, false)
			m.wantCatalogs([]int64{4, 7, 8}, []int64{4, 7, 8, 900})
			m.wantObjects(m.s, true, strange)
		})
	}
}

func (m *world) twoPassesWithoutSweep() {
	m.Helper()
	for range 2 {
		_, err := prune.Run(m.ctx, prune.Options{Index: m.x, Store: m.s, Holder: "pass", Log: slog.New(slog.DiscardHandler)})
		m.must(err)
	}
}

// A pruner whose permissions are from an earlier version of bctl leaves old catalogs, and deletes
// everything else. The rows stay with the objects.
func TestCatalogsThatMayNotBeDeleted(t *testing.T) {
	m := newWorld(t, openSQLite(t), 1)
	manyForgotten(m, 3)
	m.putCatalogs(true, 1, 2, 3, 4)
	var calls []string
	refusing := &tracedStore{Store: m.s, calls: &calls, fails: func(names []string) error {
		if strings.HasPrefix(names[0], store.CatalogPrefix) {
			return fs.ErrPermission
		}
		return nil
	}}
	result, err := prune.Run(m.ctx, prune.Options{Index: m.x, Store: refusing, Holder: "pass", Sweep: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil || result.Snapshots == 0 || result.Catalogs != 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	m.wantCatalogs([]int64{1, 2, 3, 4}, []int64{1, 2, 3, 4})
}

// The findings of a pass are known before the brake decides.
func TestFoundBeforeTheBrake(t *testing.T) {
	m := newWorld(t, openSQLite(t), 1)
	m.exact = true
	m.must(m.x.SetBrake(m.ctx, index.Brake{Snapshots: 100, MinSnapshots: 1, Bytes: 1, MinBytes: 1, Operators: 1}, "me"))
	s := m.shards[0]
	first := m.backup(s, wants{"a": {1, 2, 3}, "b": {4}})
	m.backup(s, wants{"a": {1}, "b": {5}})
	m.forget(s, first)
	would, err := prune.Run(m.ctx, prune.Options{Index: m.x, DryRun: true})
	m.must(err)
	var found []prune.Summary
	result, err := prune.Run(m.ctx, prune.Options{
		Index: m.x, Store: m.s, Holder: "pass", Log: slog.New(slog.DiscardHandler), Found: func(r prune.Summary) { found = append(found, r) },
	})
	if _, ok := errors.AsType[*index.StoppedError](err); !ok {
		t.Fatalf("error %v, want it stopped", err)
	}
	if len(found) != 1 || found[0].Deletable != would.Bytes+would.Freed || would.Deletable != found[0].Deletable || found[0].KeptBytes != would.Stored ||
		found[0].Unused < found[0].Deletable || result.Deletable != would.Deletable || result.KeptBytes != would.Stored {
		t.Errorf("found %+v, and the result is %+v; it would delete %+v", found, result, would)
	}
}

// The object of a deleted pack is deleted once, although its row remains while a snapshot runs.
func TestGonePacksAreNotDeletedAgain(t *testing.T) {
	for _, backend := range backends {
		t.Run(backend.name, func(t *testing.T) {
			m := newWorld(t, backend.open(t), 2)
			manyForgotten(m, 3)
			m.begin(m.shards[1])
			var calls []string
			o := prune.Options{Index: m.x, Store: &tracedStore{Store: m.s, calls: &calls}, Holder: "pass", Log: slog.New(slog.DiscardHandler)}
			for range 3 {
				_, err := prune.Run(m.ctx, o)
				m.must(err)
			}
			if n := len(slices.DeleteFunc(calls, func(kind string) bool { return kind != "packs" })); n != 1 {
				t.Errorf("packs were deleted with %d requests: %q", n, calls)
			}
			work, err := m.x.PruneWork(m.ctx)
			m.must(err)
			if work.Condemned != 0 || !work.CondemnedSince.IsZero() || work.Rows == 0 || work.RowsSince.IsZero() || !prune.Idle(work, o) {
				t.Errorf("%+v, want rows that wait, and nothing else", work)
			}
			m.fail(m.shards[1])
			m.record(m.shards[1].snapshots[0])
			_, err = prune.Run(m.ctx, o)
			m.must(err)
			if work, err = m.x.PruneWork(m.ctx); err != nil || work.Rows != 0 {
				t.Errorf("%+v, %v", work, err)
			}
		})
	}
}

// A pass that closes a retired shard frees what only its newest snapshot needed, or what an
// interrupted one has left. It says so, and the next pass deletes it.
func TestClosingAShardFreesMore(t *testing.T) {
	for left, leave := range map[string]func(m *world, s *shard){
		"a forgotten snapshot": func(m *world, s *shard) {
			snap := m.backup(s, wants{"a": {1, 2}})
			m.retire(s)
			m.forget(s, snap)
		},
		"pages of an interrupted snapshot": func(m *world, s *shard) {
			m.begin(s)
			m.walkWants(s, wants{"a": {1, 2}})
			m.deliverAll(s, wants{"a": {1, 2}})
			m.fail(s)
			m.retire(s)
		},
	} {
		for _, backend := range backends {
			t.Run(left+"/"+backend.name, func(t *testing.T) {
				m := newWorld(t, backend.open(t), 1)
				m.exact = true
				leave(m, m.shards[0])
				o := prune.Options{Index: m.x, Store: m.s, Holder: "pass", Log: slog.New(slog.DiscardHandler)}
				for n, want := range []struct {
					packs int
					again bool
				}{{0, true}, {1, false}} {
					result, err := prune.Run(m.ctx, o)
					m.must(err)
					work, err := m.x.PruneWork(m.ctx)
					m.must(err)
					if result.Packs != want.packs || result.Again != want.again || prune.Idle(work, o) == want.again {
						t.Errorf("pass %d: %+v, then %+v; want %+v", n, result, work, want)
					}
				}
			})
		}
	}
}

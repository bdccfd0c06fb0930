package current

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
)

// A server is an index whose tables a test can replace.
type server struct {
	index.Index
	incarnation string
}

func (s *server) Incarnation(context.Context) (string, error) { return s.incarnation, nil }

// A countedStore counts lists, which fail while it is away.
type countedStore struct {
	store.Store
	lists int
	away  bool
}

func (s *countedStore) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	s.lists++
	if s.away {
		return func(yield func(store.Object, error) bool) { yield(store.Object{}, backup.StoreAway) }
	}
	return s.Store.List(ctx, prefix)
}

type fixture struct {
	*Watch
	server *server
	store  *countedStore
	log    bytes.Buffer
}

func newFixture(t *testing.T, signed *backup.Repository) *fixture {
	t.Helper()
	idx, err := sqliteindex.Open(t.Context(), filepath.Join(t.TempDir(), "index.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { idx.Close() })
	if _, _, err := idx.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	d, err := dirstore.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{server: &server{idx, "first"}, store: &countedStore{Store: d}}
	f.Watch = New(f.server, f.store, signed, slog.New(slog.NewTextHandler(&f.log, nil)))
	return f
}

// later makes the last look, and the last comparison, as old as given.
func (f *fixture) later(by time.Duration) {
	f.looked, f.compared = f.looked.Add(-by), f.compared.Add(-by)
}

func (f *fixture) put(t *testing.T, name string) {
	t.Helper()
	if err := f.store.Put(t.Context(), name, []byte("x")); err != nil {
		t.Fatal(err)
	}
}

// An index that was replaced by an older one is noticed within a second, and by its catalogs within
// half a minute. While it is too old, nothing leads or changes it. The loss may be accepted.
func TestIndexThatIsReplaced(t *testing.T) {
	ctx := t.Context()
	f := newFixture(t, nil)
	writes := f.Index(f.server)
	if err := f.Check(ctx); err != nil {
		t.Fatal(err)
	}
	lost := backup.NewSnapshotID()
	f.put(t, store.CommitName(lost))
	f.later(2 * time.Second)
	if err := f.Check(ctx); err != nil {
		t.Errorf("records of the same index were compared again: %v", err)
	}
	f.server.incarnation = "restored"
	f.later(2 * time.Second)
	err := f.Check(ctx)
	if !errors.Is(err, repo.ErrIndexOld) || !strings.Contains(err.Error(), lost.Short()) || !strings.Contains(err.Error(), "bctl index catchup") {
		t.Fatalf("%v, want that the index is too old, why, and what to do", err)
	}
	if !errors.Is(f.Old(), repo.ErrIndexOld) || strings.Count(f.log.String(), "this service stops its work") != 1 {
		t.Errorf("%v, logged %s", f.Old(), &f.log)
	}
	if _, leads, err := writes.Lead(ctx, "keeper", "me", time.Minute); leads || err != nil {
		t.Errorf("a service with an old index leads: %t, %v", leads, err)
	}
	_, claim := writes.ClaimTasks(ctx, index.Claim{Limit: 1})
	_, batches := writes.ClaimBatches(ctx, index.Claim{Limit: 1})
	_, apply := writes.Apply(ctx, nil)
	_, commits := writes.ClaimCommit(ctx, lost, "me", time.Minute)
	_, catalog := writes.NextCatalog(ctx, 0)
	for name, err := range map[string]error{
		"ClaimTasks": claim, "ClaimBatches": batches, "Apply": apply, "ClaimCommit": commits, "NextCatalog": catalog,
		"Commit": writes.Commit(ctx, lost, backup.Segment{}, backup.PageSet{}, time.Time{}), "Fail": writes.Fail(ctx, lost, "", time.Time{}),
	} {
		if !errors.Is(err, repo.ErrIndexOld) {
			t.Errorf("%s: %v, want that it is refused", name, err)
		}
	}
	if err := f.server.AcceptLoss(ctx, []index.LostSnapshot{{ID: lost}}, 0, "me@here", "test"); err != nil {
		t.Fatal(err)
	}
	f.later(2 * againEvery)
	if err := f.Check(ctx); err != nil || !strings.Contains(f.log.String(), "as new as its store again") {
		t.Errorf("%v after the loss was accepted, logged %s", err, &f.log)
	}
	f.put(t, store.CatalogName(1))
	f.later(2 * catalogsEvery)
	if err := f.Check(ctx); !errors.Is(err, repo.ErrIndexOld) {
		t.Errorf("%v, want that a catalog shows it", err)
	}
}

// A process that may read what is signed believes nothing else. A store that is away delays only
// the first comparison.
func TestWhatIsBelieved(t *testing.T) {
	ctx := t.Context()
	f := newFixture(t, &backup.Repository{ID: backup.NewRepositoryID()})
	f.store.away = true
	if err := f.Check(ctx); !errors.Is(err, backup.StoreAway) {
		t.Fatalf("%v, want that the store is away", err)
	}
	f.store.away = false
	f.put(t, store.CommitName(backup.NewSnapshotID()))
	f.put(t, store.CatalogName(7))
	if err := f.Check(ctx); err != nil {
		t.Fatalf("objects that nobody has signed: %v", err)
	}
	f.store.away = true
	f.later(2 * catalogsEvery)
	if err := f.Check(ctx); err != nil {
		t.Errorf("%v, want that a store that is away changes nothing", err)
	}
	lists := f.store.lists
	for range 10 {
		if err := f.Check(ctx); err != nil || f.store.lists != lists {
			t.Fatalf("%v, and %d lists within a second", err, f.store.lists-lists)
		}
	}
}

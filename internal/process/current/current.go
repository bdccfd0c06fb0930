// Package current keeps the services of a fleet from working with an index that is older than its
// store (I16). Postgres may be restored from an earlier dump at any time, also while services run.
// Such an index relies on packs that a prune has moved or deleted since the dump, and gives numbers
// to new snapshots that others have.
//
// A Watch compares the index with the store at the start of a service, and whenever the index's
// tables or server were replaced, which one query per second shows. The numbers of catalogs, of
// which comparing costs one request, are compared every half minute in addition.
package current

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/telemetry"
)

const (
	lookEvery     = time.Second
	catalogsEvery = 30 * time.Second
	// againEvery is how often an index that was too old is compared again: it may have been
	// replaced by a newer one, or its loss may have been accepted.
	againEvery = 5 * time.Second
	// catalogsWithin bounds a comparison of catalogs, for which all work waits.
	catalogsWithin = 10 * time.Second
)

// A Watch compares an index with its store. It may be used concurrently. A nil Watch finds the
// index current.
type Watch struct {
	index index.Index
	store store.Store
	// signed is the repository whose signed objects count; nil: the process may not read them, and
	// believes their names.
	signed *backup.Repository
	log    *slog.Logger
	turn   chan struct{} // of the one that looks

	mu          sync.Mutex
	known       bool // incarnation was compared
	incarnation string
	looked      time.Time
	compared    time.Time
	old         error // wraps repo.ErrIndexOld
}

// New returns a Watch; signed may be nil.
func New(idx index.Index, s store.Store, signed *backup.Repository, log *slog.Logger) *Watch {
	return &Watch{index: idx, store: s, signed: signed, log: telemetry.Pair(log), turn: make(chan struct{}, 1)}
}

// Old returns the last finding: an error that wraps repo.ErrIndexOld if the index is too old.
func (w *Watch) Old() error {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.old
}

// fresh reports whether the last finding is recent enough, and returns it.
func (w *Watch) fresh() (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.known && time.Since(w.looked) < lookEvery, w.old
}

// Check fails with an error that wraps repo.ErrIndexOld if the index is older than its store. It
// also fails if that cannot be found out because the store does not answer, unless the same index
// was current before.
func (w *Watch) Check(ctx context.Context) error {
	if w == nil {
		return nil
	}
	if fresh, old := w.fresh(); fresh {
		return old
	}
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if fresh, old := w.fresh(); fresh { // another goroutine has looked meanwhile
		return old
	}
	return w.look(ctx)
}

func (w *Watch) look(ctx context.Context) error {
	incarnation, err := w.index.Incarnation(ctx)
	if err != nil {
		return err
	}
	same := w.known && incarnation == w.incarnation
	since := time.Since(w.compared)
	switch {
	case same && (w.old == nil && since < catalogsEvery || w.old != nil && since < againEvery):
		return w.found(incarnation, w.old, false)
	case same && w.old == nil:
		within, cancel := context.WithTimeout(ctx, catalogsWithin)
		defer cancel()
		err = repo.CompareCatalogs(within, w.store, w.index, w.signed)
	default:
		err = repo.Compare(ctx, w.store, w.index, w.signed)
	}
	switch {
	case err == nil, errors.Is(err, repo.ErrIndexOld):
		return w.found(incarnation, err, true)
	case same: // the store does not answer, and others report that
		return w.found(incarnation, w.old, true)
	}
	return err
}

// found notes and logs a finding, and returns it.
func (w *Watch) found(incarnation string, old error, compared bool) error {
	w.mu.Lock()
	was := w.old
	w.known, w.incarnation, w.old, w.looked = true, incarnation, old, time.Now()
	if compared {
		w.compared = w.looked
	}
	w.mu.Unlock()
	switch {
	case old != nil && was == nil:
		w.log.Error("this service stops its work: the index is older than its store", "error", old)
	case old == nil && was != nil:
		w.log.Info("the index is as new as its store again, and this service works")
	}
	return old
}

// Index returns idx for use by a service: what changes the index fails with repo.ErrIndexOld while
// the index is older than its store, and Lead is refused, as if another led.
func (w *Watch) Index(idx index.Index) index.Index { return checked{idx, w} }

type checked struct {
	index.Index
	watch *Watch
}

// Lead implements index.Leading.
func (x checked) Lead(ctx context.Context, role, holder string, ttl time.Duration) (index.Term, bool, error) {
	err := x.watch.Check(ctx)
	if errors.Is(err, repo.ErrIndexOld) {
		return index.Term{}, false, nil
	}
	if err != nil {
		return index.Term{}, false, err
	}
	return x.Index.Lead(ctx, role, holder, ttl)
}

// ClaimTasks implements index.Committing.
func (x checked) ClaimTasks(ctx context.Context, c index.Claim) ([]backup.WalkTask, error) {
	if err := x.watch.Check(ctx); err != nil {
		return nil, err
	}
	return x.Index.ClaimTasks(ctx, c)
}

// ClaimBatches implements index.Committing.
func (x checked) ClaimBatches(ctx context.Context, c index.Claim) ([]backup.ReadBatch, error) {
	if err := x.watch.Check(ctx); err != nil {
		return nil, err
	}
	return x.Index.ClaimBatches(ctx, c)
}

// Apply implements index.Committing.
func (x checked) Apply(ctx context.Context, results []index.Result) ([]index.Outcome, error) {
	if err := x.watch.Check(ctx); err != nil {
		return nil, err
	}
	return x.Index.Apply(ctx, results)
}

// ClaimCommit implements index.Committing.
func (x checked) ClaimCommit(ctx context.Context, id backup.SnapshotID, holder string, lease time.Duration) (bool, error) {
	if err := x.watch.Check(ctx); err != nil {
		return false, err
	}
	return x.Index.ClaimCommit(ctx, id, holder, lease)
}

// Commit implements index.Committing.
func (x checked) Commit(ctx context.Context, id backup.SnapshotID, segment backup.Segment, pages backup.PageSet, now time.Time) error {
	if err := x.watch.Check(ctx); err != nil {
		return err
	}
	return x.Index.Commit(ctx, id, segment, pages, now)
}

// Fail implements index.Committing.
func (x checked) Fail(ctx context.Context, id backup.SnapshotID, reason string, now time.Time) error {
	if err := x.watch.Check(ctx); err != nil {
		return err
	}
	return x.Index.Fail(ctx, id, reason, now)
}

// NextCatalog implements index.Committing.
func (x checked) NextCatalog(ctx context.Context, newest int64) (int64, error) {
	if err := x.watch.Check(ctx); err != nil {
		return 0, err
	}
	return x.Index.NextCatalog(ctx, newest)
}

package embedded_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// Most snapshots are forgotten: a prune writes the journal of the rest again, and removes theirs.
func TestJournalsAreRebased(t *testing.T) {
	w := &purgeWorld{machine: newMachine(t)}
	for n := range 14 {
		w.must(os.MkdirAll(filepath.Join(w.tree, fmt.Sprint("d", n%3)), 0o700))
		w.must(os.WriteFile(filepath.Join(w.tree, fmt.Sprint("d", n%3), fmt.Sprint(n)), []byte(fmt.Sprint("file ", n)), 0o600))
		s, err := w.backup(t.Context())
		w.must(err)
		w.snapshots = append(w.snapshots, s)
	}
	kept := map[int]bool{0: true, 6: true, 13: true}
	for i := range w.snapshots {
		if !kept[i] {
			w.must(w.index.Forget(t.Context(), w.snapshots[i].ID, "tester", "no longer wanted"))
		}
	}
	o := prune.Options{Store: w.Store, Log: slog.New(slog.DiscardHandler), Holder: "tester", MaxUnused: 1}
	r, err := embedded.Prune(t.Context(), w.index, w.Keys, w.LockDir, o)
	w.must(err)
	if r.Snapshots != 11 {
		t.Errorf("%d snapshots removed", r.Snapshots)
	}
	w.wantJournal("pruned")
	journals, err := w.index.Journals(t.Context(), w.shard.ID)
	w.must(err)
	if len(journals) != 3 || !journals[0].Segment.Checkpoint || journals[1].Base != w.snapshots[0].ID || journals[2].Base != w.snapshots[6].ID {
		t.Errorf("%+v", journals)
	}
	for i := range w.snapshots {
		if kept[i] {
			now, err := w.index.Snapshot(t.Context(), w.snapshots[i].ID)
			w.must(err)
			if now.Pages != w.snapshots[i].Pages {
				t.Errorf("number %d has other pages", now.Number)
			}
		}
	}
	w.wantRestored(&w.snapshots[13])
	// Nothing to do again, and the next backup continues.
	again, err := embedded.Prune(t.Context(), w.index, w.Keys, w.LockDir, o)
	w.must(err)
	s, err := w.backup(t.Context())
	w.must(err)
	if again.Snapshots != 0 || s.Segment.Parts != 0 && s.Segment.Checkpoint || s.BaseID != w.snapshots[13].ID {
		t.Errorf("%+v, %+v", again, s.Segment)
	}
}

// A lockedStore locks each object at its PUT, as a bucket with object lock does.
type lockedStore struct {
	store.Store
	mu    sync.Mutex // guards the other fields
	until map[string]time.Time
	asked int // requests for locks
}

func newLockedStore(t *testing.T, s store.Store) *lockedStore {
	l := &lockedStore{Store: s, until: map[string]time.Time{}}
	for o, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		l.until[o.Name] = time.Now().Add(store.InitialLock)
	}
	return l
}

func (s *lockedStore) Put(ctx context.Context, name string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until[name] = time.Now().Add(store.InitialLock)
	return s.Store.Put(ctx, name, data)
}

func (s *lockedStore) PutNew(ctx context.Context, name string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.Store.PutNew(ctx, name, data)
	if err == nil {
		s.until[name] = time.Now().Add(store.InitialLock)
	}
	return err
}

func (s *lockedStore) Lock(_ context.Context, name string, until time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.until[name]; !ok {
		return backup.ErrNotFound
	}
	s.asked++
	if until.After(s.until[name]) {
		s.until[name] = until
	}
	return nil
}

func (s *lockedStore) Delete(ctx context.Context, names ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var locked []string
	for _, name := range names {
		if s.until[name].After(time.Now()) && !strings.HasPrefix(name, store.IndexPrefix) { // a copy of the index has no lock
			locked = append(locked, name)
		} else if err := s.Store.Delete(ctx, name); err != nil {
			return err
		}
	}
	if len(locked) > 0 {
		return &store.LockedError{Names: locked}
	}
	return nil
}

// Locked journals are written again too. The replaced ones stay until their locks end. The new
// records and segments are locked once, for as long as their snapshots are kept.
func TestLockedJournalsAreRebased(t *testing.T) {
	w := &purgeWorld{machine: newMachine(t)}
	for n := range 14 {
		w.must(os.WriteFile(filepath.Join(w.tree, fmt.Sprint(n)), []byte(fmt.Sprint("file ", n)), 0o600))
		s, err := w.backup(t.Context())
		w.must(err)
		w.snapshots = append(w.snapshots, s)
	}
	locked := newLockedStore(t, w.Store)
	o := prune.Options{Store: locked, Log: slog.New(slog.DiscardHandler), Holder: "tester", MaxUnused: 1, ObjectLock: true}
	pass := func() {
		t.Helper()
		_, err := embedded.Prune(t.Context(), w.index, w.Keys, w.LockDir, o)
		w.must(err)
	}
	pass() // all are kept, and locked
	for i := range w.snapshots {
		if i != 0 && i != 6 && i != 13 {
			w.must(w.index.Forget(t.Context(), w.snapshots[i].ID, "tester", "no longer wanted"))
		}
	}
	before := len(locked.until)
	pass() // the journals are written again
	pass() // and locked
	journals, err := w.index.Journals(t.Context(), w.shard.ID)
	w.must(err)
	if len(journals) != 3 {
		t.Fatalf("%+v", journals)
	}
	for i := range journals {
		j := &journals[i]
		if want := min(i, 1); j.Sequence != want { // the first one is a checkpoint, and stays
			t.Errorf("number %d has amendment %d, want %d", j.Number, j.Sequence, want)
		}
		names := []string{store.AmendedName(j.ID, j.Sequence)}
		for part := range j.Segment.Parts {
			names = append(names, store.SegmentName(j.ID, j.Segment.Attempt, part))
		}
		for _, name := range names {
			if left := time.Until(locked.until[name]); left < 29*24*time.Hour {
				t.Errorf("number %d: %s is locked for %v", j.Number, name, left)
			}
		}
	}
	if len(locked.until) <= before {
		t.Errorf("%d objects, and %d before", len(locked.until), before)
	}
	asked := locked.asked
	pass()
	if locked.asked != asked {
		t.Errorf("%d requests for locks where nothing has changed", locked.asked-asked)
	}
	w.wantRestored(&w.snapshots[13])
}

package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/store"
)

// A purge whose process is killed at any write loses its index. A rebuilt one has all other files,
// with a copy of the index and without. With a copy, the purge goes on; without, it is repeated.
func TestPurgeIsKilledAndTheIndexIsLost(t *testing.T) {
	all, step := newPurgeWorld(t), 4
	if testing.Short() {
		step = 7
	}
	before := 0
	for at := 1; ; at += step {
		w := all.copied(t)
		w.begin()
		killed := &killedStore{Store: w.Store, at: at, applied: at%8 == 1}
		if _, err := w.purge(killed); err == nil {
			break
		} else if !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		after, err := w.backup(t.Context()) // it takes the path again
		w.must(err)
		for _, copies := range []bool{true, false} {
			what := fmt.Sprintf("killed at write %d, with copies: %t", at, copies)
			r := w.copied(t)
			if !copies {
				r.must(os.RemoveAll(filepath.Join(r.memory, "store", store.IndexPrefix)))
			}
			result := r.lose(what)
			r.checkOthers(what)
			r.wantRestored(&after)
			found := slices.DeleteFunc(r.repository.check(check.Content), func(f string) bool {
				return strings.HasPrefix(f, "index copy") // the purge has deleted copies that the copy knows
			})
			if len(found) > 0 {
				t.Errorf("%s: a check finds %q", what, found)
			}
			if len(result.Unpurged) > 0 {
				before++
			}
			if pending, err := r.index.Purges(t.Context()); err != nil || len(pending) == 0 {
				r.beginAgain(what)
			}
			if proof, err := r.purge(r.Store); err != nil || !proof.Complete {
				t.Fatalf("%s: %+v, %v", what, proof, err)
			}
			r.beginAgain(what) // from the new snapshot
			if proof, err := r.purge(r.Store); err != nil || !proof.Complete {
				t.Fatalf("%s, again: %+v, %v", what, proof, err)
			}
			r.check(what)
			r.wantNoName(what)
			r.must(r.index.Close())
		}
		w.must(w.index.Close())
	}
	if before == 0 {
		t.Error("the records of before a purge were never needed")
	}
}

// Two purges are killed one after the other, at any writes, with a backup between them or without,
// and the index is lost with its copies. A store may keep the journal that is deleted, because it
// is locked. All other files can be restored.
func TestTwoPurgesAreKilledAndTheIndexIsLost(t *testing.T) {
	all, step := newPurgeWorld(t), 11
	if testing.Short() {
		step = 29
	}
	for _, locked := range []bool{false, true} {
		tried := 0
		for first := 1; ; first += 3 {
			w := all.copied(t)
			done := w.kill("d1/"+secret+"/deep", first, locked)
			if first%2 == 0 && !w.isStale() {
				s, err := w.backup(t.Context())
				w.must(err)
				w.wantRestored(&s)
			}
			for second := 1 + first%step; !w.isStale(); second += step {
				r := w.copied(t)
				if r.kill("d1/"+secret, second, locked) {
					break
				}
				r.must(os.RemoveAll(filepath.Join(r.memory, "store", store.IndexPrefix)))
				tried++
				what := fmt.Sprintf("killed at writes %d and %d, locked: %t", first, second, locked)
				r.lose(what)
				r.checkOthers(what)
				r.must(r.index.Close())
			}
			w.must(w.index.Close())
			if done {
				break
			}
		}
		t.Logf("locked: %t, %d pairs of kills", locked, tried)
		if tried < 5 {
			t.Error("these are too few")
		}
	}
}

// isStale reports whether records are to be amended: until they are, no other path can be purged.
func (w *purgeWorld) isStale() bool {
	w.Helper()
	last, err := w.index.LastCommits(w.Context(), w.shard.ID)
	w.must(err)
	return last.Stale
}

// A lockedJournal does not delete what is below commits/ and segments/.
type lockedJournal struct{ store.Store }

func (s lockedJournal) Delete(ctx context.Context, names ...string) error {
	var locked, others []string
	for _, name := range names {
		if strings.HasPrefix(name, store.CommitsPrefix) || strings.HasPrefix(name, store.SegmentsPrefix) {
			locked = append(locked, name)
		} else {
			others = append(others, name)
		}
	}
	if err := s.Store.Delete(ctx, others...); err != nil || len(locked) == 0 {
		return err
	}
	return &store.LockedError{Names: locked}
}

// kill begins a purge of a path that is killed at a write. It reports whether the purge ended
// before.
func (w *purgeWorld) kill(path string, at int, locked bool) (done bool) {
	w.Helper()
	id := backup.NewPackID()
	_, err := w.index.BeginPurge(w.Context(), index.Purge{ID: id, Shard: w.shard.ID, Path: path, By: "tester", Reason: "request"}, false)
	w.must(err)
	pending, err := w.index.Purges(w.Context())
	w.must(err)
	n := slices.IndexFunc(pending, func(p index.Purge) bool { return p.ID == id })
	killed := &killedStore{Store: w.Store, at: at, applied: at%2 == 0}
	if locked {
		killed.Store = lockedJournal{w.Store}
	}
	_, err = w.purgeOf(killed, pending[n])
	if err != nil && !errors.Is(err, errKilled) {
		w.Fatal(err)
	}
	return err == nil
}

// A purge is killed while it amends records, the index is lost, and the store has lost a segment
// that the purge had written: the record before it does not need that.
func TestPurgeIsKilledAndASegmentIsLost(t *testing.T) {
	all, tried := newPurgeWorld(t), 0
	for at := 1; ; at += 2 {
		for n := range all.snapshots {
			w := all.copied(t)
			of := filepath.Join(w.memory, "store", store.SegmentsPrefix, w.snapshots[n].ID.String())
			before := names(t, of)
			w.begin()
			if _, err := w.purge(&killedStore{Store: w.Store, at: at, applied: true}); err == nil {
				if tried < 5 {
					t.Errorf("%d kills were tried", tried)
				}
				return
			} else if !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			lost := slices.DeleteFunc(names(t, of), func(name string) bool { return slices.Contains(before, name) })
			if w.isStale() && len(lost) > 0 && len(names(t, of)) > len(lost) {
				for _, name := range lost {
					w.must(os.Remove(filepath.Join(of, name)))
				}
				w.must(os.RemoveAll(filepath.Join(w.memory, "store", store.IndexPrefix)))
				what := fmt.Sprintf("killed at write %d, snapshot %d", at, n)
				w.lose(what)
				w.checkOthers(what)
				tried++
			}
			w.must(w.index.Close())
		}
	}
}

// names returns the names in a directory, which may not exist.
func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

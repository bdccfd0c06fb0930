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
	"github.com/bctl/bctl/internal/prune"
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

// A path is gone from all snapshots, and the purge is forgotten, as after the loss of the index:
// its content is removed as what no snapshot needs, also if that is killed at any write.
func TestPurgeOfTheUnneededIsKilledAtEachWrite(t *testing.T) {
	all := newPurgeWorld(t)
	all.begin()
	pending, err := all.index.Purges(t.Context())
	all.must(err)
	all.must(all.index.HidePurge(t.Context(), pending[0].ID))
	all.must(all.index.EndPurge(t.Context(), pending[0].ID, "forgotten"))
	if found, err := prune.FindUnneeded(t.Context(), all.index); err != nil || found.Packs == 0 {
		t.Fatalf("%+v, %v", found, err)
	}
	for at := 1; ; at += 2 {
		w := all.copied(t)
		killed := &killedStore{Store: w.Store, at: at, applied: at%4 == 1}
		what := fmt.Sprint("killed at write ", at)
		proof, err := w.purgeUnneeded(killed)
		killedNow := errors.Is(err, errKilled)
		if killedNow {
			w.must(w.index.Close())
			w.open()
			w.check(what)
			proof, err = w.purgeUnneeded(w.Store)
		}
		if err != nil || !proof.Complete || proof.Chunks == 0 && !killedNow {
			t.Fatalf("%s: %+v, %v", what, proof, err)
		}
		w.check(what)
		if found, err := prune.FindUnneeded(t.Context(), w.index); err != nil || found.Packs > 0 {
			t.Fatalf("%s: %+v, %v", what, found, err)
		}
		for o, err := range w.Store.List(t.Context(), store.PacksPrefix) { // nothing is left in a pack that no row names
			w.must(err)
			if snapshot, id, _ := store.ParsePackName(o.Name); !w.names(snapshot, id) {
				t.Errorf("%s: %s is left", what, o.Name)
			}
		}
		if !killedNow {
			if at < 9 {
				t.Errorf("only %d writes", at)
			}
			return
		}
		w.must(w.index.Close())
	}
}

// An index of before a purge, whose pages are replayed, has only what can be recovered, and names
// the rest.
func TestRebuildOfAnOlderIndexNamesWhatItLoses(t *testing.T) {
	for _, away := range []string{"segment", "record", "record and segment"} {
		t.Run(away, func(t *testing.T) {
			w := newPurgeWorld(t)
			path := filepath.Join(w.memory, "old.db")
			w.must(w.index.Copy(t.Context(), readInto(path)))
			w.begin()
			if proof, err := w.purge(w.Store); err != nil || !proof.Complete {
				t.Fatalf("%+v, %v", proof, err)
			}
			journals, err := w.index.Journals(t.Context(), w.shard.ID)
			w.must(err)
			j := journals[len(journals)/2]
			if away != "record" {
				w.must(w.Store.Delete(t.Context(), store.SegmentName(j.ID, j.Segment.Attempt, 0)))
			}
			if away != "segment" {
				w.must(w.Store.Delete(t.Context(), store.AmendedName(j.ID, j.Sequence)))
			}
			w.must(w.index.Close())
			w.must(os.Rename(path, filepath.Join(w.memory, "index.db")))
			w.open()
			committed := func() (found []backup.Snapshot) {
				found, err := w.index.Snapshots(t.Context(), index.SnapshotFilter{States: []backup.State{backup.Committed}})
				w.must(err)
				return found
			}
			before := len(committed())
			refused := w.rebuildWith(w.index, 0)
			r := w.rebuildInto(w.index)
			if !refused.Refused || len(refused.Lost) != len(r.Lost) || len(refused.Removed) > 0 {
				t.Errorf("refused: %+v", refused)
			}
			if len(r.Lost) == 0 || len(committed())+len(r.Lost) != before {
				t.Fatalf("of %d snapshots, %d are there; lost: %v", before, len(committed()), r.Lost)
			}
			for _, s := range committed() {
				reported, err := w.restore(t.Context(), &s, filepath.Join(w.memory, "restored"))
				if err != nil || len(reported) > 0 {
					t.Errorf("number %d: %v, %v", s.Number, err, reported)
				}
				w.must(os.RemoveAll(filepath.Join(w.memory, "restored")))
			}
		})
	}
}

// names reports whether a row of the index names an object.
func (w *purgeWorld) names(snapshot backup.SnapshotID, object backup.PackID) bool {
	for p, err := range w.index.Packs(w.Context()) {
		w.must(err)
		if p.Snapshot == snapshot && p.Object == object {
			return true
		}
	}
	return false
}

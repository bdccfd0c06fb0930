package mirror

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

func TestCopyBack(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	w.snapshot()
	w.run(w.options())
	before := w.objects(w.from)
	asOf := w.now
	w.now = w.now.Add(time.Hour)
	w.removeFrom(append(m.packs, m.segment, m.record)...)
	w.snapshot()
	w.run(w.options())
	now := w.objects(w.from)
	for at, want := range map[time.Time]map[string]string{{}: now, asOf: before} {
		for n := 1; ; n++ { // interrupted at each request
			empty := newMemory(t)
			count := 0
			empty.before = func(op, _ string) error {
				if count++; op != "list" && count == n {
					return errKilled
				}
				return nil
			}
			o := BackOptions{From: w.to, To: empty, AsOf: at, Workers: 1}
			_, err := CopyBack(t.Context(), o)
			done := err == nil && count < n
			empty.before = nil
			if _, there := w.objects(empty)[store.ConfigName]; there != (err == nil) {
				t.Errorf("at %v: after %d requests, it is a repository: %t, with %v", at, n, there, err)
			}
			s, err := CopyBack(t.Context(), o)
			w.must(err)
			if got := w.objects(empty); !maps.Equal(got, want) || s.Objects != int64(len(want)) || len(s.Problems) > 0 {
				t.Errorf("at %v: %q, %+v", at, slices.Sorted(maps.Keys(got)), s)
			}
			if done {
				break
			}
		}
	}
	if _, err := CopyBack(t.Context(), BackOptions{From: w.to, To: w.from}); err != nil {
		t.Errorf("into a store that has just that: %v", err)
	}
	w.snapshot()
	if _, err := CopyBack(t.Context(), BackOptions{From: w.to, To: w.from}); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("into a store with other objects: %v", err)
	}
	// A service has written to the store before all of it was there.
	later := w.objects(w.from)
	w.removeFrom(store.ConfigName)
	if _, err := CopyBack(t.Context(), BackOptions{From: w.to, To: w.from, AsOf: w.now}); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("as of a time, into a store with other objects: %v", err)
	}
	_, err := CopyBack(t.Context(), BackOptions{From: w.to, To: w.from})
	w.must(err)
	if !maps.Equal(w.objects(w.from), later) {
		t.Error("the store is not what it was")
	}
	w.removeFrom(store.ConfigName)
	w.must(w.from.Store.Put(t.Context(), store.CommitName(backup.NewSnapshotID()), []byte("forged")))
	if _, err := CopyBack(t.Context(), BackOptions{From: w.to, To: w.from}); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("into a store with objects of nobody: %v", err)
	}
}

// Damaged objects of the mirror are not copied back.
func TestCopyBackOfADamagedMirror(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	w.run(w.options())
	w.flip(w.to, m.packs[0], 1000)
	empty := newMemory(t)
	s, err := CopyBack(t.Context(), BackOptions{From: w.to, To: empty})
	w.must(err)
	if _, there := w.objects(empty)[m.packs[0]]; there || len(s.Problems) != 1 || s.Problems[0].Name != m.packs[0] {
		t.Errorf("%+v", s)
	}
}

// Single objects are put back if the mirror's are whole.
func TestPutBack(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	w.run(w.options())
	before := w.objects(w.from)
	source, err := NewSource(t.Context(), w.to, w.id, w.signing.Signer())
	w.must(err)
	back := func(name string, want bool) {
		t.Helper()
		if got, err := source.PutBack(t.Context(), w.from, name); err != nil || got != want {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
	back(m.packs[0], false) // it is sound
	w.flip(w.from, m.packs[0], 1000)
	back(m.packs[0], true)
	w.removeFrom(m.record)
	back(m.record, true)
	back(store.CommitName(backup.NewSnapshotID()), false)
	if !maps.Equal(before, w.objects(w.from)) {
		t.Error("the store is not what it was")
	}
	w.flip(w.from, m.packs[0], 1000)
	w.flip(w.to, m.packs[0], 2000)
	var refused []string
	source.Damaged = func(name string, why error) {
		if refused = append(refused, name); !errors.Is(why, backup.ErrCorrupt) {
			t.Errorf("%s: %v", name, why)
		}
	}
	back(m.packs[0], false)
	if !slices.Equal(refused, m.packs[:1]) {
		t.Errorf("copies of %q are damaged, want %q", refused, m.packs[:1])
	}
	w.wantRescued(source, m.packs[0])
	if _, err := NewSource(t.Context(), w.to, backup.NewRepositoryID(), w.signing.Signer()); !errors.Is(err, ErrOther) {
		t.Errorf("another repository: %v", err)
	}
}

// A store may refuse to return the whole of an object whose checksum is wrong. What is sound of it
// still counts.
func TestMendsWhatAStoreKnowsToBeDamaged(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	w.run(w.options())
	w.flip(w.from, m.packs[0], 1000)
	w.flip(w.to, m.packs[0], 2000)
	present, copied := w.objects(w.from)[m.packs[0]], w.objects(w.to)[m.packs[0]]
	source, err := NewSource(t.Context(), w.to, w.id, w.signing.Signer())
	w.must(err)
	refuse := func(op, name string) error {
		if op == "get" && name == m.packs[0] {
			return backup.ErrCorrupt
		}
		return nil
	}
	w.from.before, w.to.before = refuse, refuse
	called := 0
	source.Mend = func(_ context.Context, name string, store, mirror []byte) ([]byte, bool, error) {
		if called++; name != m.packs[0] || string(store) != present || string(mirror) != copied {
			t.Errorf("%s: mended of %d and %d bytes, want %d and %d", name, len(store), len(mirror), len(present), len(copied))
		}
		return nil, true, nil
	}
	if done, err := source.PutBack(t.Context(), w.from, m.packs[0]); done || err != nil || called != 1 {
		t.Errorf("put back %t after %d calls: %v", done, called, err)
	}
}

// wantRescued checks that a mended object is in a file if the store does not take it any more.
func (w *world) wantRescued(source *Source, name string) {
	w.Helper()
	w.Setenv("TMPDIR", w.TempDir())
	mended := []byte("what is sound")
	source.Mend = func(context.Context, string, []byte, []byte) ([]byte, bool, error) { return mended, true, nil }
	full := errors.New("full")
	w.from.before = func(op, _ string) error {
		if op == "put" {
			return full
		}
		return nil
	}
	_, err := source.PutBack(w.Context(), w.from, name)
	files, globErr := filepath.Glob(filepath.Join(os.TempDir(), "*"))
	w.must(globErr)
	if !errors.Is(err, full) || len(files) != 1 || !strings.Contains(err.Error(), files[0]) || !strings.Contains(err.Error(), name) {
		w.Fatalf("the files are %q, the error is %v", files, err)
	}
	if got, err := os.ReadFile(files[0]); err != nil || !bytes.Equal(got, mended) {
		w.Errorf("the file has %q: %v", got, err)
	}
}

// The notes of when objects were copied are damaged or lost, and perhaps a pass has noted all
// again: the times of the mirror's list count.
func TestCopyBackWithoutNotes(t *testing.T) {
	damage := func(m *memory, name string) error {
		return os.WriteFile(filepath.Join(m.dir, name), []byte("x"), 0o600)
	}
	remove := func(m *memory, name string) error { return os.Remove(filepath.Join(m.dir, name)) }
	for name, test := range map[string]struct {
		lose func(m *memory, name string) error
		pass bool
	}{"damaged": {damage, false}, "lost": {remove, false}, "damaged, noted again": {damage, true}, "lost, noted again": {remove, true}} {
		w := newWorld(t)
		dated := map[string]bool{}
		pass := func() {
			t.Helper()
			_, err := Run(t.Context(), w.options())
			w.must(err)
			for object := range w.objects(w.to) {
				if !dated[object] {
					w.must(os.Chtimes(filepath.Join(w.to.dir, object), w.now, w.now))
				}
				dated[object] = true
			}
		}
		first := w.snapshot()
		pass()
		want, asOf := w.objects(w.from), w.now
		w.now = w.now.Add(time.Hour)
		w.removeFrom(first.record)
		w.snapshot()
		pass()
		for object, err := range w.to.List(t.Context(), store.SumsPrefix) {
			w.must(err)
			w.must(test.lose(w.to, object.Name))
		}
		w.now = w.now.Add(time.Hour)
		if test.pass {
			pass()
		}
		back := newMemory(t)
		s, err := CopyBack(t.Context(), BackOptions{From: w.to, To: back, AsOf: asOf})
		if err != nil || !maps.Equal(w.objects(back), want) {
			t.Errorf("%s: %q, want %q; %v", name, slices.Sorted(maps.Keys(w.objects(back))), slices.Sorted(maps.Keys(want)), err)
		}
		if reported := len(s.Problems) > 0; reported != (name == "damaged") {
			t.Errorf("%s: %+v", name, s.Problems)
		}
	}
}

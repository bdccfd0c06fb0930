package mirror

import (
	"bytes"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// Many passes leave few objects with notes.
func TestNotesAreMerged(t *testing.T) {
	w := newWorld(t)
	for range 70 {
		w.pack(backup.NewSnapshotID(), 10)
		w.run(w.options())
	}
	n := 0
	for _, err := range w.to.List(t.Context(), store.SumsPrefix) {
		w.must(err)
		n++
	}
	if n > 64 {
		t.Errorf("%d objects with notes", n)
	}
	w.from.gets = 0
	if s := w.run(w.options()); s.Adopted != 0 || s.Copied != 0 || w.from.gets != 1 {
		t.Errorf("%+v: notes were lost", s)
	}
}

// Damaged notes cost a comparison.
func TestDamagedNotes(t *testing.T) {
	w := newWorld(t)
	w.snapshot()
	w.run(w.options())
	for o, err := range w.to.List(t.Context(), store.SumsPrefix) {
		w.must(err)
		w.flip(w.to, o.Name, 100)
	}
	if s := w.run(w.options()); s.Copied != 0 || s.Adopted != 5 || len(s.Problems) != 1 {
		t.Errorf("%+v", s)
	}
	if s := w.run(w.options()); s.Adopted != 0 || len(s.Problems) != 0 {
		t.Errorf("the next pass: %+v", s)
	}
}

func TestSums(t *testing.T) {
	var lines []byte
	want := map[string]note{}
	for i := range 5 {
		name := store.PackName(backup.NewSnapshotID(), backup.NewPackID())
		n := note{sizeBytes: int64(i), sum: sum{byte(i)}, copied: 1, locked: int64(i)}
		want[name] = n
		lines = appendNote(lines, name, &n)
	}
	data := encodeSums(lines)
	got := map[string]note{}
	if err := parseSums(data, func(name string, n note) { got[name] = n }); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for i := range data {
		other := bytes.Clone(data)
		other[i] ^= 1
		if err := parseSums(other, func(string, note) { t.Error("a damaged note is believed") }); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("byte %d: %v", i, err)
		}
	}
	for _, line := range []string{
		"packs/x 1 00 1 0", "other/x 1 " + strings.Repeat("0", 64) + " 1 0", store.ConfigName + " -1 " + strings.Repeat("0", 64) + " 1 0",
		store.ConfigName + " 1 " + strings.Repeat("0", 64) + " 0 0", store.ConfigName + " 1 " + strings.Repeat("0", 64) + " 1",
		store.ConfigName + " 99999999999999 " + strings.Repeat("0", 64) + " 1 0",
	} {
		if err := parseSums(encodeSums([]byte(line+"\n")), func(string, note) {}); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func FuzzSums(f *testing.F) {
	f.Add([]byte(""))
	n := note{sizeBytes: 1, copied: 1}
	f.Add(appendNote(nil, store.ConfigName, &n))
	f.Fuzz(func(t *testing.T, lines []byte) {
		var again []byte
		if err := parseSums(lines, func(string, note) {}); err != nil && !errors.Is(err, backup.ErrCorrupt) {
			t.Error(err)
		}
		err := parseSums(encodeSums(lines), func(name string, n note) { again = appendNote(again, name, &n) })
		if err != nil {
			return
		}
		same := map[string]note{}
		if err := parseSums(encodeSums(again), func(name string, n note) { same[name] = n }); err != nil {
			t.Errorf("%q: %v", again, err)
		}
	})
}

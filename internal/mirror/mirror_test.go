package mirror

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

func TestRunCopiesOnce(t *testing.T) {
	w := newWorld(t)
	w.snapshot()
	w.signed(pack.KindCatalog, store.CatalogName(1))
	w.signed(pack.KindIndex, store.IndexName(1, 0))
	w.must(w.from.Store.Put(t.Context(), "packs/notes", []byte("of somebody else")))
	s := w.run(w.options())
	if s.Copied != 7 || s.Objects != 7 || len(s.Problems) > 0 || s.Repository != w.id {
		t.Errorf("%+v", s)
	}
	w.removeFrom("packs/notes")
	w.wantSame()
	w.to.puts, w.from.gets = nil, 0
	if s := w.run(w.options()); s.Copied != 0 || s.Reread != 0 {
		t.Errorf("the second pass: %+v", s)
	}
	if len(w.to.puts) != 0 || w.from.gets != 1 { // of the repository object
		t.Errorf("the second pass has put %q, and read %d objects", w.to.puts, w.from.gets)
	}
	c, err := Compare(t.Context(), Options{From: w.from, To: w.to, Reread: 1})
	w.must(err)
	if c.Differs() || c.Read != 7 {
		t.Errorf("%+v", c)
	}
}

// What refers to others is written after them.
func TestOrder(t *testing.T) {
	w := newWorld(t)
	w.snapshot()
	w.signed(pack.KindCatalog, store.CatalogName(1))
	w.signed(pack.KindIndex, store.IndexName(1, 0))
	w.run(w.options())
	last := -1
	for _, name := range w.to.puts {
		if strings.HasPrefix(name, store.MirrorPrefix) {
			continue
		}
		if kindOf(name) < last {
			t.Errorf("%s was put too late: %q", name, w.to.puts)
		}
		last = kindOf(name)
	}
}

var errKilled = errors.New("killed")

// A pass ends at each request in turn, in which the store may nevertheless have done it. The next
// one puts nothing again that is there.
func TestPassIsInterrupted(t *testing.T) {
	for _, applied := range []bool{false, true} {
		for n := 1; ; n++ {
			w := newWorld(t)
			w.snapshot()
			w.signed(pack.KindCatalog, store.CatalogName(1))
			count := 0
			w.to.before = func(op, name string) error {
				if op == "list" {
					return nil
				}
				if count++; count != n {
					return nil
				}
				if applied && op == "put" {
					data, err := w.from.Store.Get(context.Background(), name, maxObjectBytes)
					if err == nil {
						_ = w.to.Store.Put(context.Background(), name, data)
					}
				}
				return errKilled
			}
			o := w.options()
			o.Workers = 1
			_, err := Run(t.Context(), o)
			done := err == nil
			if !done && !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			w.to.before = nil
			before := w.objects(w.to)
			w.to.puts = nil
			s := w.run(o)
			for _, name := range w.to.puts {
				if _, was := before[name]; was {
					t.Errorf("request %d: %s was put again", n, name)
				}
			}
			if len(s.Problems) > 0 {
				t.Errorf("request %d: %+v", n, s)
			}
			w.wantSame()
			if done {
				break
			}
		}
	}
}

// A mirror of another repository is not touched, and neither is a directory with other objects.
func TestOtherRepository(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	w.snapshot()
	other.snapshot()
	w.run(w.options())
	w.to.puts = nil
	o := w.options()
	o.From = other.from
	if _, err := Run(t.Context(), o); !errors.Is(err, ErrOther) || !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("another repository: %v", err)
	}
	w.must(w.to.Store.Delete(t.Context(), store.ConfigName))
	if _, err := Run(t.Context(), w.options()); !errors.Is(err, ErrOther) {
		t.Errorf("no repository object: %v", err)
	}
	if len(w.to.puts) > 0 {
		t.Errorf("put %q", w.to.puts)
	}
	w.must(w.from.Store.Delete(t.Context(), store.ConfigName)) // the store is not mounted
	if _, err := Run(t.Context(), w.options()); !errors.Is(err, backup.ErrNoRepository) {
		t.Errorf("no store: %v", err)
	}
}

// Damaged objects are not copied, and do not replace sound ones. Sound ones replace damaged ones.
func TestDamage(t *testing.T) {
	const inStore, inMirror = true, false
	for _, c := range []struct {
		what    string
		side    bool
		at      int
		of      func(m *made) string
		copied  bool // before the damage
		reread  bool
		problem Side // "": none
		healed  bool
	}{
		{"pack header, not yet copied", inStore, 3, func(m *made) string { return m.packs[0] }, false, false, InStore, false},
		{"pack trailer, not yet copied", inStore, -9, func(m *made) string { return m.packs[0] }, false, false, InStore, false},
		{"record, not yet copied", inStore, 200, func(m *made) string { return m.record }, false, false, InStore, false},
		{"frame, copied", inStore, 1000, func(m *made) string { return m.packs[0] }, true, true, InStore, false},
		{"frame of the mirror", inMirror, 1000, func(m *made) string { return m.packs[0] }, true, true, "", true},
		{"segment of the mirror", inMirror, 250, func(m *made) string { return m.segment }, true, true, "", true},
		{"frame of the mirror, not read", inMirror, 1000, func(m *made) string { return m.packs[0] }, true, false, "", false},
	} {
		w := newWorld(t)
		m := w.snapshot()
		if c.copied {
			w.run(w.options())
		}
		sound := w.objects(w.from)[c.of(&m)]
		damage := map[bool]*memory{inStore: w.from, inMirror: w.to}[c.side]
		w.flip(damage, c.of(&m), c.at)
		compared, err := Compare(t.Context(), Options{From: w.from, To: w.to, Reread: 1})
		if c.copied {
			w.must(err)
			want := map[bool]Side{inStore: InStore, inMirror: InMirror}[c.side]
			if len(compared.Problems) != 1 || compared.Problems[0].Name != c.of(&m) || compared.Problems[0].Side != want {
				t.Errorf("%s: compared: %+v", c.what, compared.Problems)
			}
		}
		o := w.options()
		if c.reread {
			o.Reread = 1
		}
		s := w.run(o)
		got, there := w.objects(w.to)[c.of(&m)]
		switch {
		case c.problem == "" && len(s.Problems) > 0, c.problem != "" && (len(s.Problems) != 1 || s.Problems[0].Side != c.problem || s.Problems[0].Name != c.of(&m)):
			t.Errorf("%s: %+v", c.what, s.Problems)
		case c.healed && (s.Replaced != 1 || got != sound):
			t.Errorf("%s: it was not replaced", c.what)
		case c.side == inStore && c.copied && got != sound:
			t.Errorf("%s: the mirror has the damaged one", c.what)
		case !c.copied && there:
			t.Errorf("%s: it was copied", c.what)
		}
	}
}

// A pack that was damaged when it was copied, and that the store has whole again, is not known from
// one that is damaged in the store. Replace says which is right, also if the mirror has lost it.
func TestReplace(t *testing.T) {
	for _, lost := range []bool{false, true} {
		w := newWorld(t)
		m := w.snapshot()
		sound := w.objects(w.from)[m.packs[0]]
		w.flip(w.from, m.packs[0], 1000)
		w.run(w.options())
		w.flip(w.from, m.packs[0], 1000)
		if w.objects(w.from)[m.packs[0]] != sound {
			t.Fatal("it is not put back")
		}
		if lost {
			w.must(w.to.Store.Delete(t.Context(), m.packs[0]))
		}
		o := w.options()
		o.Reread = 1
		if s := w.run(o); len(s.Problems) != 1 || !s.Problems[0].Changed || s.Problems[0].Side != InStore {
			t.Errorf("%+v", s.Problems)
		}
		o.Replace = map[string]bool{m.packs[0]: true}
		if s := w.run(o); len(s.Problems) > 0 || s.Copied != 1 || w.objects(w.to)[m.packs[0]] != sound {
			t.Errorf("lost %v: %+v", lost, s)
		}
		if c, err := Compare(t.Context(), Options{From: w.from, To: w.to, Reread: 1}); err != nil || c.Differs() {
			t.Errorf("lost %v: %+v, %v", lost, c, err)
		}
		if s := w.run(o); s.Copied > 0 { // it is the same now
			t.Errorf("%+v", s)
		}
	}
}

// An object that the store has again is not deleted.
func TestObjectComesBack(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	w.snapshot()
	o := w.options()
	o.KeepDeleted = time.Hour
	w.run(o)
	data, err := w.from.Store.Get(t.Context(), m.packs[0], maxObjectBytes)
	w.must(err)
	w.removeFrom(m.packs[0])
	w.run(o)
	w.must(w.from.Store.Put(t.Context(), m.packs[0], data))
	w.now = w.now.Add(2 * time.Hour)
	if s := w.run(o); s.Deleted != 0 || s.Retained != 0 {
		t.Errorf("%+v", s)
	}
	w.removeFrom(m.packs[0])
	if s := w.run(o); s.Gone != 1 || s.Deleted != 0 {
		t.Errorf("its time begins anew: %+v", s)
	}
}

// The pruner moves a chunk into another pack while the store is listed and read.
func TestPackMovesMeanwhile(t *testing.T) {
	for _, when := range []string{"list packs/", "get"} {
		w := newWorld(t)
		m := w.snapshot()
		moved := ""
		w.from.before = func(op, name string) error {
			if moved == "" && (op+" "+name == when || op == when && name == m.packs[0]) {
				w.from.mu.Unlock()
				moved = w.pack(m.id, 5000)
				w.removeFrom(m.packs[0])
				w.from.mu.Lock()
			}
			return nil
		}
		w.run(w.options())
		if moved == "" {
			t.Fatal("nothing was moved")
		}
		got := w.objects(w.to)
		if _, there := got[m.record]; there && got[moved] == "" {
			t.Errorf("%s: the mirror has the record, and not the pack", when)
		}
		w.run(w.options())
		w.wantSame()
	}
}

// A purge amends a record while a pass runs: the old record is not copied without its segment.
func TestRecordIsAmendedMeanwhile(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	done := false
	w.from.before = func(op, name string) error {
		if !done && op == "list" && name == store.SegmentsPrefix {
			done = true
			w.signed(pack.KindSegment, store.SegmentName(m.id, backup.NewPackID(), 0))
			w.signed(pack.KindCommit, store.AmendedName(m.id, 1))
			w.removeFrom(m.segment)
		}
		return nil
	}
	if s := w.run(w.options()); s.Behind == 0 {
		t.Errorf("%+v", s)
	}
	if _, there := w.objects(w.to)[m.record]; there {
		t.Error("the mirror has the old record, without its segment")
	}
	w.run(w.options())
	w.wantSame()
}

func FuzzProve(f *testing.F) {
	f.Add("packs/"+fmt.Sprintf("%032x/%032x", 1, 2), []byte("bctlpack"))
	f.Add(store.ConfigName, []byte("bctl-repository v1\n"))
	f.Add(store.RecipientsName(1), []byte("bctl-recipients v1\n"))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		p := &Prover{}
		if err := p.Prove(name, data); err == nil && len(data) > 0 {
			t.Errorf("%q is proven by no key", name)
		}
	})
}

// What the doctor has put into the store belongs to no backup, and is not copied.
func TestTestObjectsAreNotCopied(t *testing.T) {
	w := newWorld(t)
	w.snapshot()
	for _, name := range []string{store.PackName(backup.SnapshotID{}, backup.PackID{}), "doctor/1"} {
		w.must(w.from.Put(t.Context(), name, []byte("a test")))
	}
	for range 2 {
		if s, err := Run(t.Context(), w.options()); err != nil || len(s.Problems) > 0 {
			t.Errorf("%+v, %v", s.Problems, err)
		}
	}
	if n := len(w.objects(w.from)) - len(w.objects(w.to)); n != 2 {
		t.Errorf("the mirror lacks %d objects, want the two of the doctor", n)
	}
}

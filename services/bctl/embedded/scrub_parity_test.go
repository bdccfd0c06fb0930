package embedded_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/scrub"
	"github.com/bctl/bctl/internal/store"
)

// What a scrub has found, a search for what parity can put back finds too, without reading all.
func TestParityOfWhatScrubsHaveNoted(t *testing.T) {
	w := newParityWorld(t, 6)
	find := func() []string {
		t.Helper()
		names, err := prune.FindInGroups(t.Context(), prune.Options{Index: w.index, Store: w.Store, Holder: "tester"}, false)
		w.must(err)
		slices.Sort(names)
		return names
	}
	damaged := []string{w.groups()[0].Members[0].Name(), w.groups()[0].Name(1)}
	slices.Sort(damaged)
	for _, name := range damaged {
		w.flip(name, func(size int) int { return size / 2 })
	}
	if found := find(); len(found) != 0 {
		t.Fatalf("before a scrub: %q", found)
	}
	_, _, err := w.scrub(w.Store, true, index.ScrubCost{})
	w.must(err)
	if found := find(); !slices.Equal(found, damaged) {
		t.Errorf("after a scrub: %q, want %q", found, damaged)
	}
}

// A scrub finds each damaged parity object, also if the limits end it in the middle of a group. A
// check of the level objects then names it, and a repair puts it back.
func TestScrubOfParity(t *testing.T) {
	w := newParityWorld(t, 6)
	want := w.objects()
	names := w.names(store.ParityPrefix)
	s, found, err := w.scrub(w.Store, true, index.ScrubCost{})
	w.must(err)
	if state := w.state(); s.Parity != int64(len(names)) || s.DamagedParity != 0 || len(found) != 0 || state.Parity.Unproven != 0 || state.Today != s.Read {
		t.Errorf("%+v, %+v, %+v", s, found, state)
	}
	if s, _, err = w.scrub(w.Store, false, index.ScrubCost{}); err != nil || s.Parity != 0 {
		t.Errorf("what was proven is proven again: %+v, %v", s, err)
	}

	var damaged []string
	for n, name := range names {
		switch n % 3 {
		case 0: // in the body, where a check of the level objects does not look
			w.flip(name, func(size int) int { return size - 7 })
			damaged = append(damaged, name)
		case 1:
			w.must(os.Remove(w.path(name)))
			damaged = append(damaged, name)
		}
	}
	packs := w.state().Packs
	for began := w.state().Now; w.state().Parity.Oldest.Before(began); {
		// All packs are read again each time, and then one parity object or two.
		s, more, err := w.scrub(w.Store, true, index.ScrubCost{Requests: packs + 4})
		w.must(err)
		found = append(found, more...)
		if s.Read.Requests > packs+4 || s.Parity == 0 && s.Limited {
			t.Fatalf("%+v", s)
		}
	}
	objects := func(findings []*check.Finding) (names []string) {
		for _, f := range findings {
			if f.Kind != check.Parity {
				t.Errorf("%+v", f)
			}
			names = append(names, f.Object)
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	if got := objects(found); !slices.Equal(got, damaged) {
		t.Errorf("%q are damaged, and %q are found", damaged, got)
	}
	if state := w.state(); state.Parity.Damaged != int64(len(damaged)) || state.DamagedPacks+state.Journal.Damaged != 0 {
		t.Errorf("%+v", state)
	}
	report, err := check.Run(t.Context(), check.Options{Index: w.index, Store: w.Store, Repository: &w.Repository, Level: check.Objects})
	w.must(err)
	if got := objects(report.Findings); !slices.Equal(got, damaged) {
		t.Errorf("a check finds %q", got)
	}
	back := w.repair(&report)
	w.wantObjects("after the repair", want)
	if back.FromParity != len(damaged) {
		t.Errorf("%+v", back)
	}
	_, _, err = w.scrub(w.Store, true, index.ScrubCost{})
	w.must(err)
	state := w.state()
	if state.Parity.Damaged != 0 {
		t.Errorf("after the repair: %+v", state)
	}
	if i := slices.IndexFunc(state.PutBack, func(p index.PutBackTotal) bool { return p.Source == index.FromParity }); i < 0 || state.PutBack[i].Objects != int64(len(damaged)) ||
		state.PutBack[i].Bytes != back.FromParityBytes {
		t.Errorf("%+v, want %+v", state.PutBack, back)
	}
}

// notNoting is an index in which proofs of parity cannot be noted.
type notNoting struct{ scrub.Index }

var errNotNoted = errors.New("not noted")

func (notNoting) NoteParity(context.Context, index.Term, *index.ParityToProve, index.ScrubCost) error {
	return errNotNoted
}

// A scrub whose proofs are not noted fails, also if the limits end it in the middle of a group.
func TestScrubOfParityThatIsNotNoted(t *testing.T) {
	w := newParityWorld(t, 6)
	packs := w.state().Packs
	for _, most := range []index.ScrubCost{{}, {Requests: packs + 1}} {
		_, err := scrub.Run(t.Context(), scrub.Options{
			Index: notNoting{w.index}, Store: w.Store, Repository: w.Repository.ID, Holder: "tester", All: true, Most: most,
		})
		if !errors.Is(err, errNotNoted) {
			t.Errorf("with a limit of %+v: %v", most, err)
		}
	}
}

package embedded_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/scrub"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/scrubber/prove"
)

// A countedStore counts the bytes that are read, and fails from a read on.
type countedStore struct {
	store.Store
	reads, bytes atomic.Int64
	failAt       int64 // 0: never
}

func (s *countedStore) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	if reads := s.reads.Add(1); s.failAt > 0 && reads >= s.failAt {
		return dst, backup.ErrUnavailable
	}
	s.bytes.Add(length)
	return s.Store.GetRange(ctx, dst, name, offset, length)
}

func (w *damageWorld) scrub(s store.Store, all bool, most index.ScrubCost) (scrub.Summary, []*check.Finding, error) {
	var found []*check.Finding
	summary, err := scrub.Run(w.Context(), scrub.Options{
		Index: w.index, Store: s, Repository: w.Repository.ID, Holder: backup.NewPackID().String(), All: all, Most: most,
		Damaged: func(f *check.Finding) { found = append(found, f) },
	})
	return summary, found, err
}

func (w *damageWorld) state() index.Scrub {
	w.Helper()
	s, err := w.index.Scrub(w.Context())
	w.must(err)
	return s
}

// The scrubber reads each pack once in its time, however often it looks, and what is damaged again
// after a day.
func TestScrubberProvesInTime(t *testing.T) {
	w := newDamageWorld(t)
	counted := &countedStore{Store: w.Store}
	p := prove.New(w.index, counted, prove.Options{Worker: "tester", Repository: w.Repository.ID})
	w.sql("UPDATE packs SET noted = noted - 29 * 86400000000") // days
	for range 3 {
		w.must(p.Look(t.Context()))
	}
	state := w.state()
	if state.UnprovenPacks != 0 || state.LatePacks != 0 || counted.reads.Load() != state.Packs || counted.bytes.Load() != state.Bytes || state.Today != (index.ScrubCost{Requests: state.Packs, Bytes: state.Bytes}) {
		t.Fatalf("%d reads of %d bytes: %+v", counted.reads.Load(), counted.bytes.Load(), state)
	}
	name := w.names(store.PacksPrefix)[0]
	w.flip(name, func(size int) int { return size / 2 })
	w.sql("UPDATE packs SET noted = noted - 31 * 86400000000, proven = proven - 31 * 86400000000")
	if late := w.state().LatePacks; late != state.Packs {
		t.Errorf("%d packs are late, want %d", late, state.Packs)
	}
	for range 3 {
		w.must(p.Look(t.Context()))
	}
	if state = w.state(); state.DamagedPacks != 1 || state.LatePacks != 0 || counted.reads.Load() != 2*state.Packs {
		t.Errorf("%d reads: %+v", counted.reads.Load(), state)
	}
	w.flip(name, func(size int) int { return size / 2 }) // somebody has brought it back
	w.must(p.Look(t.Context()))
	w.sql("UPDATE packs SET damaged = damaged - 90000000000 WHERE damaged > 0")
	w.must(p.Look(t.Context()))
	if state = w.state(); state.DamagedPacks != 0 || counted.reads.Load() != 2*state.Packs+1 {
		t.Errorf("%d reads: %+v", counted.reads.Load(), state)
	}
}

// A scrub that is limited, or loses the store, keeps what it has proven. The next one continues.
func TestScrubContinues(t *testing.T) {
	w := newDamageWorld(t)
	packs := w.state().Packs
	if packs < 3 {
		t.Fatalf("%d packs", packs)
	}
	s, _, err := w.scrub(w.Store, true, index.ScrubCost{Requests: 1})
	if err != nil || s.Proven != 1 || !s.Limited || w.state().UnprovenPacks != packs-1 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, _, err := w.scrub(&countedStore{Store: w.Store, failAt: 1}, true, index.ScrubCost{}); !errors.Is(err, backup.ErrUnavailable) || w.state().DamagedPacks != 0 {
		t.Errorf("a store that does not answer: %v, %+v", err, w.state())
	}
	term, ok, err := w.index.Lead(t.Context(), scrub.Role, "another", time.Minute)
	if err != nil || !ok {
		t.Fatal(err)
	}
	if _, _, err := w.scrub(w.Store, true, index.ScrubCost{}); !errors.Is(err, scrub.ErrBusy) {
		t.Errorf("beside another scrub: %v", err)
	}
	w.must(w.index.Resign(t.Context(), term))
	if s, _, err = w.scrub(w.Store, true, index.ScrubCost{}); err != nil || s.Limited || w.state().UnprovenPacks != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// Pruning copies no frame that is damaged. Copies keep the checksums of what was sealed, and are
// not proven before they were read.
func TestScrubAfterCompaction(t *testing.T) {
	w := newDamageWorld(t)
	w.must(w.index.SetBrake(t.Context(), index.Brake{Snapshots: 100, MinSnapshots: 1 << 30, Bytes: 100, MinBytes: 1 << 60, Operators: 1}, "tester"))
	name, offset := w.frameOf(w.entry("a/1").Content.Refs[0].Chunk)
	other := make([]byte, 9<<20)
	_, _ = rand.NewChaCha8([32]byte{8}).Read(other)
	w.must(os.WriteFile(filepath.Join(w.tree, "large"), other, 0o600))
	_, err := w.backup(t.Context())
	w.must(err)
	_, _, err = w.scrub(w.Store, true, index.ScrubCost{})
	w.must(err)
	w.flip(name, func(int) int { return int(offset) })
	for i := range w.snapshots {
		w.must(w.index.Forget(t.Context(), w.snapshots[i].ID, "tester", ""))
	}
	result, err := w.prune(0)
	w.must(err)
	if result.Thinned != 0 || !slices.Contains(w.names(store.PacksPrefix), name) {
		t.Errorf("a damaged frame was copied: %+v", result)
	}
	w.flip(name, func(int) int { return int(offset) })
	if result, err = w.prune(0); err != nil || result.Thinned == 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	state := w.state()
	if state.UnprovenPacks != int64(result.Thinned) || state.UnknownPacks+state.AdoptedPacks != 0 {
		t.Errorf("%d copies: %+v", result.Thinned, state)
	}
	s, found, err := w.scrub(w.Store, true, index.ScrubCost{})
	if err != nil || len(found) > 0 || s.Adopted != 0 || s.Proven != state.Packs {
		t.Errorf("%+v, %v, %v", s, found, err)
	}
}

// What a scrub has noted is exact in a check without a key: the frames that are damaged, and their
// files.
func TestCheckOfWhatScrubsHaveNoted(t *testing.T) {
	w := newDamageWorld(t)
	name, offset := w.frameOf(w.entry("b/1").Content.Refs[0].Chunk)
	w.flip(name, func(int) int { return int(offset) })
	look := func() check.Report {
		r, err := check.Run(t.Context(), check.Options{Index: w.index, Store: w.Store, Repository: &w.Repository, Level: check.Objects})
		w.must(err)
		return r
	}
	if r := look(); len(r.Findings) > 0 {
		t.Fatalf("objects without a scrub: %+v", r.Findings[0])
	}
	s, found, err := w.scrub(w.Store, true, index.ScrubCost{})
	if err != nil || s.Damaged != 1 || len(found) != 1 || found[0].Object != name {
		t.Fatalf("%+v, %v, %v", s, found, err)
	}
	r := look()
	if len(r.Findings) != 1 {
		t.Fatalf("%d findings", len(r.Findings))
	}
	f := r.Findings[0]
	if f.Object != name || f.Damage.Whole || len(f.Damage.Frames) != 1 || f.Files == 0 ||
		slices.ContainsFunc(f.Affected, func(a check.Affected) bool { return !strings.HasPrefix(a.Path, "b/") }) {
		t.Errorf("%+v", f)
	}
	w.flip(name, func(int) int { return int(offset) })
	if r := look(); len(r.Findings) > 0 {
		t.Errorf("after it was brought back: %+v", r.Findings[0])
	}
}

// Without a key, a scrub finds a flipped bit in each object of the journal. It goes on where the
// limits of the last one have ended.
func TestScrubOfTheJournal(t *testing.T) {
	w := newDamageWorld(t)
	prove := func(most index.ScrubCost) (scrub.Summary, []string) {
		t.Helper()
		var found []string
		s, err := scrub.Run(t.Context(), scrub.Options{
			Index: w.index, Store: w.Store, Repository: w.Repository.ID, Holder: backup.NewPackID().String(), All: true, Most: most,
			Journal: &scrub.Journal{Store: w.Store, Signer: seal.Signer(w.Repository.Signer)},
			Damaged: func(f *check.Finding) { found = append(found, f.Object) },
		})
		w.must(err)
		return s, found
	}
	var names []string
	for _, prefix := range []string{store.SegmentsPrefix, store.CommitsPrefix, store.CatalogPrefix, store.IndexPrefix} {
		n := len(names)
		for o, err := range w.Store.List(t.Context(), prefix) {
			w.must(err)
			names = append(names, o.Name)
		}
		if len(names) == n && prefix != store.IndexPrefix {
			t.Fatalf("there is nothing below %s", prefix)
		}
	}
	w.must(w.Store.Put(t.Context(), store.SegmentName(backup.SnapshotID{}, backup.NewPackID(), 0), []byte("a committer's test")))
	s, found := prove(index.ScrubCost{})
	if state := w.state(); s.Journal != int64(len(names)) || s.DamagedJournal != 0 || len(found) != 0 || state.Journal.Unproven != 0 || state.Today != s.Read {
		t.Errorf("%+v, %q, %+v", s, found, state)
	}
	for _, name := range names {
		w.flip(name, func(size int) int { return size / 2 })
	}
	for began := w.state().Now; w.state().Journal.Oldest.Before(began); {
		s, more := prove(index.ScrubCost{Requests: 60})
		found = append(found, more...)
		if s.Read.Requests > 60 || s.Journal == 0 && !s.Limited {
			t.Fatalf("%+v", s)
		}
	}
	slices.Sort(names)
	slices.Sort(found)
	found = slices.Compact(found) // the last run began anew, and may have ended within a slice
	prove(index.ScrubCost{})
	if state := w.state(); !slices.Equal(names, found) || state.Journal.Damaged != int64(len(names)) || state.DamagedPacks != 0 {
		t.Errorf("%q are damaged, and %q are found: %+v", names, found, state)
	}
}

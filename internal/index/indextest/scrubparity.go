package indextest

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// What was never proven does not count as proven when the index was rebuilt. New packs do count:
// it is known when they were stored.
func testUndated(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, _ := f.batchesOf("a")
	known, unknown, late := packOf(s, 1, 2), packOf(s, 3), packOf(s, 4)
	known.Sums, late.Sums = bytes.Repeat([]byte{7}, 16), bytes.Repeat([]byte{7}, 16)
	f.accept(index.Result{Pack: known})
	if state := f.scrubbed(); state.UndatedPacks != 0 || state.Oldest.IsZero() || state.Journal.Undated != 0 || state.Journal.Oldest.IsZero() {
		t.Errorf("a new pack: %+v", state)
	}
	f.accept(index.Result{Pack: unknown}) // of a former version, without checksums
	if state := f.scrubbed(); state.UndatedPacks != 1 || state.UndatedBytes != 100 || state.Oldest.IsZero() {
		t.Errorf("a pack without checksums: %+v", state)
	}
	term := f.lead("scrubber", "first", time.Minute, true)
	rows := f.packRows(known, unknown)
	f.must(f.x.NoteProofs(f.ctx, term, []index.Proof{{Row: rows[0]}}, index.ScrubCost{}))
	f.must(f.x.ForgetProofs(f.ctx))
	state := f.scrubbed()
	if state.UndatedPacks != 2 || !state.Oldest.IsZero() || state.LatePacks != 0 || state.Journal.Undated != index.JournalSlices || !state.Journal.Oldest.IsZero() {
		t.Errorf("after a rebuild: %+v", state)
	}
	<-time.After(2 * time.Millisecond) // SQLite notes times in milliseconds
	f.accept(index.Result{Pack: late})
	// The first scrub of what has no checksums is no proof.
	f.must(f.x.NoteProofs(f.ctx, term, []index.Proof{{Row: rows[0]}, {Row: rows[1], Adopt: bytes.Repeat([]byte{9}, 16)}}, index.ScrubCost{}))
	if state = f.scrubbed(); state.UndatedPacks != 1 || state.Oldest.IsZero() {
		t.Errorf("after the first scrub: %+v", state)
	}
	f.must(f.x.NoteProofs(f.ctx, term, []index.Proof{{Row: rows[1]}}, index.ScrubCost{}))
	slice := index.JournalSlice{Slice: 3, Begun: state.Now, Done: true}
	f.must(f.x.NoteJournal(f.ctx, term, slice, index.ScrubCost{}))
	if state = f.scrubbed(); state.UndatedPacks != 0 || state.Journal.Undated != index.JournalSlices-1 || state.Journal.Oldest.IsZero() {
		t.Errorf("after all packs and a slice were proven: %+v", state)
	}
}

// Parity groups are due like slices of the journal, and so are those of a rebuilt index, which are
// undated until then.
func testScrubParity(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	pruner, scrubber := f.lead("pruner", "first", time.Minute, true), f.lead("scrubber", "first", time.Minute, true)
	groups := make([]index.ParityGroup, 3)
	for i := range groups {
		groups[i] = index.ParityGroup{ID: backup.NewPackID(), State: index.ParityValid, Description: []byte{byte(i)}, Bytes: 100}
		f.must(f.x.PlanParity(f.ctx, pruner, groups[i].ID))
	}
	if state := f.scrubbed(); state.Parity.Parts != 0 {
		t.Errorf("planned groups are proven: %+v", state)
	}
	f.must(f.x.ReplaceParity(f.ctx, pruner, groups, nil))
	due := func(before time.Time) []index.ParityToProve {
		t.Helper()
		list, err := f.x.ParityToProve(f.ctx, before)
		f.must(err)
		for i := range list {
			list[i].Description = slices.Clone(list[i].Description)
		}
		return list
	}
	age := func(by time.Duration) {
		t.Helper()
		_, err := f.db.SQL.ExecContext(f.ctx, fmt.Sprintf("UPDATE parity_groups SET noted = noted - %[1]d, proven = CASE WHEN proven > 0 THEN proven - %[1]d ELSE 0 END", by.Microseconds()))
		f.must(err)
	}
	state := f.scrubbed()
	if p := state.Parity; p.Parts != 3 || p.Unproven != 3 || p.Undated+p.Late+p.Damaged != 0 || state.Now.Sub(p.Oldest) > time.Hour || state.ParityBytes != 300 {
		t.Errorf("%+v", state)
	}
	all := due(f.scrubbed().Now)
	if len(all) != 3 {
		t.Fatalf("%+v", all)
	}
	half := all[0]
	half.Begun, half.Reached, half.Damaged, half.Damage, half.Suspect = state.Now.Truncate(time.Microsecond), 1, 1, "parity/1: it is missing", true
	stale := scrubber
	stale.Epoch--
	f.wants(f.x.NoteParity(f.ctx, stale, &half, index.ScrubCost{}), index.ErrNotLeading)
	f.must(f.x.NoteParity(f.ctx, scrubber, &half, index.ScrubCost{Requests: 2, Bytes: 9}))
	if got := due(time.Time{}); len(got) == 0 || got[0].ID != half.ID || got[0].Reached != 1 || !got[0].Begun.Equal(half.Begun) || got[0].Damage != half.Damage || !got[0].Suspect {
		t.Errorf("a proof in progress: %+v, want %+v", got, half)
	}
	if state = f.scrubbed(); state.Parity.Damaged != 1 || state.Parity.Damage != half.Damage || state.Today.Bytes != 9 {
		t.Errorf("%+v", state)
	}
	for g, err := range f.x.ParityGroups(f.ctx) {
		f.must(err)
		if g.Suspect != (g.ID == half.ID) {
			t.Errorf("%+v", g)
		}
	}
	for _, p := range all {
		p.Begun, p.Done = f.scrubbed().Now, true
		f.must(f.x.NoteParity(f.ctx, scrubber, &p, index.ScrubCost{}))
	}
	if state = f.scrubbed(); state.Parity.Unproven+state.Parity.Damaged != 0 || len(due(time.Time{})) != 0 {
		t.Errorf("when all is proven: %+v", state)
	}
	age(31 * 24 * time.Hour)
	if state = f.scrubbed(); state.Parity.Late != 3 || len(due(time.Time{})) != 3 {
		t.Errorf("after 31 days: %+v", state)
	}
	f.must(f.x.ForgetProofs(f.ctx))
	if state = f.scrubbed(); state.Parity.Undated != 3 || !state.Parity.Oldest.IsZero() || state.Parity.Late != 0 {
		t.Errorf("after catching up: %+v", state)
	}
	f.must(f.x.RecoverParity(f.ctx, groups[:2]))
	if state = f.scrubbed(); state.Parity.Undated != 2 || !state.Parity.Oldest.IsZero() || state.Parity.Late != 0 {
		t.Errorf("after a rebuild: %+v", state)
	}
	age(31 * 24 * time.Hour)
	if len(due(time.Time{})) != 2 {
		t.Error("groups of a rebuild are not due in time")
	}

	f.must(f.x.NotePutBack(f.ctx, index.FromParity, 3, 30))
	f.must(f.x.NotePutBack(f.ctx, index.FromParity, 1, 10))
	f.must(f.x.NotePutBack(f.ctx, index.FromMirror, 1, 5))
	back := f.scrubbed().PutBack
	for i := range back {
		if time.Since(back[i].Last) > time.Hour {
			t.Errorf("%+v", back[i])
		}
		back[i].Last = time.Time{}
	}
	if !slices.Equal(back, []index.PutBackTotal{{Source: index.FromMirror, Objects: 1, Bytes: 5}, {Source: index.FromParity, Objects: 4, Bytes: 40}}) {
		t.Errorf("%+v", back)
	}
}

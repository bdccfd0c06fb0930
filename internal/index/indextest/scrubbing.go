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

// toProve returns the rows of the packs that are to be proven.
func (f *fixture) toProve(before time.Time) (rows []int64) {
	f.Helper()
	packs, err := f.x.ToProve(f.ctx, before, 100)
	f.must(err)
	for i := range packs {
		rows = append(rows, packs[i].Row)
	}
	return rows
}

func (f *fixture) scrubbed() index.Scrub {
	f.Helper()
	s, err := f.x.Scrub(f.ctx)
	f.must(err)
	return s
}

// age moves all times of a pack into the past.
func (f *fixture) age(row int64, by time.Duration) {
	f.Helper()
	for _, column := range []string{"noted", "proven", "damaged"} {
		_, err := f.db.SQL.ExecContext(f.ctx, fmt.Sprintf("UPDATE packs SET %[1]s = %[1]s - %[2]d WHERE id = %[3]d AND %[1]s > 0", column, by.Microseconds(), row))
		f.must(err)
	}
}

// A pack is noted with its checksums, proven, found to be damaged, and proven again. Without
// checksums, those of the first scrub are adopted, which is no proof.
func testScrub(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, _ := f.batchesOf("a")
	sound, older := packOf(s, 1, 2, 3, 4), packOf(s, 5)
	sound.Sums = bytes.Repeat([]byte{7}, 24)
	f.accept(index.Result{Pack: sound})
	f.accept(index.Result{Pack: older})
	rows := f.packRows(sound, older)
	state := f.scrubbed()
	if state.Packs != 2 || state.Bytes != 500 || state.UnprovenPacks != 2 || state.UnknownPacks != 1 || state.AdoptedPacks+state.DamagedPacks+state.LatePacks != 0 ||
		state.Within != 30*24*time.Hour || state.Oldest.IsZero() || state.Now.Sub(state.Oldest) > time.Hour {
		t.Fatalf("%+v", state)
	}
	before := time.Now().Add(time.Hour)
	packs, err := f.x.ToProve(f.ctx, before, 1)
	f.must(err)
	if len(packs) != 1 || packs[0].Pack != sound.Pack || !bytes.Equal(packs[0].Sums, sound.Sums) || packs[0].Adopted || !slices.Equal(packs[0].FrameBytes, sound.FrameBytes) {
		t.Fatalf("%+v", packs)
	}

	packs, err = f.x.PacksToProve(f.ctx, []int64{rows[1], 1 << 40, rows[0]})
	f.must(err)
	if len(packs) != 2 || packs[0].Row != rows[0] || !bytes.Equal(packs[0].Sums, sound.Sums) || packs[1].Row != rows[1] {
		t.Errorf("%+v", packs)
	}

	term := f.lead("scrubber", "first", time.Minute, true)
	stale := term
	stale.Epoch--
	read := index.ScrubCost{Requests: 2, Bytes: 500}
	f.wants(f.x.NoteProofs(f.ctx, stale, nil, read), index.ErrNotLeading)
	adopted := bytes.Repeat([]byte{9}, 16)
	f.must(f.x.NoteProofs(f.ctx, term, []index.Proof{{Row: rows[1], Adopt: adopted}, {Row: rows[0]}}, read))
	state = f.scrubbed()
	if state.UnprovenPacks != 1 || state.UnprovenBytes != 100 || state.UnknownPacks != 0 || state.AdoptedPacks != 1 || state.Today != read {
		t.Errorf("%+v", state)
	}
	for frames, err := range f.x.Frames(f.ctx) {
		f.must(err)
		if frames.Row == rows[1] && (!frames.Adopted || !bytes.Equal(frames.Sums, adopted)) {
			t.Errorf("%+v", frames)
		}
	}

	f.must(f.x.NoteProofs(f.ctx, term, []index.Proof{{Row: rows[0], Damage: "a frame is\x00 damaged"}, {Row: 1 << 40}}, read))
	state = f.scrubbed()
	damaged, err := f.x.DamagedPacks(f.ctx)
	f.must(err)
	if state.DamagedPacks != 1 || state.DamagedBytes != 400 || state.Today.Requests != 4 || len(damaged) != 1 || damaged[0].Row != rows[0] || damaged[0].Damage != "a frame is\ufffd damaged" {
		t.Errorf("%+v, %+v", state, damaged)
	}
	f.must(f.x.NoteProofs(f.ctx, term, []index.Proof{{Row: rows[0]}}, index.ScrubCost{}))
	if state = f.scrubbed(); state.DamagedPacks != 0 || state.UnprovenPacks != 1 {
		t.Errorf("%+v", state)
	}
	// Only what was adopted is forgotten.
	f.must(f.x.NoteProofs(f.ctx, term, []index.Proof{{Row: rows[1], Damage: "it is not as it was read"}}, index.ScrubCost{}))
	f.must(f.x.ForgetAdopted(f.ctx, rows))
	if state = f.scrubbed(); state.DamagedPacks != 0 || state.AdoptedPacks != 0 || state.UnknownPacks != 1 {
		t.Errorf("%+v", state)
	}
	f.must(f.x.NoteProofs(f.ctx, term, []index.Proof{{Row: rows[1], Adopt: adopted}}, index.ScrubCost{}))
	f.must(f.x.Condemn(f.ctx, f.lead("pruner", "first", time.Minute, true), rows[:1]))
	f.must(f.x.NoteProofs(f.ctx, term, []index.Proof{{Row: rows[0], Damage: "it is missing"}}, index.ScrubCost{}))
	if state = f.scrubbed(); state.Packs != 1 || state.DamagedPacks != 0 {
		t.Errorf("a pack that is being deleted is damaged: %+v", state)
	}
	if got := f.toProve(before); !slices.Equal(got, rows[1:]) {
		t.Errorf("to prove: %d, want %d", got, rows[1:])
	}
	packs, err = f.x.PacksToProve(f.ctx, rows[:1])
	f.must(err)
	if len(packs) > 0 {
		t.Errorf("a pack that is being deleted is to be proven: %+v", packs)
	}
}

// Packs that were stored at once are due one by one, and each of them in time. A damaged one is due
// after a day. The limit of a day ends with the day.
func testScrubDue(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s, _ := f.batchesOf("a")
	packs := make([]*backup.PackStored, 40)
	for i := range packs {
		packs[i] = packOf(s, i)
		f.accept(index.Result{Pack: packs[i]})
	}
	rows := f.packRows(packs...)
	const within = 1000 * time.Hour
	wrong := index.ScrubSettings{Within: time.Minute}
	f.wants(f.x.SetScrub(f.ctx, wrong, "me"), backup.ErrInvalid)
	f.must(f.x.SetScrub(f.ctx, index.ScrubSettings{Within: within, PerDay: index.ScrubCost{Requests: 10, Bytes: 1 << 40}}, "me"))
	term := f.lead("scrubber", "first", time.Minute, true)
	wantDue := func(when string, least, most int) []int64 {
		t.Helper()
		due := f.toProve(time.Time{})
		if len(due) < least || len(due) > most {
			t.Errorf("%s: %d packs are due, want %d to %d", when, len(due), least, most)
		}
		return due
	}
	ageAll := func(by time.Duration) {
		for _, row := range rows {
			f.age(row, by)
		}
	}
	wantDue("at first", 0, 1)
	ageAll(within / 2)
	wantDue("after half of the time", 16, 26)
	ageAll(within * 9 / 20)
	proofs := make([]index.Proof, 0, len(rows))
	for _, row := range wantDue("before the time is over", 40, 40) {
		proofs = append(proofs, index.Proof{Row: row})
	}
	f.must(f.x.NoteProofs(f.ctx, term, proofs, index.ScrubCost{Requests: 7, Bytes: 5}))
	wantDue("when all are proven", 0, 0)
	ageAll(within * 69 / 100)
	wantDue("a proof is good for two thirds", 0, 0)
	ageAll(within * 13 / 100)
	wantDue("in the last third", 12, 28)
	f.must(f.x.NoteProofs(f.ctx, term, []index.Proof{{Row: rows[3], Damage: "x"}}, index.ScrubCost{}))
	f.age(rows[3], 23*time.Hour)
	if slices.Contains(f.toProve(time.Time{}), rows[3]) {
		t.Error("a damaged pack is due at once")
	}
	f.age(rows[3], 2*time.Hour)
	if !slices.Contains(f.toProve(time.Time{}), rows[3]) {
		t.Error("a damaged pack is not due after a day")
	}
	ageAll(within / 4)
	state := f.scrubbed()
	if state.LatePacks != 39 || state.LateBytes != 3900 {
		t.Errorf("%+v", state)
	}
	allows := func(requests, bytes int64) bool {
		s := f.scrubbed()
		return s.Allows(index.ScrubCost{Requests: requests, Bytes: bytes})
	}
	if !allows(3, 1<<40-5) || allows(4, 0) || allows(0, 1<<40-4) || state.Days() != 4 {
		t.Errorf("%+v", state)
	}
	// What remains of 2.5 a day, after 7 requests at 100 each thousand and 5 bytes at 2^30
	// billionths each GiB, is 1.799999995.
	spent := index.ScrubSettings{Within: within, Prices: index.ScrubPrices{Requests: 100e9, Bytes: 1 << 30}, Spend: 25e8}
	f.must(f.x.SetScrub(f.ctx, spent, "me"))
	if state = f.scrubbed(); state.ScrubSettings != spent || state.Prices.Cost(state.Today) != 700_000_005 || !allows(17, 1e8-5) || allows(17, 1e8-4) || !allows(0, 1_799_999_995) || allows(18, 0) {
		t.Errorf("%+v", state)
	}
	f.must(f.x.SetScrub(f.ctx, index.ScrubSettings{Within: within, PerDay: index.ScrubCost{Requests: 10, Bytes: 1 << 40}}, "me"))
	_, err := f.db.SQL.ExecContext(f.ctx, fmt.Sprintf("UPDATE scrub SET day_began = day_began - %d", (25*time.Hour).Microseconds()))
	f.must(err)
	if !allows(10, 0) || allows(11, 0) {
		t.Errorf("after a day: %+v", f.scrubbed())
	}
	f.must(f.x.NoteProofs(f.ctx, term, nil, index.ScrubCost{Requests: 1}))
	if !allows(9, 0) || allows(10, 0) {
		t.Errorf("on the next day: %+v", f.scrubbed())
	}
	for e, err := range f.x.Log(f.ctx, time.Time{}) {
		f.must(err)
		if e.Action == "scrub" && e.By == "me" {
			return
		}
	}
	t.Error("the log has no entry of the settings")
}

// The slices of the journal are due one by one. A proof in progress goes on first, and a slice with
// damage is due again after a day.
func testScrubJournal(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	due := func(before time.Time) []index.JournalSlice {
		t.Helper()
		slices, err := f.x.JournalToProve(f.ctx, before)
		f.must(err)
		return slices
	}
	age := func(by time.Duration) {
		t.Helper()
		_, err := f.db.SQL.ExecContext(f.ctx, fmt.Sprintf("UPDATE journal_proofs SET noted = noted - %[1]d, proven = CASE WHEN proven > 0 THEN proven - %[1]d ELSE 0 END", by.Microseconds()))
		f.must(err)
	}
	term := f.lead("scrubber", "first", time.Minute, true)
	f.must(f.x.SetScrub(f.ctx, index.ScrubSettings{Within: 1000 * time.Hour}, "me"))
	state := f.scrubbed()
	if state.Journal.Unproven != index.JournalSlices || state.Journal.Late+state.Journal.Damaged != 0 || state.Now.Sub(state.Journal.Oldest) > time.Hour {
		t.Errorf("%+v", state)
	}
	if got := due(time.Time{}); len(got) > 2 {
		t.Errorf("at first, %d slices are due", len(got))
	}
	age(500 * time.Hour)
	if got := due(time.Time{}); len(got) < 100 || len(got) > 170 {
		t.Errorf("after half of the time, %d slices are due", len(got))
	}
	all := due(f.scrubbed().Now)
	if len(all) != index.JournalSlices {
		t.Fatalf("%d slices", len(all))
	}
	read := index.ScrubCost{Requests: 3, Bytes: 10}
	half := index.JournalSlice{Slice: 256, Begun: f.scrubbed().Now.Truncate(time.Microsecond), Reached: "catalog/0000000000000001", Damaged: 2, Damage: "catalog/1: x"}
	stale := term
	stale.Epoch--
	f.wants(f.x.NoteJournal(f.ctx, stale, half, read), index.ErrNotLeading)
	f.must(f.x.NoteJournal(f.ctx, term, half, read))
	if got := due(time.Time{}); got[0] != half {
		t.Errorf("%+v, want %+v", got[0], half)
	}
	if state = f.scrubbed(); state.Journal.Damaged != 2 || state.Journal.Damage != half.Damage || state.Journal.Unproven != index.JournalSlices || state.Today != read {
		t.Errorf("%+v", state)
	}
	for _, s := range all {
		s.Begun, s.Done = f.scrubbed().Now, true
		if s.Slice == 256 {
			s.Damaged, s.Damage = 1, "it is damaged"
		}
		f.must(f.x.NoteJournal(f.ctx, term, s, index.ScrubCost{}))
	}
	if got := due(time.Time{}); len(got) != 0 {
		t.Errorf("when all is proven, %d slices are due", len(got))
	}
	age(25 * time.Hour)
	if got := due(time.Time{}); len(got) != 1 || got[0].Slice != 256 || got[0].Damaged != 1 || !got[0].Begun.IsZero() {
		t.Errorf("after a day: %+v", got)
	}
	age(1000 * time.Hour)
	if state = f.scrubbed(); state.Journal.Late != index.JournalSlices || state.Journal.Unproven != 0 || state.Journal.Damaged != 1 {
		t.Errorf("%+v", state)
	}
}

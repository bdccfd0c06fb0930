package mirror

import (
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// What the store deleted stays, and is deleted only when it was gone for long enough.
func TestKeepDeleted(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	for range 5 {
		w.snapshot()
	}
	o := w.options()
	w.run(o)
	w.removeFrom(append(m.packs, m.segment, m.record)...)
	if s := w.run(o); s.Gone != 4 || s.Deleted != 0 || s.Retained != 4 {
		t.Errorf("%+v", s)
	}
	w.now = w.now.Add(100 * 24 * time.Hour)
	if s := w.run(o); s.Deleted != 0 || s.Retained != 4 { // for ever
		t.Errorf("%+v", s)
	}
	o.KeepDeleted = 101 * 24 * time.Hour
	if s := w.run(o); s.Deleted != 0 {
		t.Errorf("%+v", s)
	}
	// The gone record is not one of the mirror's.
	records := 0
	for _, err := range store.Records(t.Context(), w.to) {
		w.must(err)
		records++
	}
	if records != 5 {
		t.Errorf("%d records", records)
	}
	w.now = w.now.Add(2 * 24 * time.Hour)
	dry := o
	dry.DryRun = true
	if s := w.run(dry); s.Deleted != 4 {
		t.Errorf("a dry run: %+v", s)
	}
	if s := w.run(o); s.Deleted != 4 || s.Retained != 0 {
		t.Errorf("%+v", s)
	}
	w.wantSame()
	for o, err := range w.to.List(t.Context(), store.GonePrefix) {
		w.must(err)
		t.Errorf("%s stays", o.Name)
	}
}

// A copy of the index stays for a day after a newer one has replaced it. One that the store has
// lost, and not replaced, stays like everything else.
func TestCopiesOfTheIndex(t *testing.T) {
	w := newWorld(t)
	w.snapshot()
	for n := range int64(3) {
		w.signed(pack.KindIndex, store.IndexName(n+1, 0))
	}
	o := w.options()
	w.run(o)
	w.removeFrom(store.IndexName(1, 0), store.IndexName(3, 0))
	if s := w.run(o); s.Gone != 2 || s.Deleted != 0 {
		t.Errorf("at once: %+v", s)
	}
	w.now = w.now.Add(23 * time.Hour)
	if s := w.run(o); s.Deleted != 0 {
		t.Errorf("on the same day: %+v", s)
	}
	w.now = w.now.Add(2 * time.Hour)
	if s := w.run(o); s.Deleted != 1 || w.has(store.IndexName(1, 0)) || !w.has(store.IndexName(3, 0)) {
		t.Errorf("after a day: %+v", s)
	}
	w.now = w.now.Add(100 * 24 * time.Hour)
	if s := w.run(o); s.Deleted != 0 || !w.has(store.IndexName(3, 0)) {
		t.Errorf("the newest copy is deleted: %+v", s)
	}
	o.KeepDeleted = 24 * time.Hour
	if s := w.run(o); s.Deleted != 1 {
		t.Errorf("after the time of keep-deleted: %+v", s)
	}
}

// Whoever empties the store does not empty the mirror.
func TestBrake(t *testing.T) {
	w := newWorld(t)
	var all []made
	for range 20 {
		all = append(all, w.snapshot())
	}
	o := w.options()
	o.KeepDeleted = time.Hour
	w.run(o)
	for _, m := range all[:11] {
		w.removeFrom(append(m.packs, m.segment, m.record)...)
	}
	w.run(o)
	w.now = w.now.Add(2 * time.Hour)
	var stopped *BrakeError
	_, err := Run(t.Context(), o)
	if !errors.As(err, &stopped) || stopped.Records != 11 || stopped.OfRecords != 20 {
		t.Fatalf("11 of 20: %v", err)
	}
	w.snapshot()
	if s, err := Run(t.Context(), o); !errors.As(err, &stopped) || s.Copied != 4 {
		t.Errorf("the pass copies nothing: %+v, %v", s, err)
	}
	o.AllowDelete = stopped.Bytes - 1
	if _, err := Run(t.Context(), o); !errors.As(err, &stopped) {
		t.Errorf("with too few bytes allowed: %v", err)
	}
	o.AllowDelete++
	if s := w.run(o); s.Deleted != 44 {
		t.Errorf("%+v", s)
	}
	// A day counts as one pass.
	o.AllowDelete = 0
	w.removeFrom(all[12].record)
	w.run(o)
	w.now = w.now.Add(2 * time.Hour)
	if _, err := Run(t.Context(), o); !errors.As(err, &stopped) {
		t.Errorf("later on the same day: %v", err)
	}
	w.now = w.now.Add(24 * time.Hour)
	if s := w.run(o); s.Deleted != 1 {
		t.Errorf("the day after: %+v", s)
	}
}

// Nothing is deleted while damage is known.
func TestDamageDelaysDeletion(t *testing.T) {
	w := newWorld(t)
	m := w.snapshot()
	for range 3 {
		w.snapshot()
	}
	o := w.options()
	o.KeepDeleted = time.Hour
	w.run(o)
	w.removeFrom(m.packs[1])
	w.run(o)
	w.now = w.now.Add(2 * time.Hour)
	bad := w.snapshot()
	w.flip(w.from, bad.record, 200)
	if s := w.run(o); s.Deleted != 0 || len(s.Problems) != 1 {
		t.Errorf("%+v", s)
	}
	w.removeFrom(bad.record)
	if s := w.run(o); s.Deleted != 1 {
		t.Errorf("%+v", s)
	}
}

// A list that leaves out objects is not believed.
func TestListThatLies(t *testing.T) {
	w := newWorld(t)
	w.snapshot()
	w.run(w.options())
	o := w.options()
	o.From = liar{w.from}
	if s := w.run(o); s.Gone != 0 {
		t.Errorf("%+v", s)
	}
}

// A liar lists no packs.
type liar struct{ *memory }

func (l liar) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	if prefix == store.PacksPrefix {
		return func(func(store.Object, error) bool) {}
	}
	return l.memory.List(ctx, prefix)
}

// The mirror locks what the store has, and extends the locks. What is gone goes when its lock ends.
func TestLocks(t *testing.T) {
	w := newWorld(t)
	w.now = time.Now()
	m := w.snapshot()
	w.snapshot()
	o := w.options()
	o.KeepDeleted, o.Locks = 10*24*time.Hour, true
	w.run(o)
	want := w.now.Add(o.KeepDeleted).Truncate(time.Second)
	if got := w.to.locked[m.packs[0]]; !got.Equal(want) || !w.to.locked[store.ConfigName].Equal(want) {
		t.Errorf("locked until %v, want %v", got, want)
	}
	w.now = w.now.Add(4 * 24 * time.Hour)
	if s := w.run(o); s.LockExtended != 0 {
		t.Errorf("too soon: %+v", s)
	}
	w.removeFrom(m.packs[0])
	w.run(o)
	w.now = w.now.Add(2 * 24 * time.Hour)
	if s := w.run(o); s.LockExtended != 8 || !w.to.locked[m.packs[0]].Equal(want) {
		t.Errorf("%+v; the gone one is locked until %v", s, w.to.locked[m.packs[0]])
	}
	w.now = w.now.Add(10 * 24 * time.Hour) // the mirror's clock is wrong: the store's is not
	if s := w.run(o); s.Deleted != 0 || s.LockedGone != 1 {
		t.Errorf("%+v", s)
	}
	w.to.locked[m.packs[0]] = time.Time{}
	if s := w.run(o); s.Deleted != 1 {
		t.Errorf("%+v", s)
	}
}

package indextest

import (
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// A snapshot is known to have ended once it was committed, has failed, or was removed. Others are
// unended until their loss is accepted: that also raises the numbers of snapshots and catalogs.
func testComparing(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	stranger := backup.NewSnapshotID()
	running := f.begin()
	unended := func(want ...backup.SnapshotID) {
		t.Helper()
		got, err := f.x.Unended(f.ctx, []backup.SnapshotID{running.ID, stranger})
		f.must(err)
		if !slices.Equal(got, want) {
			t.Fatalf("unended %v, want %v", got, want)
		}
	}
	unended(running.ID, stranger)
	f.fail(running.ID, "")
	unended(stranger)
	first := f.commitRecorded(pageOf("a", "1"))
	f.commitRecorded(pageOf("a", "2"))
	f.must(f.forget(first))
	f.must(f.x.Remove(f.ctx, first.ID))
	got, err := f.x.Unended(f.ctx, []backup.SnapshotID{first.ID})
	f.must(err)
	if len(got) > 0 {
		t.Error("a removed snapshot is not known")
	}
	if _, err := f.x.Incarnation(f.ctx); err != nil {
		t.Error(err)
	}

	f.must(f.x.MarkOld(f.ctx, 0))
	if last, err := f.x.LastCatalog(f.ctx); err != nil || last >= 0 {
		t.Errorf("last catalog of an index that is being rebuilt: %d, %v", last, err)
	}
	f.must(f.x.AcceptLoss(f.ctx, nil, 0, "somebody@host", "ticket 11"))
	if last, err := f.x.LastCatalog(f.ctx); err != nil || last != 0 {
		t.Errorf("last catalog %d, %v, want 0", last, err)
	}
	number, err := f.x.NextCatalog(f.ctx, 0)
	f.must(err)
	if last, err := f.x.LastCatalog(f.ctx); err != nil || last != number {
		t.Errorf("last catalog %d, %v, want %d", last, err, number)
	}
	number++ // a committer that is older than NextCatalog has written it
	f.must(f.x.CatalogWritten(f.ctx, index.WrittenCatalog{Sequence: number, Written: time.Now()}))
	if last, err := f.x.LastCatalog(f.ctx); err != nil || last != number {
		t.Errorf("last catalog %d, %v, want %d, which is written", last, err, number)
	}
	lost := []index.LostSnapshot{{ID: stranger, Shard: first.Shard.Key, Number: 40}}
	for _, catalog := range []int64{0, number + 1, number} { // only the last one makes it old
		f.must(f.x.MarkOld(f.ctx, catalog))
	}
	if got, err := f.x.LastCatalog(f.ctx); err != nil || got != number-1 {
		t.Errorf("last catalog of an old index: %d, %v, want %d", got, err, number-1)
	}
	f.must(f.x.AcceptLoss(f.ctx, lost, number+7, "somebody@host", "ticket 12"))
	f.must(f.x.AcceptLoss(f.ctx, lost, number, "somebody@host", "again"))
	unended()
	if last, err := f.x.LastCatalog(f.ctx); err != nil || last != number+7 {
		t.Errorf("last catalog %d, %v, want %d", last, err, number+7)
	}
	if next := f.begin(); next.Number != 41 {
		t.Errorf("the next snapshot has number %d, as the lost one or lower", next.Number)
	}
	var logged []string
	for e, err := range f.x.Log(f.ctx, time.Time{}) {
		f.must(err)
		if e.Action == "accept" {
			logged = append(logged, e.Subject+" "+e.Reason)
		}
	}
	if !slices.Equal(logged, []string{"index ticket 11", "index ticket 12", "index again"}) {
		t.Errorf("logged %q", logged)
	}
}

// Deletions have numbers, and each catalog has that of the last one that was announced before it.
func testDeletions(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	for want := range int64(3) {
		if got, err := f.x.AnnouncedDeletion(f.ctx); err != nil || got != want {
			t.Fatalf("announced %d, %v, want %d", got, err, want)
		}
		if got, err := f.x.AnnounceDeletion(f.ctx); err != nil || got != want+1 {
			t.Fatalf("announced %d, %v, want %d", got, err, want+1)
		}
	}
	if w, err := f.x.WrittenCatalog(f.ctx); err != nil || w.Deletions != 0 {
		t.Errorf("%+v, %v", w, err)
	}
	f.must(f.x.CatalogWritten(f.ctx, index.WrittenCatalog{Sequence: 1, Written: f.now, Deletions: 3}))
	if w, err := f.x.WrittenCatalog(f.ctx); err != nil || w.Deletions != 3 {
		t.Errorf("%+v, %v", w, err)
	}
}

// An amendment is refused once the term of the pruner has ended, in which its segment was written.
func testAmendFenced(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.commitRecorded(pageOf("a", "1"))
	term := f.lead("pruner", "first", time.Minute, true)
	f.must(f.x.Amend(f.ctx, term, index.Amendment{ID: s.ID, Sequence: 1}))
	f.must(f.x.Resign(f.ctx, term))
	f.wants(f.x.Amend(f.ctx, term, index.Amendment{ID: s.ID, Sequence: 2}), index.ErrNotLeading)
	known, err := f.x.Amendments(f.ctx)
	f.must(err)
	if known[s.ID] != 1 {
		t.Errorf("amendment %d, want 1", known[s.ID])
	}
}

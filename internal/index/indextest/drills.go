package indextest

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// The newest reports of a shard are kept, and the newest that passed.
func testDrills(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	other := f.newShard("other", "data")
	s := f.commitPages(pageOf("", "root"))
	add := func(shard backup.ShardID, n int, passed bool) index.Drill {
		t.Helper()
		d := index.Drill{
			ID: backup.NewDrillID(), Shard: shard, Snapshot: s.ID, Started: f.now.Add(time.Duration(n) * time.Minute), Passed: passed,
			Report: []byte(`{"n": 1}`), Signature: bytes.Repeat([]byte{byte(n)}, 64),
		}
		f.must(f.x.AddDrill(f.ctx, d))
		f.must(f.x.AddDrill(f.ctx, d)) // a second time changes nothing
		return d
	}
	wantShard := func(passed, newest time.Time) {
		t.Helper()
		found, err := f.x.ListShards(f.ctx, index.ShardFilter{Filer: "filer"})
		f.must(err)
		if d := found[0].Drills; !d.Passed.Equal(passed) || !d.Newest.Equal(newest) || d.Failed() != newest.After(passed) {
			t.Fatalf("%+v, want %v, %v", d, passed, newest)
		}
	}
	wantShard(time.Time{}, time.Time{})
	failed := add(f.shard.ID, 1, false)
	wantShard(time.Time{}, failed.Started)
	passed := add(f.shard.ID, 2, true)
	wantShard(passed.Started, passed.Started)
	ofOther := add(other.ID, 0, true)

	all, err := f.x.Drills(f.ctx, 0)
	f.must(err)
	if want := []index.Drill{ofOther, failed, passed}; !reflect.DeepEqual(all, want) {
		t.Fatalf("%+v, want %+v", all, want)
	}
	var last index.Drill
	for n := range index.KeptDrills + 3 {
		last = add(f.shard.ID, 3+n, false)
	}
	kept, err := f.x.Drills(f.ctx, f.shard.ID)
	f.must(err)
	if len(kept) != index.KeptDrills+1 || kept[0].ID != passed.ID || kept[len(kept)-1].ID != last.ID {
		t.Fatalf("%d reports are kept, from %v to %v", len(kept), kept[0].Started, kept[len(kept)-1].Started)
	}
	wantShard(passed.Started, last.Started)

	for _, break1 := range []func(*index.Drill){
		func(d *index.Drill) { d.Report = nil },
		func(d *index.Drill) { d.Report = make([]byte, index.MaxDrillReportBytes+1) },
		func(d *index.Drill) { d.Signature = nil },
		func(d *index.Drill) { d.Started = time.Time{} },
	} {
		d := passed
		d.ID = backup.NewDrillID()
		break1(&d)
		f.wants(f.x.AddDrill(f.ctx, d), backup.ErrInvalid)
	}
	unknown := passed
	unknown.ID, unknown.Shard = backup.NewDrillID(), 4711
	f.wants(f.x.AddDrill(f.ctx, unknown), backup.ErrNotFound)
}

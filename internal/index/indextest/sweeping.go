package indextest

import (
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// An object is named by the row of its pack, by the plan of one, or by the rows of the packs that
// were moved there, and only together with its snapshot.
func testRecognize(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	term := f.lead("pruner", "first", time.Minute, true)
	recognize := func(snapshot backup.SnapshotID, id backup.PackID) index.Recognized {
		t.Helper()
		got, err := f.x.Recognize(f.ctx, term, []index.StoredObject{{}, {Snapshot: snapshot, ID: id}, {Snapshot: backup.NewSnapshotID(), ID: id}})
		f.must(err)
		if len(got) != 3 || got[0] != (index.Recognized{}) || got[2] != (index.Recognized{}) {
			t.Fatalf("%+v", got)
		}
		return got[1]
	}
	s, _ := f.batchesOf("a", "b", "c")
	p := packOf(s, 1, 2, 3, 4)
	f.want(recognize(s.ID, p.Pack), index.Recognized{Known: true})
	f.accept(index.Result{Pack: p})
	f.want(recognize(s.ID, p.Pack), index.Recognized{Known: true, Named: true})
	object := backup.NewPackID()
	plan, err := f.x.Plan(f.ctx, term, s.ID, object)
	f.must(err)
	f.want(recognize(s.ID, object), index.Recognized{Known: true, Named: true})
	copied := index.PackCopy{Row: f.packRows(p)[0], Pack: backup.NewPackID(), Bytes: 100, FrameBytes: []uint32{190, 0}, Chunks: chunkIDs([]int{1, 2})}
	f.must(f.x.Condemn(f.ctx, term, f.packRows(p)))
	f.must(f.x.Move(f.ctx, term, index.Move{Plan: plan, Copies: []index.PackCopy{copied}}))
	f.want(recognize(s.ID, object), index.Recognized{Known: true, Named: true})
	f.want(recognize(s.ID, copied.Pack), index.Recognized{Known: true})
	f.fail(s.ID, "")
	f.want(recognize(s.ID, object), index.Recognized{Known: true, Ended: true, Named: true})

	first := f.commitRecorded(pageOf("a", "1"))
	f.commitRecorded(pageOf("a", "2"))
	first, err = f.x.Snapshot(f.ctx, first.ID)
	f.must(err)
	if first.Segment.Parts == 0 {
		t.Fatal("the snapshot has no segment")
	}
	segment := backup.Segment{Attempt: first.Segment.Attempt, Parts: first.Segment.Parts}
	f.want(recognize(first.ID, backup.NewPackID()), index.Recognized{Known: true, Ended: true, Segment: segment})
	f.must(f.forget(first))
	f.must(f.x.Remove(f.ctx, first.ID))
	f.want(recognize(first.ID, backup.NewPackID()), index.Recognized{Known: true, Ended: true, Removed: true})

	f.must(f.x.Resign(f.ctx, term))
	_, err = f.x.Recognize(f.ctx, term, []index.StoredObject{{Snapshot: s.ID, ID: object}})
	f.wants(err, index.ErrNotLeading)
	all, err := f.x.Recognize(f.ctx, index.Term{}, []index.StoredObject{{Snapshot: s.ID, ID: object}})
	f.must(err)
	f.want(all[0], index.Recognized{Known: true, Ended: true, Named: true})
}

func (f *fixture) want(got, want index.Recognized) {
	f.Helper()
	if got != want {
		f.Fatalf("%+v, want %+v", got, want)
	}
}

// The next section of the sweep is stored by the leader only.
func testNextSection(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	wantSection := func(want int) {
		t.Helper()
		if got, err := f.x.NextSection(f.ctx); err != nil || got != want {
			t.Fatalf("section %d, %v, want %d", got, err, want)
		}
	}
	wantSection(0)
	term := f.lead("pruner", "first", time.Minute, true)
	for _, section := range []int{1, 2, 0, 15} {
		f.must(f.x.SetNextSection(f.ctx, term, section))
		wantSection(section)
	}
	f.must(f.x.Resign(f.ctx, term))
	f.wants(f.x.SetNextSection(f.ctx, term, 3), index.ErrNotLeading)
	wantSection(15)
}

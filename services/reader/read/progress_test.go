package read

import (
	"errors"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/treetest"
)

// While a batch is read, its reader reports how far it is, also within a file.
func TestProgressWithinABatch(t *testing.T) {
	const small, large = 300 << 10, 3 << 20
	f := newFixture(t, treetest.Tree{"a": treetest.File(random(1, small)), "b": treetest.File(random(2, large)), "c": treetest.File(random(3, 1000))})
	msg := f.batchOf("")
	msg.Job.ReadBytesPerSecond = 1 << 40 // reads are in pieces
	defer f.reader.Report.Batch(&msg.Job, msg.ID)()
	var seen []flow.Reading
	f.unsteady().sawRead = func(string, int) {
		var i flow.Instance
		f.reader.Report.InHand(&i)
		if len(i.Reading) != 1 || i.Reading[0].Snapshot != f.snap.ID {
			t.Errorf("in hand: %+v", i)
			return
		}
		seen = append(seen, i.Reading[0])
	}
	f.read(msg)
	f.commit()
	f.wantTree()
	largest := int64(0)
	for n := 1; n < len(seen); n++ {
		last, now := seen[n-1], seen[n]
		if now.ReadBytes < last.ReadBytes || now.BatchesDone < last.BatchesDone || now.BatchesDone > 1 {
			t.Errorf("%+v after %+v", now, last)
		}
		largest = max(largest, now.ReadBytes-last.ReadBytes)
	}
	if largest > 2*reportBytes {
		t.Errorf("%d bytes were read between two reports: %+v", largest, seen)
	}
	var i flow.Instance
	f.reader.Report.InHand(&i)
	got, want := i.Reading[0], flow.Reading{Snapshot: f.snap.ID, BatchesDone: 1, ReadBytes: small + large + 1000}
	if got.Recent = want.Recent; got != want { // whether a second of it has passed is chance
		t.Errorf("at the end: %+v, want %+v", got, want)
	}
}

// Bytes that are read again, or that vanish, do not make a batch more than done, and no byte is
// reported twice.
func TestShareOfABatch(t *testing.T) {
	b := pacedBatch(0)
	b.at.wanted = 2000 << 10
	done := b.svc.Report.Batch(&b.msg.Job, b.msg.ID)
	defer done()
	step := func(what string, want float64) {
		t.Helper()
		if got := b.at.share(); got != want {
			t.Errorf("%s: %v of the batch, want %v", what, got, want)
		}
	}
	step("nothing", 0)
	b.fileBegins(1000 << 10)
	b.hasRead(500 << 10)
	step("half of the first", 0.25)
	b.hasRead(500 << 10)
	b.hasRead(700 << 10) // again
	step("the first, and more", 0.5)
	b.fileEnds(true, 1000<<10)
	step("the first", 0.5)
	b.fileBegins(1000 << 10)
	b.hasRead(100 << 10)
	b.fileEnds(false, 0)
	step("the second has vanished", 1)
	if b.at.read != 1800<<10 {
		t.Errorf("%d bytes read", b.at.read)
	}
	huge := advance{wanted: backup.MaxCount}
	huge.done = backup.MaxCount
	if huge.share() != 1 {
		t.Errorf("%+v: %v", huge, huge.share())
	}
}

// A failed attempt that is made again is reported as work handed back.
func TestRetriesAreReported(t *testing.T) {
	f := newFixture(t, nil)
	b := pacedBatch(0)
	f.reader.retrying(b, errors.New("is it mounted here?"))
	var i flow.Instance
	if f.reader.Report.InHand(&i); i.HandedBack != 1 || i.HandedBackWhy != "is it mounted here?" || len(i.HandBacks) != 1 || i.HandBacks[0].Unseen {
		t.Errorf("%+v", i)
	}
	f.reader.retrying(b, &source.OtherTreeError{What: "nothing is there"})
	if f.reader.Report.InHand(&i); i.HandedBack != 2 || len(i.HandBacks) != 2 || !i.HandBacks[1].Unseen || !i.HandBacks[1].Has(b.msg.Job.Snapshot) {
		t.Errorf("%+v", i)
	}
}

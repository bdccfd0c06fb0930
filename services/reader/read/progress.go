package read

import (
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
)

// Progress is reported per file, and within a file per reportBytes or more: a batch may take
// minutes, if the filer's limit is low or a file is large.

const reportBytes = paceBytes

// An advance is how far a batch is. Only the reading goroutine uses it.
type advance struct {
	wanted int64         // total size of the files to read
	done   int64         // total size of those that are done
	read   int64         // bytes read so far, of all files
	held   time.Duration // waited because of the filer's read limit

	// Of the file that is being read:
	size       int64
	ofFile     int64 // bytes read; more than size if the file is read again
	reported   int64 // part of size that was reported
	unreported int64 // bytes read since the last report
}

// expect computes the amount to read.
func (b *batch) expect() {
	for n := range b.pages {
		for m := range b.pages[n].Entries {
			if e := &b.pages[n].Entries[m]; e.Flags&backup.Wanted != 0 {
				b.at.wanted += min(max(e.Size, 0), backup.MaxCount-b.at.wanted)
			}
		}
	}
}

// share returns the share of the batch that is done.
func (a *advance) share() float64 {
	if a.wanted <= 0 {
		return 0
	}
	return min(float64(a.done+min(a.ofFile, a.size))/float64(a.wanted), 1)
}

func (b *batch) fileBegins(size int64) {
	b.at.size, b.at.ofFile, b.at.reported, b.at.unreported = size, 0, 0, 0
}

// hasRead records bytes of a file. It reports them only if they are many, so that small files cost
// nothing.
func (b *batch) hasRead(n int) {
	a := &b.at
	a.read, a.ofFile, a.unreported = a.read+int64(n), a.ofFile+int64(n), a.unreported+int64(n)
	if a.unreported < reportBytes {
		return
	}
	more := max(min(a.ofFile, a.size)-a.reported, 0)
	a.reported, a.unreported = a.reported+more, 0
	b.report(backup.Progress{BytesDone: more})
}

// fileEnds records that a file is done. If it was kept, its size may differ from that of the walk.
func (b *batch) fileEnds(kept bool, size int64) {
	a := &b.at
	a.done = min(a.done+a.size, backup.MaxCount)
	reported := a.reported
	a.size, a.ofFile, a.reported, a.unreported = 0, 0, 0, 0
	if kept {
		b.report(backup.Progress{FilesDone: 1, BytesDone: max(size-reported, 0)})
	}
}

// report adds to the next report the opens, and their time, since the last one.
func (b *batch) report(p backup.Progress) {
	p.Opens, p.OpenSeconds = b.work.Opens()
	b.svc.Report.AddRead(b.msg.Job.Snapshot, b.msg.ID, p, flow.BatchState{
		ReadBytes: b.at.read, ShareDone: b.at.share(), HeldSeconds: b.at.held.Seconds(),
	})
}

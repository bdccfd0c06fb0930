package restore

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/restore/target"
)

// maxOpenFiles bounds the open descriptors of files that wait for further chunks.
const maxOpenFiles = 256

// A file is one entry on its way to the target. Symlinks and special files are files, too.
//
//	planned ─► decided ─► (wanted ─► written …) ─► finished ─► settled
//
// remaining counts the planner and each wanted chunk that has not arrived. The goroutine that takes
// it to zero finishes the file.
type file struct {
	r   *restorer
	dir *directory
	e   backup.Entry

	action  Action
	how     target.CreateOptions
	theirs  bool // the existing entry stays, and is not the snapshot's (Options.outranks)
	settled bool
	stream  fetch.Refs // the planner's
	group   *group     // the group of hardlinks that it belongs to
	further bool       // it is not the group's first name

	xattrsLost bool // e.Xattrs could not be read

	old *oldContent // of a file that is updated in place; the planner's

	remaining atomic.Int64

	mu      sync.Mutex
	failed  bool
	parked  bool
	at      *target.Dir // open while out is
	out     *target.File
	end     int64 // end offset of the data
	written int64
}

// newFile returns a file that the directory waits for and the planner holds.
func newFile(r *restorer, d *directory, e *backup.Entry) *file {
	f := &file{r: r, dir: d, e: *e}
	f.remaining.Store(1)
	d.pending.Add(1)
	return f
}

func (f *file) path() string { return backup.Join(f.dir.path, f.e.Name) }

func (f *file) needsContent() bool {
	return !f.further && f.e.Kind == backup.File && len(f.e.Content.Refs) > 0
}

// want announces a chunk.
func (f *file) want(offset, length int64) {
	f.remaining.Add(1)
	f.mu.Lock()
	f.end = offset + length // chunks are announced in order
	f.mu.Unlock()
}

// Chunk writes a chunk. The tag of a want is the offset of its chunk. It is part of fetch.Sink.
func (f *file) Chunk(offset int64, data []byte) {
	f.mu.Lock()
	if !f.failed {
		if err := f.write(offset, data); err != nil {
			f.failLocked("write", err)
		}
	}
	f.mu.Unlock()
	f.arrive()
}

// Fail records that a chunk of the file cannot be restored. It is part of fetch.Sink.
func (f *file) Fail(_ int64, err error) {
	f.fail("restore", err)
	f.arrive()
}

func (f *file) write(offset int64, data []byte) error {
	if f.out == nil {
		if err := f.create(); err != nil {
			return err
		}
	} else if f.parked {
		f.parked = false
		f.r.openFiles.Add(1)
	}
	n, err := f.out.WriteAt(data, offset)
	f.written += int64(n)
	f.r.bytes.Add(int64(n))
	f.r.doneBytes.Add(int64(n))
	if err == nil && f.remaining.Load() > 1 && f.r.openFiles.Load() > maxOpenFiles {
		f.parked = true
		f.r.openFiles.Add(-1)
		err = f.out.Park()
	}
	return err
}

// create creates the file at the target, without content.
func (f *file) create() (err error) {
	if f.at, err = f.dir.open(); err != nil {
		return err
	}
	if f.out, err = f.at.Create(&f.e, f.how); err != nil {
		f.at.Release()
		f.at = nil
		return err
	}
	f.r.openFiles.Add(1)
	if f.remaining.Load() > 1 || f.old != nil {
		f.r.mu.Lock()
		f.r.active[f] = struct{}{}
		f.r.mu.Unlock()
	}
	return nil
}

// arrive decrements remaining, because the planner or a chunk is done.
func (f *file) arrive() {
	if f.remaining.Add(-1) == 0 {
		f.finish()
	}
}

// finish completes the file, or removes it if it failed.
func (f *file) finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.failed && f.out == nil && f.action == Update && !f.r.o.DryRun { // nothing differs
		if err := f.create(); err != nil {
			f.failLocked("update", err)
		}
	}
	if !f.failed && f.out != nil {
		if err := f.out.Finish(&f.e, f.end, f.reportAttribute); err != nil {
			op := "finish"
			if f.action == Replace || f.action == Update {
				op = string(f.action)
			}
			f.failLocked(op, err)
			f.out = nil // Finish has removed it
		}
	}
	if f.failed && f.out != nil {
		f.out.Discard()
	}
	f.release()
	f.settle()
}

// release releases the resources of an open file.
func (f *file) release() {
	if f.at == nil {
		return
	}
	f.at.Release()
	f.at, f.out = nil, nil
	if !f.parked {
		f.r.openFiles.Add(-1)
	}
	f.r.mu.Lock()
	delete(f.r.active, f)
	f.r.mu.Unlock()
}

// discard removes a file that will not be finished, after a run has ended.
func (f *file) discard() {
	if f.out != nil {
		f.out.Discard()
		f.at.Release()
	}
}

// settle reports the result of the file to the observer, its group and its directory.
func (f *file) settle() {
	f.settled = true
	if !f.failed {
		f.r.done.Add(1)
		f.r.doneBytes.Add(f.e.Size - f.written)
		path := f.path()
		f.r.change(f.action, path, &f.e)
		if !f.theirs {
			f.r.flaw(path, browse.Flaw(&f.e))
		}
	}
	if f.group != nil && !f.further {
		f.r.links.resolve(f, !f.failed)
	}
	f.dir.done()
}

func (f *file) report(op string, err error) { f.r.problem(f.path(), op, err) }

func (f *file) reportAttribute(op string, err error) { f.r.attribute(f.path(), op, err) }

func (f *file) hasFailed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

func (f *file) fail(op string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failLocked(op, err)
}

func (f *file) failLocked(op string, err error) {
	if !f.failed {
		f.failed = true
		if errors.Is(err, fs.ErrExist) {
			err = f.dir.taken(f.e.Name, err)
		}
		if f.action == Update && f.out != nil {
			err = fmt.Errorf("%w; it was updated in part", err)
		}
		f.report(op, err)
	}
}

// makeWhole restores entries that need no chunk: special files, empty files, files that are one
// hole, and further names of a file.
func (f *file) makeWhole() {
	f.mu.Lock()
	var err error
	switch {
	case f.further:
		f.mu.Unlock()
		f.link()
		return
	case f.e.Kind == backup.File:
		err = f.create()
	default:
		err = f.makeSpecial()
	}
	if err != nil {
		f.failLocked("create", err)
	}
	f.mu.Unlock()
	f.arrive()
}

func (f *file) makeSpecial() error {
	at, err := f.dir.open()
	if err != nil {
		return err
	}
	defer at.Release()
	return at.MakeSpecial(&f.e, f.how, f.reportAttribute)
}

package restore

import (
	"errors"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore/target"
)

// maxOpenFiles bounds the descriptors of files that wait for further chunks.
const maxOpenFiles = 256

// A file is one entry on its way to the target; symlinks and special files are too.
//
//	planned ─► decided ─► (wanted ─► written …) ─► finished ─► settled
//
// remaining counts what is still to come: the planner, and each chunk that is
// wanted. Whoever takes it to zero finishes the file.
type file struct {
	r   *restorer
	dir *directory
	e   backup.Entry

	action  Action
	place   target.Place
	settled bool
	stream  refStream // the planner's
	group   *group    // of hardlinks that it belongs to
	further bool      // it is not the group's first name

	xattrsLost bool // e.Xattrs could not be had

	remaining atomic.Int64

	mu      sync.Mutex
	failed  bool
	parked  bool
	at      *target.Dir // open while out is
	out     *target.File
	end     int64 // where the data ends
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
	f.end = offset + length // they come in order
	f.mu.Unlock()
}

// Chunk writes a chunk to its place; it is part of fetch.Sink.
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

// Fail gives the file up; it is part of fetch.Sink.
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

// create makes the file at the target, which is empty then.
func (f *file) create() (err error) {
	if f.at, err = f.dir.open(); err != nil {
		return err
	}
	if f.out, err = f.at.Create(&f.e, f.place); err != nil {
		f.at.Release()
		f.at = nil
		return err
	}
	f.r.openFiles.Add(1)
	if f.remaining.Load() > 1 {
		f.r.mu.Lock()
		f.r.active[f] = struct{}{}
		f.r.mu.Unlock()
	}
	return nil
}

// arrive says that one of what remained is done with.
func (f *file) arrive() {
	if f.remaining.Add(-1) == 0 {
		f.finish()
	}
}

// finish completes the file, or removes what there is of it.
func (f *file) finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.failed && f.out != nil {
		if err := f.out.Finish(&f.e, f.end, f.reportAttribute); err != nil {
			op := "finish"
			if f.action == Replace {
				op = "replace"
			}
			f.failLocked(op, err)
			f.out = nil // Finish has removed it
		}
	}
	if f.failed && f.out != nil {
		f.out.Discard()
	}
	f.closed()
	f.settle()
}

// closed gives back what belongs to an open file.
func (f *file) closed() {
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

// settle tells whoever waits for the file what has become of it.
func (f *file) settle() {
	f.settled = true
	if !f.failed {
		f.r.done.Add(1)
		f.r.doneBytes.Add(f.e.Size - f.written)
		path := f.path()
		f.r.change(f.action, path, &f.e)
		if !f.action.stays() || f.r.o.Overwrite != Never {
			f.r.flaw(path, flawOf(&f.e))
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
		f.report(op, err)
	}
}

// makeWhole restores what needs no chunk: special files, empty files and
// single holes, and further names of a file.
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
	return at.MakeSpecial(&f.e, f.place, f.reportAttribute)
}

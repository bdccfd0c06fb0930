package restore

import (
	"os"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/restore/target"
)

// With InPlace, a large file that exists keeps its inode: its content is compared with the
// snapshot's, chunk by chunk at the snapshot's offsets, and only what differs is fetched and
// written. package target sees to it that an unfinished file never looks finished.

// An oldContent is the content that a file has at the target before it is updated. It belongs to
// the planner, which reads ahead of the writes; chunks do not overlap.
type oldContent struct {
	size   int64
	in     *os.File
	hasher *chunk.Hasher
	buf    []byte
	end    int64 // end offset of what was compared
}

func (o *oldContent) close() {
	if o != nil && o.in != nil {
		o.in.Close()
		o.in, o.buf = nil, nil
	}
}

// mayUpdate reports whether the existing file is updated in place. Others must not see content that
// the file's mode, owner or ACL does not hide from them, nor change through another name of it.
func (f *file) mayUpdate(at *target.Dir, have *backup.Entry) bool {
	o := &f.r.o
	if !o.InPlace || o.Overwrite == Never || o.Overwrite == IfNewer || f.e.Kind != backup.File || have.Kind != backup.File ||
		have.Nlink != 1 || have.Size <= chunk.MaxBytes || !f.needsContent() {
		return false
	}
	e := &f.e
	same := e.UID == have.UID && e.GID == have.GID && e.Mode == have.Mode && at.HasXattrs(e.Name, e.Xattrs, f.othersUnwanted())
	return same && at.MayWrite(have)
}

// isThere reports whether the existing file has the chunk at its offset, and clears the hole before
// the chunk. It is false for a file that is not updated in place.
func (f *file) isThere(ref backup.Ref, offset int64) (bool, error) {
	o := f.old
	if o == nil {
		return false, nil
	}
	if err := f.openOld(); err != nil {
		return false, err
	}
	if err := f.clearUpTo(offset); err != nil {
		return false, err
	}
	o.end = offset + ref.Length
	if o.end > o.size || ref.Length > chunk.MaxBytes {
		return false, nil
	}
	if int64(cap(o.buf)) < ref.Length {
		o.buf = make([]byte, ref.Length)
	}
	buf := o.buf[:ref.Length]
	if _, err := o.in.ReadAt(buf, offset); err != nil {
		return false, nil //nolint:nilerr // what cannot be read is written
	}
	hash := o.hasher.Sum(buf)
	return hash.ID() == ref.Chunk, nil
}

func (f *file) openOld() (err error) {
	if f.old.in != nil {
		return nil
	}
	at, err := f.dir.open()
	if err != nil {
		return err
	}
	defer at.Release()
	f.old.hasher = chunk.NewHasher([32]byte(f.r.key))
	f.old.in, err = at.OpenRead(f.e.Name)
	return err
}

// clearUpTo makes what follows the last compared chunk zeros, up to an offset.
func (f *file) clearUpTo(to int64) error {
	o := f.old
	to = min(to, o.size)
	if o.end >= to || f.r.o.DryRun || zero(o.in, o.end, to) == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed {
		return nil
	}
	if f.out == nil {
		if err := f.create(); err != nil {
			return err
		}
	}
	if err := f.out.Clear(o.end, to); err != nil {
		return err
	}
	if !f.parked { // other files may follow before its chunks arrive
		f.parked = true
		f.r.openFiles.Add(-1)
	}
	return f.out.Park()
}

// endOld clears what follows the last chunk, and ends the comparison.
func (f *file) endOld() {
	if f.old == nil {
		return
	}
	defer f.old.close()
	if f.hasFailed() {
		return
	}
	err := f.openOld()
	if err == nil {
		err = f.clearUpTo(f.e.Size)
	}
	if err != nil {
		f.fail("update", err)
	}
}

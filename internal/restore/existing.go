package restore

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/restore/target"
)

// decide determines what to do for the file, and settles the file if there is nothing to do.
func (f *file) decide(ctx context.Context) {
	if f.further {
		return // decided when the first name is finished
	}
	if f.r.o.Verify && f.e.Kind == backup.File {
		f.stream = fetch.NewRefs(f.e.Size, f.e.Content)
	}
	// Several chunks take a while to arrive, and other processes must not see a part of the file.
	// Nor must the next run: the mtime of an unfinished file is later than the snapshot's.
	careful := f.r.o.Overwrite == Never || f.r.o.Overwrite == IfNewer
	f.how = target.CreateOptions{
		Inherits: f.dir.made.Inherits, Keep: careful, Fresh: true,
		Temporary: careful || len(f.e.Content.Refs) > 1 || f.e.Content.Depth > 0,
	}
	f.action = Create
	if f.dir.made.Existed {
		if err := f.decideExisting(ctx); err != nil {
			f.fail("replace", err)
			f.arrive()
			return
		}
	}
	switch {
	case f.action.stays():
		f.arrive()
	case f.r.o.DryRun:
		if err := f.measure(ctx); err != nil {
			f.fail("restore", err)
		}
		f.arrive()
	}
}

// measure counts, for a dry run, the bytes that would be written.
func (f *file) measure(ctx context.Context) error {
	if !f.needsContent() {
		return nil
	}
	stream := fetch.NewRefs(f.e.Size, f.e.Content)
	defer f.old.close()
	for {
		ref, offset, list, ok, err := stream.Peek()
		switch {
		case err != nil || !ok:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case list:
			if err := f.r.fetch.Load(ctx, []*fetch.Refs{&stream}); err != nil {
				return err
			}
		default:
			if there, err := f.isThere(ref, offset); err != nil {
				return err
			} else if !there {
				f.r.bytes.Add(ref.Length)
			}
			stream.Advance()
		}
	}
}

// decideExisting decides what to do with the entry that exists under the file's name.
func (f *file) decideExisting(ctx context.Context) error {
	at, err := f.dir.open()
	if err != nil {
		return err
	}
	defer at.Release()
	have, err := at.Stat(f.e.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := f.dir.checkCase(at, f.e.Name); err != nil {
		return err
	}
	f.action = Replace
	f.how.Temporary, f.how.Fresh, f.how.Keep = true, false, f.r.o.Overwrite == Never
	switch {
	case f.r.o.outranks(&have, &f.e):
		f.action, f.theirs = Keep, true
	case f.r.o.protected(&have) != nil:
		return errProtected
	case have.Kind == backup.Directory:
		return f.clear(at)
	case f.r.o.Overwrite != Always && same(&f.e, &have) && f.mayKeep(at, &have) && f.verified(ctx, at):
		f.action = Keep
		if f.sameAttributes(at, &have) {
			return nil
		}
		f.action = Attributes
		if !f.r.o.DryRun {
			at.Apply(f.e.Name, &f.e, &have, f.othersUnwanted(), f.reportAttribute)
		}
	case f.mayUpdate(at, &have):
		f.action = Update
		f.how = target.CreateOptions{Inherits: f.othersUnwanted(), InPlace: &have}
		f.old = &oldContent{size: have.Size}
	}
	return nil
}

// outranks reports whether Overwrite lets the existing entry stay as it is, whatever the snapshot
// has under its name.
func (o *Options) outranks(have, e *backup.Entry) bool {
	switch o.Overwrite {
	case Never:
		return true
	case IfNewer:
		later := have.Mtime.Compare(e.Mtime)
		return later > 0 || later == 0 && !same(e, have)
	}
	return false
}

// mayKeep reports whether the other names of the existing file allow keeping it: they are not names
// of other files of the snapshot, and its attributes need no change. Its other names may be outside
// the target, so attributes must not be changed.
func (f *file) mayKeep(at *target.Dir, have *backup.Entry) bool {
	if have.Nlink < 2 {
		return true
	}
	return f.r.taken.take(have) && f.sameAttributes(at, have)
}

// othersUnwanted reports whether f.e.Xattrs are all xattrs that the file had.
func (f *file) othersUnwanted() bool { return !f.xattrsLost && browse.AllXattrs(&f.e) }

// same reports whether the existing entry can be the snapshot's.
func same(e, have *backup.Entry) bool {
	if e.Kind != have.Kind {
		return false
	}
	switch e.Kind {
	case backup.File:
		return e.Size == have.Size && sameMtime(e, have)
	case backup.Symlink:
		return e.Target == have.Target
	case backup.CharDev, backup.BlockDev:
		return e.Rdev == have.Rdev
	}
	return true
}

// verified reports whether the content at the target is the snapshot's. Without Verify it is always
// true.
func (f *file) verified(ctx context.Context, at *target.Dir) bool {
	if !f.r.o.Verify || f.e.Kind != backup.File {
		return true
	}
	in, err := at.OpenRead(f.e.Name)
	if err != nil {
		return false
	}
	defer in.Close()
	end, err := f.compare(ctx, in)
	return err == nil && zero(in, end, f.e.Size) == nil
}

var errDiffers = errors.New("differs")

// compare compares the chunks and the gaps between them; end is the end offset of the last chunk.
func (f *file) compare(ctx context.Context, in *os.File) (end int64, err error) {
	hasher := chunk.NewHasher([32]byte(f.r.key))
	var buf []byte
	for {
		ref, offset, list, ok, err := f.stream.Peek()
		switch {
		case err != nil || !ok:
			return end, err
		case ctx.Err() != nil:
			return end, context.Cause(ctx)
		case list:
			if err := f.r.fetch.Load(ctx, []*fetch.Refs{&f.stream}); err != nil {
				return end, err
			}
			continue
		}
		if err := zero(in, end, offset); err != nil {
			return end, err
		}
		if int64(cap(buf)) < ref.Length {
			buf = make([]byte, ref.Length)
		}
		buf = buf[:ref.Length]
		if _, err := in.ReadAt(buf, offset); err != nil {
			return end, err
		}
		if hash := hasher.Sum(buf); hash.ID() != ref.Chunk {
			return end, errDiffers
		}
		end = offset + ref.Length
		f.stream.Advance()
	}
}

// zero returns an error unless the file is zeros between the two offsets. It does not read holes.
func zero(in *os.File, from, to int64) error {
	buf := make([]byte, 64<<10)
	for from < to {
		data, err := unix.Seek(int(in.Fd()), from, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err == nil {
			from = data
		}
		if from >= to {
			return nil
		}
		n, err := in.ReadAt(buf[:min(int64(len(buf)), to-from)], from)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		for _, c := range buf[:n] {
			if c != 0 {
				return errDiffers
			}
		}
		from += int64(n)
	}
	return nil
}

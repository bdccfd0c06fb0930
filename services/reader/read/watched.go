package read

import (
	"context"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// asks and answered bracket each call of the source: the time between them, and only that, is the
// filer's time.
func (b *batch) asks() { b.call.Store(b.svc.watch.clock.Load()) }

func (b *batch) answered() {
	if b.call.Swap(0) == callStalled {
		b.svc.goOn(b)
	}
}

const (
	// firstReadBytes is the maximum size of the timed first read, so that its time does not depend
	// on the size of the file.
	firstReadBytes = 128 << 10
	// largeSample: one in this many larger files is timed, because that takes an additional read.
	largeSample = 8
)

// A watchedTree is a tree whose calls the watch knows of, and whose opens are timed.
type watchedTree struct {
	source.Tree
	b *batch
}

func (b *batch) openTree(ctx context.Context) (source.Tree, error) {
	b.asks()
	tree, err := source.OpenRoot(ctx, b.svc.Source, b.msg.Job.Source, b.msg.Job.Root, b.msg.Job.Compare)
	b.answered()
	return watchedTree{tree, b}, err
}

func (t watchedTree) OpenDirectory(ctx context.Context, path string) (source.Directory, error) {
	t.b.asks()
	d, err := t.Tree.OpenDirectory(ctx, path)
	t.b.answered()
	return watchedDirectory{d, t.b}, err
}

func (t watchedTree) Check(ctx context.Context) error {
	t.b.asks()
	defer t.b.answered()
	return t.Tree.Check(ctx)
}

func (t watchedTree) Close() error {
	t.b.asks()
	defer t.b.answered()
	return t.Tree.Close()
}

type watchedDirectory struct {
	source.Directory
	b *batch
}

func (d watchedDirectory) Read(ctx context.Context, dst []backup.Entry, problem func(name, op string, err error)) ([]backup.Entry, int, error) {
	d.b.asks()
	defer d.b.answered()
	return d.Directory.Read(ctx, dst, problem)
}

func (d watchedDirectory) Xattrs(ctx context.Context, name string, kind backup.Kind) ([]backup.Xattr, error) {
	d.b.asks()
	defer d.b.answered()
	return d.Directory.Xattrs(ctx, name, kind)
}

// OpenFile opens the batch's one file: a batch reads files one after the other.
func (d watchedDirectory) OpenFile(ctx context.Context, name string) (source.File, error) {
	started := time.Now()
	d.b.asks()
	f, err := d.Directory.OpenFile(ctx, name)
	d.b.answered()
	if err != nil {
		return nil, err
	}
	d.b.file = watchedFile{File: f, b: d.b, opening: time.Since(started)}
	return &d.b.file, nil
}

func (d watchedDirectory) Close() error {
	d.b.asks()
	defer d.b.answered()
	return d.Directory.Close()
}

type watchedFile struct {
	source.File
	b       *batch
	opening time.Duration
	read    bool // the first read was made
}

// fileError converts an error of an open file. An error that reports the file as gone may concern
// only this descriptor: it becomes source.ErrStale, so that the file is opened again by its name,
// which shows whether the name is gone.
func fileError(err error) error {
	if source.IsGone(err) {
		return fmt.Errorf("%w: %v", source.ErrStale, err) //nolint:errorlint // it must not count as gone
	}
	return err
}

func (f *watchedFile) Stat() (backup.Entry, error) {
	f.b.asks()
	defer f.b.answered()
	e, err := f.File.Stat()
	return e, fileError(err)
}

func (f *watchedFile) NextExtent(offset, size int64) (start, length int64, err error) {
	f.b.asks()
	defer f.b.answered()
	start, length, err = f.File.NextExtent(offset, size)
	return start, length, fileError(err)
}

func (f *watchedFile) ReadAt(p []byte, offset int64) (int, error) {
	if f.read || !f.b.isTimed(len(p)) {
		f.read = true
		return f.readAt(p, offset)
	}
	f.read = true
	started := time.Now()
	n, err := f.readAt(p[:min(len(p), firstReadBytes)], offset)
	f.b.opens++
	f.b.openSeconds += (f.opening + time.Since(started)).Seconds()
	if err != nil || n == len(p) {
		return n, err
	}
	m, err := f.readAt(p[n:], offset+int64(n))
	return n + m, err
}

func (f *watchedFile) readAt(p []byte, offset int64) (int, error) {
	f.b.asks()
	defer f.b.answered()
	n, err := f.File.ReadAt(p, offset)
	return n, fileError(err)
}

func (f *watchedFile) Xattrs() ([]backup.Xattr, error) {
	f.b.asks()
	defer f.b.answered()
	xattrs, err := f.File.Xattrs()
	return xattrs, fileError(err)
}

func (f *watchedFile) Close() error {
	f.b.asks()
	defer f.b.answered()
	return f.File.Close()
}

// isTimed reports whether the open of a file is timed whose first read has this many bytes.
func (b *batch) isTimed(readBytes int) bool {
	if readBytes <= firstReadBytes {
		return true
	}
	b.largeOpens++
	return b.largeOpens%largeSample == 1
}

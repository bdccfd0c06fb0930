package read

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// asks and answered frame each call of the source: what lies between is the
// filer's time, and nothing else is.
func (b *batch) asks() { b.call.Store(b.svc.watch.clock.Load()) }

func (b *batch) answered() {
	if b.call.Swap(0) == callStalled {
		b.svc.goOn(b)
	}
}

const (
	// firstReadBytes is the most that the read which is timed reads: so what
	// it takes does not depend on how large the files are.
	firstReadBytes = 128 << 10
	// largeSample is of how many larger files one is timed, for it takes an additional read.
	largeSample = 8
)

// A watchedTree is a tree whose calls the watch knows of, and whose opens are timed.
type watchedTree struct {
	source.Tree
	b *batch
}

func (b *batch) openTree(ctx context.Context) (source.Tree, error) {
	b.asks()
	tree, err := b.svc.Source.Open(ctx, b.msg.Job.Source)
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

// OpenFile opens the batch's one file: it reads one after the other.
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
	read    bool // something was
}

func (f *watchedFile) Stat() (backup.Entry, error) {
	f.b.asks()
	defer f.b.answered()
	return f.File.Stat()
}

func (f *watchedFile) NextExtent(offset, size int64) (start, length int64, err error) {
	f.b.asks()
	defer f.b.answered()
	return f.File.NextExtent(offset, size)
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
	return f.File.ReadAt(p, offset)
}

func (f *watchedFile) Xattrs() ([]backup.Xattr, error) {
	f.b.asks()
	defer f.b.answered()
	return f.File.Xattrs()
}

func (f *watchedFile) Close() error {
	f.b.asks()
	defer f.b.answered()
	return f.File.Close()
}

// isTimed says whether the open of a file counts whose first read is of so many bytes.
func (b *batch) isTimed(readBytes int) bool {
	if readBytes <= firstReadBytes {
		return true
	}
	b.largeOpens++
	return b.largeOpens%largeSample == 1
}

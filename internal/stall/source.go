package stall

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// Source returns a source for use by the Work. The Work notes all calls of the source, and of
// everything that is opened through it. Files belong to one goroutine. Trees and directories may be
// used concurrently as those of s.
func (k *Work) Source(s source.Source) source.Source { return noted{s, k} }

type noted struct {
	source.Source
	work *Work
}

func (s noted) Open(ctx context.Context, url string) (source.Tree, error) {
	s.work.ask()
	t, err := s.Source.Open(ctx, url)
	s.work.answer()
	if err != nil {
		return nil, err
	}
	return tree{t, s.work}, nil
}

func (s noted) Resolve(ctx context.Context, url, pattern string) (string, error) {
	s.work.ask()
	defer s.work.answer()
	return s.Source.Resolve(ctx, url, pattern)
}

type tree struct {
	source.Tree
	work *Work
}

func (t tree) OpenDirectory(ctx context.Context, path string) (source.Directory, error) {
	began := time.Now()
	t.work.ask()
	d, err := t.Tree.OpenDirectory(ctx, path)
	t.work.answer()
	if err != nil {
		return nil, err
	}
	return &directory{Directory: d, work: t.work, took: time.Since(began)}, nil
}

func (t tree) Check(ctx context.Context) error {
	t.work.ask()
	defer t.work.answer()
	return t.Tree.Check(ctx)
}

func (t tree) Close() error {
	t.work.ask()
	defer t.work.answer()
	return t.Tree.Close()
}

type directory struct {
	source.Directory
	work *Work
	took time.Duration
}

// Took returns the time that the source has taken to open and list a directory of a Work.
func Took(d source.Directory) time.Duration { return d.(*directory).took }

func (d *directory) Read(ctx context.Context, dst []backup.Entry, problem func(name, op string, err error)) ([]backup.Entry, int, error) {
	began := time.Now()
	d.work.ask()
	entries, stats, err := d.Directory.Read(ctx, dst, problem)
	d.work.answer()
	d.took += time.Since(began)
	return entries, stats, err
}

func (d *directory) Xattrs(ctx context.Context, name string, kind backup.Kind) ([]backup.Xattr, error) {
	d.work.ask()
	defer d.work.answer()
	return d.Directory.Xattrs(ctx, name, kind)
}

func (d *directory) OpenFile(ctx context.Context, name string) (source.File, error) {
	began := time.Now()
	d.work.ask()
	opened, err := d.Directory.OpenFile(ctx, name)
	d.work.answer()
	if err != nil {
		return nil, err
	}
	f := &d.work.file
	if f.open { // a second one
		f = &file{}
	}
	*f = file{File: opened, work: d.work, open: true, opening: time.Since(began)}
	return f, nil
}

func (d *directory) Close() error {
	d.work.ask()
	defer d.work.answer()
	return d.Directory.Close()
}

type file struct {
	source.File
	work    *Work
	open    bool
	read    bool // the first read was made
	opening time.Duration
}

func (f *file) Stat() (backup.Entry, error) {
	f.work.ask()
	defer f.work.answer()
	return f.File.Stat()
}

func (f *file) NextExtent(offset, size int64) (start, length int64, err error) {
	f.work.ask()
	defer f.work.answer()
	return f.File.NextExtent(offset, size)
}

// ReadAt implements io.ReaderAt. The first read is timed, in two parts if it is large.
func (f *file) ReadAt(p []byte, offset int64) (int, error) {
	if f.read || !f.work.opens.isTimed(len(p)) {
		f.read = true
		return f.readAt(p, offset)
	}
	f.read = true
	began := time.Now()
	n, err := f.readAt(p[:min(len(p), firstReadBytes)], offset)
	f.work.opens.add(f.opening + time.Since(began))
	if err != nil || n == len(p) {
		return n, err
	}
	m, err := f.readAt(p[n:], offset+int64(n))
	return n + m, err
}

func (f *file) readAt(p []byte, offset int64) (int, error) {
	f.work.ask()
	defer f.work.answer()
	return f.File.ReadAt(p, offset)
}

func (f *file) Xattrs() ([]backup.Xattr, error) {
	f.work.ask()
	defer f.work.answer()
	return f.File.Xattrs()
}

func (f *file) Close() error {
	f.work.ask()
	defer f.work.answer()
	f.open = false
	return f.File.Close()
}

const (
	// firstReadBytes is the maximum size of the timed first read, so that its time does not depend
	// on the size of the file.
	firstReadBytes = 128 << 10
	// largeSample: one in this many larger files is timed, because that takes an additional read.
	largeSample = 8
)

// opens are the files that a Work has opened and begun to read, as far as that was timed.
type opens struct {
	n, large int64
	seconds  float64
}

// isTimed reports whether the open of a file is timed, given the number of bytes of its first read.
func (o *opens) isTimed(readBytes int) bool {
	if readBytes <= firstReadBytes {
		return true
	}
	o.large++
	return o.large%largeSample == 1
}

func (o *opens) add(took time.Duration) {
	o.n++
	o.seconds += took.Seconds()
}

// Opens returns how many opens of files were timed since the last call, and how long the source
// took for them. It belongs to the goroutine that opens the files.
func (k *Work) Opens() (n int64, seconds float64) {
	n, seconds = k.opens.n, k.opens.seconds
	k.opens.n, k.opens.seconds = 0, 0
	return n, seconds
}

// Package faultsource is a source for tests that injects faults: a chosen call for a chosen path
// fails once, several times or always, with a chosen error, with a short read, or without any
// answer.
//
//	src := faultsource.New(posix.New(posix.Options{}))
//	src.Inject(faultsource.Fault{
//		Call: faultsource.Read, Path: "home/a", From: 1 << 20, Times: 1,
//		Err: faultsource.Posix(faultsource.Read, syscall.EIO),
//	})
package faultsource

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// A Call is a kind of call to a source.
type Call string

// The calls. Each is for a path within the shard: that of a directory, or of one of its entries.
const (
	OpenRoot        Call = "open root"
	Resolve         Call = "resolve"
	Check           Call = "check"
	OpenDirectory   Call = "open directory"
	StatDirectory   Call = "stat directory" // part of opening the directory
	List            Call = "list"
	DirectoryXattrs Call = "directory xattrs"
	StatEntry       Call = "stat entry"
	ReadLink        Call = "read link"
	EntryXattrs     Call = "entry xattrs" // of an entry that is neither a directory nor a file
	OpenFile        Call = "open file"
	StatFile        Call = "stat file"
	Extent          Call = "extent"
	Read            Call = "read"
	FileXattrs      Call = "file xattrs"
)

// A Fault replaces the answer to a call.
type Fault struct {
	Call  Call
	Path  string
	From  int64 // of Read: the first offset at which it happens
	After int   // number of calls that are answered before
	Times int   // how often it happens after that; 0: always

	Do    func() // called first, if not nil
	Err   error  // the answer; nil: that of the source
	Short bool   // of Read: half of the requested bytes, and the end
	Hang  bool   // no answer until the fault is lifted
}

// An Injected is an active fault.
type Injected struct {
	Fault
	source *Source
	lifted chan struct{}
	lift   func()
	calls  int // guarded by the source's mu
}

// Lift ends the fault.
func (i *Injected) Lift() { i.lift() }

// Happened returns how often the fault has happened.
func (i *Injected) Happened() int {
	i.source.mu.Lock()
	defer i.source.mu.Unlock()
	n := max(0, i.calls-i.After)
	if i.Times > 0 {
		n = min(n, i.Times)
	}
	return n
}

// A Source is a source with faults. It may be used concurrently.
type Source struct {
	source.Source
	mu     sync.Mutex
	faults []*Injected
	asked  map[Call]map[string]int // nil: calls are not counted
	clock  func() (now time.Time, behind time.Duration)
}

// New returns a source without faults.
func New(s source.Source) *Source { return &Source{Source: s} }

// Inject activates a fault.
func (s *Source) Inject(f Fault) *Injected {
	i := &Injected{Fault: f, source: s, lifted: make(chan struct{})}
	i.lift = sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.faults = slices.DeleteFunc(s.faults, func(other *Injected) bool { return other == i })
		close(i.lifted)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, i)
	return i
}

// SetClock replaces the clock of trees, as if it were not this machine's.
func (s *Source) SetClock(clock func() (now time.Time, behind time.Duration)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock = clock
}

// Count starts counting calls, from zero.
func (s *Source) Count() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = map[Call]map[string]int{}
}

// Asked returns how often a call was made for a path since Count.
func (s *Source) Asked(call Call, path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[call][path]
}

// isQuiet reports whether there are no faults and calls are not counted.
func (s *Source) isQuiet() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked == nil && len(s.faults) == 0
}

// before must be called before each call. It returns the fault that replaces the answer, if there
// is one.
func (s *Source) before(ctx context.Context, call Call, path string, end int64) *Injected {
	f := s.next(call, path, end)
	if f == nil {
		return nil
	}
	if f.Do != nil {
		f.Do()
	}
	if f.Hang {
		select {
		case <-f.lifted:
		case <-ctx.Done():
		}
	}
	return f
}

func (s *Source) next(call Call, path string, end int64) *Injected {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked != nil {
		if s.asked[call] == nil {
			s.asked[call] = map[string]int{}
		}
		s.asked[call][path]++
	}
	for _, f := range s.faults {
		if f.Call != call || f.Path != path || call == Read && end <= f.From {
			continue
		}
		if f.calls++; f.calls > f.After && (f.Times == 0 || f.calls <= f.After+f.Times) {
			return f
		}
	}
	return nil
}

// err returns the error that replaces an answer, if there is one.
func (s *Source) err(ctx context.Context, call Call, path string) error {
	if f := s.before(ctx, call, path, 0); f != nil {
		return f.Err
	}
	return nil
}

// Open implements source.Source.
func (s *Source) Open(ctx context.Context, url string) (source.Tree, error) {
	if err := s.err(ctx, OpenRoot, ""); err != nil {
		return nil, err
	}
	t, err := s.Source.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	return &tree{t, s}, nil
}

// Resolve implements source.Source.
func (s *Source) Resolve(ctx context.Context, url, pattern string) (string, error) {
	if err := s.err(ctx, Resolve, ""); err != nil {
		return "", err
	}
	return s.Source.Resolve(ctx, url, pattern)
}

type tree struct {
	source.Tree
	s *Source
}

func (t *tree) Clock() (now time.Time, behind time.Duration) {
	t.s.mu.Lock()
	clock := t.s.clock
	t.s.mu.Unlock()
	if clock != nil {
		return clock()
	}
	return t.Tree.Clock()
}

func (t *tree) Check(ctx context.Context) error {
	if err := t.s.err(ctx, Check, ""); err != nil {
		return err
	}
	return t.Tree.Check(ctx)
}

func (t *tree) OpenDirectory(ctx context.Context, path string) (source.Directory, error) {
	for _, call := range []Call{OpenDirectory, StatDirectory} {
		if err := t.s.err(ctx, call, path); err != nil {
			return nil, err
		}
	}
	d, err := t.Tree.OpenDirectory(ctx, path)
	if err != nil {
		return nil, err
	}
	return &directory{d, path, t.s}, nil
}

type directory struct {
	source.Directory
	path string
	s    *Source
}

// Read leaves out the entries whose stat fails, or whose target cannot be read.
func (d *directory) Read(ctx context.Context, dst []backup.Entry, problem func(name, op string, err error)) ([]backup.Entry, int, error) {
	if err := d.s.err(ctx, List, d.path); err != nil {
		return dst, 0, err
	}
	from := len(dst)
	dst, statCalls, err := d.Directory.Read(ctx, dst, problem)
	if d.s.isQuiet() {
		return dst, statCalls, err
	}
	read := dst[from:]
	kept := slices.DeleteFunc(read, func(e backup.Entry) bool {
		if e.Kind == backup.Directory {
			return false
		}
		err := d.s.err(ctx, StatEntry, backup.Join(d.path, e.Name))
		op := "stat"
		if err == nil && e.Kind == backup.Symlink {
			err, op = d.s.err(ctx, ReadLink, backup.Join(d.path, e.Name)), "readlink"
		}
		if err != nil {
			problem(e.Name, op, err)
		}
		return err != nil
	})
	return dst[:from+len(kept)], statCalls, err
}

func (d *directory) Xattrs(ctx context.Context, name string, kind backup.Kind) ([]backup.Xattr, error) {
	call, path := EntryXattrs, backup.Join(d.path, name)
	if name == "" {
		call, path = DirectoryXattrs, d.path
	}
	if err := d.s.err(ctx, call, path); err != nil {
		return nil, err
	}
	return d.Directory.Xattrs(ctx, name, kind)
}

func (d *directory) OpenFile(ctx context.Context, name string) (source.File, error) {
	path := backup.Join(d.path, name)
	if err := d.s.err(ctx, OpenFile, path); err != nil {
		return nil, err
	}
	f, err := d.Directory.OpenFile(ctx, name)
	if err != nil {
		return nil, err
	}
	return &file{f, path, d.s}, nil
}

type file struct {
	source.File
	path string
	s    *Source
}

func (f *file) Stat() (backup.Entry, error) {
	if err := f.s.err(context.Background(), StatFile, f.path); err != nil {
		return backup.Entry{}, err
	}
	return f.File.Stat()
}

func (f *file) NextExtent(offset, size int64) (start, length int64, err error) {
	if err := f.s.err(context.Background(), Extent, f.path); err != nil {
		return 0, 0, err
	}
	return f.File.NextExtent(offset, size)
}

func (f *file) ReadAt(p []byte, offset int64) (int, error) {
	fault := f.s.before(context.Background(), Read, f.path, offset+int64(len(p)))
	switch {
	case fault == nil:
	case fault.Err != nil:
		return 0, fault.Err
	case fault.Short:
		n, err := f.File.ReadAt(p[:len(p)/2], offset)
		if err == nil {
			err = io.EOF
		}
		return n, err
	}
	return f.File.ReadAt(p, offset)
}

func (f *file) Xattrs() ([]backup.Xattr, error) {
	if err := f.s.err(context.Background(), FileXattrs, f.path); err != nil {
		return nil, err
	}
	return f.File.Xattrs()
}

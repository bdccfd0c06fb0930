package stall

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A shard has a file of each kind that the timing of opens distinguishes.
func shard(t *testing.T) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "shard")
	treetest.Make(t, dir, treetest.Tree{"small": treetest.File("small")})
	large, err := os.Create(filepath.Join(dir, "large"))
	if err == nil {
		err = errors.Join(large.Truncate(1<<20), large.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func noProblem(string, string, error) {}

// Each call of a source, and of what is opened through it, is noted while it lasts.
func TestEachCallIsNoted(t *testing.T) {
	dir := shard(t)
	faults := faultsource.New(posix.New(posix.Options{}))
	w := NewWatch(time.Minute, 1)
	k := w.Begin(1, &owner{})
	calls := map[faultsource.Call]string{
		faultsource.OpenRoot: "", faultsource.Resolve: "", faultsource.Check: "", faultsource.OpenDirectory: "", faultsource.List: "",
		faultsource.DirectoryXattrs: "", faultsource.OpenFile: "small", faultsource.StatFile: "small", faultsource.Extent: "small",
		faultsource.Read: "small", faultsource.FileXattrs: "small",
	}
	var injected []*faultsource.Injected
	for call, path := range calls {
		injected = append(injected, faults.Inject(faultsource.Fault{Call: call, Path: path, Do: func() {
			if n := k.calls.Load(); n != 1 {
				t.Errorf("%s: %d calls are noted", call, n)
			}
		}}))
	}
	src := k.Source(faults)
	if _, err := src.Resolve(t.Context(), posix.URL(dir), "none"); !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("resolve: %v", err)
	}
	tree := must(src.Open(t.Context(), posix.URL(dir)))(t)
	d := must(tree.OpenDirectory(t.Context(), ""))(t)
	f := must(d.OpenFile(t.Context(), "small"))(t)
	_, _, listErr := d.Read(t.Context(), nil, noProblem)
	_, dirXattrsErr := d.Xattrs(t.Context(), "", backup.Directory)
	_, statErr := f.Stat()
	_, _, extentErr := f.NextExtent(0, 5)
	_, readErr := f.ReadAt(make([]byte, 5), 0)
	_, xattrsErr := f.Xattrs()
	if err := errors.Join(tree.Check(t.Context()), listErr, dirXattrsErr, statErr, extentErr, readErr, xattrsErr, f.Close(), d.Close(), tree.Close()); err != nil {
		t.Error(err)
	}
	for _, i := range injected {
		if i.Happened() != 1 {
			t.Errorf("%s: %d calls", i.Call, i.Happened())
		}
	}
	if n := k.calls.Load(); n != 0 {
		t.Errorf("%d calls are noted afterwards", n)
	}
}

// A closing source hangs as well: the close of all that is open is noted.
func TestEachCloseIsNoted(t *testing.T) {
	k := NewWatch(time.Minute, 1).Begin(1, &owner{})
	closed := 0
	c := closer{close: func() error {
		if n := k.calls.Load(); n != 1 {
			t.Errorf("%d calls are noted", n)
		}
		closed++
		return nil
	}}
	tree := must(k.Source(c).Open(t.Context(), ""))(t)
	d := must(tree.OpenDirectory(t.Context(), ""))(t)
	f := must(d.OpenFile(t.Context(), ""))(t)
	if err := errors.Join(f.Close(), d.Close(), tree.Close()); err != nil || closed != 3 {
		t.Errorf("%d closed, error %v", closed, err)
	}
}

// A closer is a source of which everything can only be opened and closed.
type closer struct {
	source.Source
	close func() error
}

type closingTree struct {
	source.Tree
	closer
}

type closingDirectory struct {
	source.Directory
	closer
}

type closingFile struct {
	source.File
	closer
}

func (c closer) Open(context.Context, string) (source.Tree, error) {
	return closingTree{closer: c}, nil
}

func (t closingTree) OpenDirectory(context.Context, string) (source.Directory, error) {
	return closingDirectory{closer: t.closer}, nil
}

func (d closingDirectory) OpenFile(context.Context, string) (source.File, error) {
	return closingFile{closer: d.closer}, nil
}

func (t closingTree) Close() error      { return t.close() }
func (d closingDirectory) Close() error { return d.close() }
func (f closingFile) Close() error      { return f.close() }

// The source's time to open and list a directory is counted, and so is that to open and first read
// a file; nothing else is.
func TestTimeOfTheFiler(t *testing.T) {
	dir := shard(t)
	synctest.Test(t, func(t *testing.T) {
		const slow = time.Second
		faults := faultsource.New(posix.New(posix.Options{}))
		for call, path := range map[faultsource.Call]string{
			faultsource.OpenRoot: "", faultsource.OpenDirectory: "", faultsource.List: "", faultsource.OpenFile: "small", faultsource.StatFile: "small", faultsource.Read: "small",
		} {
			faults.Inject(faultsource.Fault{Call: call, Path: path, Do: func() { <-time.After(slow) }})
		}
		k := NewWatch(time.Minute, 1).Begin(1, &owner{})
		tree := must(k.Source(faults).Open(t.Context(), posix.URL(dir)))(t)
		defer tree.Close()
		d := must(tree.OpenDirectory(t.Context(), ""))(t)
		defer d.Close()
		lists := 0
		for err := error(nil); !errors.Is(err, io.EOF); lists++ {
			<-time.After(time.Minute) // the caller's
			if _, _, err = d.Read(t.Context(), nil, noProblem); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		if took, want := Took(d), time.Duration(1+lists)*slow; took != want {
			t.Errorf("the directory took %v, want %v", took, want)
		}
		f := must(d.OpenFile(t.Context(), "small"))(t)
		for range 3 {
			if _, err := f.Stat(); err != nil {
				t.Error(err)
			}
			if _, err := f.ReadAt(make([]byte, 1), 0); err != nil {
				t.Error(err)
			}
		}
		if n, seconds := k.Opens(); n != 1 || seconds != (2*slow).Seconds() {
			t.Errorf("%d opens took %v s", n, seconds)
		}
		if n, seconds := k.Opens(); n != 0 || seconds != 0 {
			t.Errorf("%d opens of %v s are reported twice", n, seconds)
		}
	})
}

// One in largeSample large first reads is timed, and made in two parts; the others are as
// requested.
func TestLargeReadsAreTimedByTheWay(t *testing.T) {
	sizes := map[int]int{}
	src := posix.New(posix.Options{})
	k := NewWatch(time.Minute, 1).Begin(1, &owner{})
	tree := must(k.Source(sizeLog{src, sizes}).Open(t.Context(), posix.URL(shard(t))))(t)
	defer tree.Close()
	d := must(tree.OpenDirectory(t.Context(), ""))(t)
	defer d.Close()
	buf := make([]byte, 1<<20)
	for range 2 * largeSample {
		f := must(d.OpenFile(t.Context(), "large"))(t)
		if n, err := f.ReadAt(buf, 0); n != len(buf) || err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("%d bytes, error %v", n, err)
		}
		_ = f.Close()
	}
	if n, _ := k.Opens(); n != 2 {
		t.Errorf("%d opens are timed", n)
	}
	if sizes[firstReadBytes] != 2 || sizes[len(buf)-firstReadBytes] != 2 || sizes[len(buf)] != 2*largeSample-2 {
		t.Errorf("reads by size: %v", sizes)
	}
}

// A sizeLog counts reads by their size.
type sizeLog struct {
	source.Source
	sizes map[int]int
}

type sizeLogTree struct {
	source.Tree
	sizes map[int]int
}

type sizeLogDirectory struct {
	source.Directory
	sizes map[int]int
}

type sizeLogFile struct {
	source.File
	sizes map[int]int
}

func (s sizeLog) Open(ctx context.Context, url string) (source.Tree, error) {
	t, err := s.Source.Open(ctx, url)
	return sizeLogTree{t, s.sizes}, err
}

func (t sizeLogTree) OpenDirectory(ctx context.Context, path string) (source.Directory, error) {
	d, err := t.Tree.OpenDirectory(ctx, path)
	return sizeLogDirectory{d, t.sizes}, err
}

func (d sizeLogDirectory) OpenFile(ctx context.Context, name string) (source.File, error) {
	f, err := d.Directory.OpenFile(ctx, name)
	return sizeLogFile{f, d.sizes}, err
}

func (f sizeLogFile) ReadAt(p []byte, offset int64) (int, error) {
	f.sizes[len(p)]++
	return f.File.ReadAt(p, offset)
}

// Noting calls allocates nothing for a file. Two files may be open at a time.
func TestFilesTakeNoMemory(t *testing.T) {
	url := posix.URL(shard(t))
	src := posix.New(posix.Options{})
	k := NewWatch(time.Minute, 1).Begin(1, &owner{})
	allocations := func(s source.Source) float64 {
		tree := must(s.Open(t.Context(), url))(t)
		defer tree.Close()
		d := must(tree.OpenDirectory(t.Context(), ""))(t)
		defer d.Close()
		buf := make([]byte, 5)
		return testing.AllocsPerRun(100, func() {
			f := must(d.OpenFile(t.Context(), "small"))(t)
			_, _ = f.Stat()
			_, _, _ = f.NextExtent(0, 5)
			_, _ = f.ReadAt(buf, 0)
			_ = f.Close()
		})
	}
	if plain, noted := allocations(src), allocations(k.Source(src)); noted > plain {
		t.Errorf("%v allocations for a file, and %v without a Watch", noted, plain)
	}
	tree := must(k.Source(src).Open(t.Context(), url))(t)
	defer tree.Close()
	d := must(tree.OpenDirectory(t.Context(), ""))(t)
	defer d.Close()
	small, large := must(d.OpenFile(t.Context(), "small"))(t), must(d.OpenFile(t.Context(), "large"))(t)
	defer large.Close()
	defer small.Close()
	if a, b := must(small.Stat())(t).Size, must(large.Stat())(t).Size; a != 5 || b != 1<<20 {
		t.Errorf("sizes %d and %d", a, b)
	}
}

package read

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/treetest"
)

// An unsteadySource is a source whose files change, or fail, while they are read.
type unsteadySource struct {
	source.Source
	mu     sync.Mutex
	onOpen map[string]func() error
	onRead map[string]func() // called before each read from the file's start
	// sawRead, if not nil, is called with the size of each read.
	sawRead func(name string, n int)
}

type unsteadyTree struct {
	source.Tree
	s *unsteadySource
}

type unsteadyDirectory struct {
	source.Directory
	s *unsteadySource
}

type unsteadyFile struct {
	source.File
	name    string
	onRead  func()
	sawRead func(name string, n int)
}

func (s *unsteadySource) Open(ctx context.Context, url string) (source.Tree, error) {
	t, err := s.Source.Open(ctx, url)
	return unsteadyTree{t, s}, err
}

func (t unsteadyTree) OpenDirectory(ctx context.Context, path string) (source.Directory, error) {
	d, err := t.Tree.OpenDirectory(ctx, path)
	return unsteadyDirectory{d, t.s}, err
}

func (d unsteadyDirectory) OpenFile(ctx context.Context, name string) (source.File, error) {
	d.s.mu.Lock()
	onOpen, onRead, sawRead := d.s.onOpen[name], d.s.onRead[name], d.s.sawRead
	d.s.mu.Unlock()
	if onOpen != nil {
		if err := onOpen(); err != nil {
			return nil, err
		}
	}
	f, err := d.Directory.OpenFile(ctx, name)
	if err != nil || onRead == nil && sawRead == nil {
		return f, err
	}
	return unsteadyFile{f, name, onRead, sawRead}, nil
}

func (f unsteadyFile) ReadAt(p []byte, offset int64) (int, error) {
	if f.onRead != nil && offset == 0 {
		f.onRead()
	}
	if f.sawRead != nil {
		f.sawRead(f.name, len(p))
	}
	return f.File.ReadAt(p, offset)
}

// unsteady makes the fixture's reader read through an unsteadySource.
func (f *fixture) unsteady() *unsteadySource {
	s := &unsteadySource{Source: f.reader.Source, onOpen: map[string]func() error{}, onRead: map[string]func(){}}
	f.reader.Source = s
	return s
}

func TestFileChangesWhileItIsRead(t *testing.T) {
	const size = 3 << 20
	for _, c := range []struct {
		name   string
		first  int
		change func(path string, try int) error
	}{
		{"grows", size, func(path string, try int) error { return os.WriteFile(path, []byte(random(1, size+try*1000)), 0o600) }},
		{"shrinks", size, func(path string, try int) error { return os.Truncate(path, int64(size-try*100_000)) }},
		{"becomes empty", size, func(path string, _ int) error { return os.Truncate(path, 0) }},
		{"small file shrinks", 1000, func(path string, try int) error { return os.Truncate(path, int64(1000-try)) }},
		{"small file grows", 1000, func(path string, try int) error { return os.WriteFile(path, []byte(random(1, 1000+try)), 0o600) }},
	} {
		for _, steadyFrom := range []int{2, 100} { // the second time it is read, never
			t.Run(c.name, func(t *testing.T) {
				f := newFixture(t, treetest.Tree{"file": treetest.File(random(1, c.first)), "steady": treetest.File("x")})
				path, try := filepath.Join(f.dir, "file"), 0
				f.unsteady().onRead["file"] = func() {
					if try++; try < steadyFrom {
						if err := c.change(path, try); err != nil {
							t.Error(err)
						}
					}
				}
				f.read(f.batchOf(""))
				f.commit()
				all := f.entries()
				e := all["file"]
				if all["steady"].Flags&backup.ChangedWhileRead != 0 {
					t.Error("the steady file is flagged")
				}
				// An empty file is steady.
				unsteady := steadyFrom > readTries && c.name != "becomes empty"
				if flagged := e.Flags&backup.ChangedWhileRead != 0; flagged != unsteady {
					t.Errorf("flagged: %t, after it was read %d times", flagged, try)
				}
				got, now := f.content(&e), must(os.ReadFile(path))(t)
				if !unsteady && string(got) != string(now) {
					t.Errorf("got %d bytes, which are not the file's %d", len(got), len(now))
				}
				if !strings.HasPrefix(random(1, 2*size), string(got)) {
					t.Errorf("%d bytes that were never in the file", len(got))
				}
				problems := f.problems()
				if (len(problems) == 1) != unsteady {
					t.Errorf("problems %v", problems)
				}
				f.wantLookedAtAgain("")
			})
		}
	}
}

// A file that is replaced by another is stored in one state or the other.
func TestFileReplacedWhileItIsRead(t *testing.T) {
	before, after := random(1, 2<<20), random(2, 2<<20)
	f := newFixture(t, treetest.Tree{"file": treetest.File(before), "new": treetest.File(after)})
	f.unsteady().onRead["file"] = func() {
		// The second time the new file is gone.
		_ = os.Rename(filepath.Join(f.dir, "new"), filepath.Join(f.dir, "file"))
	}
	f.read(f.batchOf(""))
	f.commit()
	e := f.entries()["file"]
	if got := string(f.content(&e)); got != before && got != after {
		t.Errorf("%d bytes that are neither", len(got))
	}
}

func TestWhatIsGoneIsLeftOut(t *testing.T) {
	f := newFixture(t, treetest.Tree{
		"gone": treetest.File("gone"), "stays": treetest.File("stays"), "other": treetest.File("was a file"),
		"sub": treetest.Dir(), "sub/below": treetest.File("below"),
	})
	msg := f.batchOf("", "sub")
	for _, path := range []string{"gone", "other", "sub"} {
		if err := os.RemoveAll(filepath.Join(f.dir, path)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(f.dir, "other")); err != nil {
		t.Fatal(err)
	}
	f.read(msg)
	f.commit()
	all := f.entries()
	for path, e := range all {
		if e.Kind == backup.File && path != "stays" {
			t.Errorf("%s is still there", path)
		}
	}
	if e := all["stays"]; string(f.content(&e)) != "stays" {
		t.Error("what stays has other content")
	}
	if p := f.problems(); len(p) != 0 {
		t.Errorf("problems %v", p)
	}
	f.wantLookedAtAgain("")
}

// The last good copy of a file that cannot be read is carried forward with its size and times, and
// flagged, for as long as that lasts (I11).
func TestUnreadableFileKeepsItsLastCopy(t *testing.T) {
	f := newFixture(t, treetest.Tree{
		"bad": treetest.File("good once").WithXattr("user.x", "1"), "new": treetest.File("never read"), "ok": treetest.File("ok"),
	})
	source := f.unsteady()
	denied := func() error { return &fs.PathError{Op: "openat", Path: "new", Err: fs.ErrPermission} }
	source.onOpen["new"] = denied
	f.read(f.batchOf(""))
	f.commit()
	before := f.entries()["bad"]
	if e := f.entries()["new"]; e.Flags&backup.Unreadable == 0 || len(e.Content.Refs) != 0 {
		t.Errorf("a file without a last copy: %+v", e)
	}

	if err := os.WriteFile(filepath.Join(f.dir, "bad"), []byte("changed, and longer"), 0o600); err != nil {
		t.Fatal(err)
	}
	source.onOpen["bad"] = denied
	for range 2 {
		f.read(f.batchOf(""))
		f.commit()
		e := f.entries()["bad"]
		if e.Flags&backup.Unreadable == 0 || e.Size != before.Size || e.Mtime != before.Mtime || string(f.content(&e)) != "good once" || len(e.Xattrs) != 1 {
			t.Errorf("got %+v, want %+v, flagged", e, before)
		}
		if p := f.problems(); len(p) != 2 || p[0].Path != "bad" {
			t.Errorf("problems %v", p)
		}
		if s := must(f.idx.Snapshot(f.ctx, f.snap.ID))(t); s.Counts.Errors != 2 {
			t.Errorf("%d errors are counted", s.Counts.Errors)
		}
		f.wantLookedAtAgain("")
	}
	delete(source.onOpen, "bad")
	delete(source.onOpen, "new")
	f.read(f.batchOf(""))
	f.commit()
	f.wantTree()
}

// However many files with however long names cannot be read, the result fits into a message, and
// all are counted and flagged.
func TestManyProblemsFitAMessage(t *testing.T) {
	f := newFixture(t, nil)
	source := f.unsteady()
	const n = 2000
	for i := range n {
		name := strings.Repeat("long name ", 20) + random(uint64(i), 4)
		name = strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' || r == '/' {
				return rune('a' + i%26)
			}
			return r
		}, name) + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676))
		if err := os.WriteFile(filepath.Join(f.dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		source.onOpen[name] = func() error { return fs.ErrPermission }
	}
	f.read(f.batchOf(""))
	f.commit()
	if s := must(f.idx.Snapshot(f.ctx, f.snap.ID))(t); s.Counts.Errors != n || s.Counts.Files != 0 {
		t.Errorf("counts %+v", s.Counts)
	}
	for path, e := range f.entries() {
		if e.Kind == backup.File && e.Flags&backup.Unreadable == 0 {
			t.Fatalf("%s is not flagged", path)
		}
	}
}

func TestSourceThatIsAwayFailsTheAttempt(t *testing.T) {
	f := newFixture(t, treetest.Tree{"file": treetest.File("content"), "file2": treetest.File("content")})
	source := f.unsteady()
	source.onOpen["file2"] = func() error { return backup.ErrUnavailable }
	msg := f.batchOf("")
	if err := f.reader.try(f.ctx, msg); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	delete(source.onOpen, "file2")
	f.read(msg)
	f.commit()
	f.wantTree()
}

func (f *fixture) problems() (list []backup.Problem) {
	f.Helper()
	for p, err := range f.idx.Problems(f.ctx, f.snap.ID) {
		if err != nil {
			f.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

// wantLookedAtAgain checks that the page's fingerprint makes the next walk look at it.
func (f *fixture) wantLookedAtAgain(path string) {
	f.Helper()
	for v, err := range f.idx.Pages(f.ctx, f.snap.ID, path) {
		if err != nil {
			f.Fatal(err)
		}
		if v.Path == path && v.Fingerprint != (backup.Fingerprint{}) {
			f.Errorf("page of %q has fingerprint %x", path, v.Fingerprint)
		}
	}
}

package walk

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/treetest"
)

// contextCancelledAfterSends returns a context that is cancelled after so many messages.
func contextCancelledAfterSends(f *fixture, sends int) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(f.Context())
	f.svc.send = func(ctx context.Context, m *backup.SliceWalked) error {
		if sends--; sends < 0 {
			cancel()
			return context.Cause(ctx)
		}
		return f.keep(ctx, m)
	}
	if sends == 0 {
		cancel()
	}
	return ctx, cancel
}

// walkFrom walks an attempt that starts from some directories.
func (f *fixture) walkFrom(directories ...string) walked {
	f.Helper()
	task := f.rootTask()
	task.Directories, task.Generation = directories, 1
	must(f, f.walk(f.Context(), task))
	w := walked{}
	w.add(f.take())
	return w
}

// Directories that are gone when their turn comes, or are not directories any
// more, are left out, and what the last snapshot has of them is ended.
func TestVanished(t *testing.T) {
	f := newFixture(t, merged(home, treetest.Tree{"eve/file": treetest.File("x"), "dan/file": treetest.File("x")}))
	f.snapshot()
	outside := t.TempDir()
	treetest.Make(t, outside, treetest.Tree{"secret": treetest.File("x"), "sub/secret": treetest.File("x")})
	f.remove("ann")
	f.remove("dan")
	f.write("dan", "now a file")
	f.remove("eve")
	must(t, os.Symlink(outside, filepath.Join(f.dir, "eve")))
	w := f.walkFrom("ann", "dan", "eve", "eve/sub", "never")
	w.wantPages(t)
	w.wantRemoved(t, "ann", "dan", "eve") // the snapshot before never had the others
	w.wantProblems(t)
	if w.counts.Directories != 0 {
		t.Errorf("%d directories", w.counts.Directories)
	}
}

func TestRootGone(t *testing.T) {
	f := newFixture(t, home)
	f.snapshot()
	task := f.rootTask()
	f.remove("")
	must(t, f.walk(t.Context(), task))
	sent := f.take()
	if len(sent) != 1 || !sent[0].Last || !strings.Contains(sent[0].Failed, f.dir) {
		t.Errorf("sent %+v", sent)
	}
}

func TestBadSelection(t *testing.T) {
	f := newFixture(t, home)
	task := f.rootTask()
	task.Job.Selection.Exclude = []string{"[a"}
	must(t, f.walk(t.Context(), task))
	if sent := f.take(); len(sent) != 1 || !strings.Contains(sent[0].Failed, `"[a"`) {
		t.Errorf("sent %+v", sent)
	}
}

// An awayIndex does not answer.
type awayIndex struct{ index.Walking }

func (awayIndex) Marks(context.Context, backup.ShardID, backup.SnapshotNumber, []byte, []byte, int) ([]index.PageMark, []byte, error) {
	return nil, nil, backup.ErrUnavailable
}

// A reluctantSource cannot be reached the first time.
type reluctantSource struct {
	source.Source
	asked atomic.Bool
}

func (s *reluctantSource) Open(ctx context.Context, url string) (source.Tree, error) {
	if !s.asked.Swap(true) {
		return nil, backup.ErrUnavailable
	}
	return s.Source.Open(ctx, url)
}

// A blockingSource says that it was asked, and answers when ctx is done.
type blockingSource struct {
	source.Source
	asked chan<- struct{}
}

func (s blockingSource) Open(ctx context.Context, _ string) (source.Tree, error) {
	s.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// While the index is away a task is handed back, and nothing is said about the tree.
func TestIndexAway(t *testing.T) {
	f := newFixture(t, home)
	f.snapshot()
	task := f.rootTask()
	f.svc.index = awayIndex{f.index}
	if err := f.walk(t.Context(), task); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	if sent := f.take(); len(sent) > 0 {
		t.Errorf("sent %+v", sent)
	}
}

// So it is while this process has no descriptors left.
func TestTransient(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.EMFILE: true, syscall.ENFILE: true, backup.ErrUnavailable: true, syscall.EACCES: false, syscall.EIO: false,
	} {
		if got := transient(t.Context(), &os.PathError{Err: err}); got != want {
			t.Errorf("%v: transient %v, want %v", err, got, want)
		}
	}
}

// What cannot be read is a problem, and keeps what the last snapshot has of it.
func TestUnreadable(t *testing.T) {
	if os.Geteuid() == 0 {
		asNobody(t)
		return
	}
	f := newFixture(t, treetest.Tree{
		"closed/file":     treetest.File("c"),
		"closed/sub/file": treetest.File("c"),
		"names/file":      treetest.File("n"),
		"names/link":      treetest.Symlink("file"),
		"names/sub/file":  treetest.File("n"),
		"open/file":       treetest.File("o"),
	})
	first := f.snapshot()
	f.wantTree(first)
	t.Cleanup(func() { f.chmod(0o700, "closed", "names", "new") })
	treetest.Make(t, f.dir, treetest.Tree{"new/file": treetest.File("x"), "names/new": treetest.File("x")})
	f.chmod(0, "closed", "new")
	f.chmod(0o444, "names") // to be listed, but not looked into
	for range 2 {
		w := f.snapshot()
		w.wantProblems(t, "closed: list", "names/file: stat", "names/link: stat", "names/new: stat", "names/sub: open", "new: list")
		state := f.state(w)
		for path, flags := range map[string]backup.Flags{
			"closed/file": 0, "closed/sub/file": 0, "names/file": backup.Unreadable, "names/link": backup.Unreadable,
			"names/sub": 0, "names/sub/file": 0, "new/": backup.Unreadable, "open/file": 0,
		} {
			if e, ok := state[path]; !ok || e.Flags != flags || !slices.Equal(e.Content.Refs, contentOf(&e).Refs) {
				t.Errorf("%q: %+v, want it with flags %v", path, e, flags)
			}
		}
		for _, path := range []string{"new/file", "names/new"} {
			if _, ok := state[path]; ok {
				t.Errorf("%q is in the snapshot", path)
			}
		}
	}
	f.chmod(0o755, "closed", "names", "new")
	w := f.snapshot()
	w.wantProblems(t)
	f.wantTree(w)
}

// So it does where its directory was moved.
func TestUnreadableMoved(t *testing.T) {
	if os.Geteuid() == 0 {
		asNobody(t)
		return
	}
	f := newFixture(t, treetest.Tree{"names/file": treetest.File("n"), "names/link": treetest.Symlink("file"), "names/sub/file": treetest.File("n")})
	f.snapshot()
	t.Cleanup(func() { f.chmod(0o700, "moved") })
	f.rename("names", "moved")
	f.chmod(0o444, "moved")
	for range 2 {
		w := f.snapshot()
		w.wantProblems(t, "moved/file: stat", "moved/link: stat", "moved/sub: open")
		state := f.state(w)
		for _, path := range []string{"moved/file", "moved/link"} {
			if e, ok := state[path]; !ok || e.Flags != backup.Unreadable || !slices.Equal(e.Content.Refs, contentOf(&e).Refs) {
				t.Errorf("%q: %+v, want the last good copy", path, e)
			}
		}
	}
	f.chmod(0o755, "moved")
	w := f.snapshot()
	w.wantProblems(t)
	f.wantTree(w)
}

// A name that may not be looked at and is excluded is no problem.
func TestUnreadableExcluded(t *testing.T) {
	if os.Geteuid() == 0 {
		asNobody(t)
		return
	}
	f := newFixture(t, treetest.Tree{"names/file": treetest.File("n")})
	t.Cleanup(func() { f.chmod(0o700, "names") })
	f.chmod(0o444, "names")
	f.selection = backup.Selection{Exclude: []string{"names/*"}}
	w := f.snapshot()
	w.wantProblems(t)
}

func (f *fixture) chmod(mode os.FileMode, paths ...string) {
	f.Helper()
	for _, path := range paths {
		if err := os.Chmod(filepath.Join(f.dir, path), mode); err != nil && !os.IsNotExist(err) {
			f.Fatal(err)
		}
	}
}

// asNobody runs the calling test again, as a user who may not read everything.
func asNobody(t *testing.T) {
	t.Helper()
	const nobody = 65534
	home, err := os.MkdirTemp("", "bctl-nobody-") //nolint:usetesting // t.TempDir is in a directory that nobody may enter
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(home) })
	must(t, os.Chown(home, nobody, nobody))
	must(t, os.Chmod(home, 0o755))
	program, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(home, "test"), program, 0o755))
	cmd := exec.CommandContext(t.Context(), filepath.Join(home, "test"), "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "TMPDIR="+home, "HOME="+home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// Directories deeper than a path may be are left out, and the rest is not.
func TestTooDeep(t *testing.T) {
	f := newFixture(t, treetest.Tree{"file": treetest.File("x")})
	name := strings.Repeat("d", 255)
	at, err := unix.Open(f.dir, unix.O_DIRECTORY, 0)
	must(t, err)
	for range 260 {
		must(t, unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, unix.O_DIRECTORY, 0)
		must(t, err)
		unix.Close(at)
		at = next
	}
	unix.Close(at)
	w := f.snapshot()
	deepest := strings.Repeat("/"+name, 256)[1:]
	w.wantProblems(t, deepest+": open")
	if state := f.state(w); len(state) != 2+2*256+1 {
		t.Errorf("%d entries", len(state))
	}
}

// Extended attributes that a listing has no room for: those of files become
// the reader's, the others are a problem.
func TestXattrsWithoutRoom(t *testing.T) {
	f := newFixture(t, nil)
	large := []backup.Xattr{{Name: "user.large", Value: []byte(noise(1, maxListingBytes+maxListingBytes))}}
	content := backup.Content{Refs: []backup.Ref{{Length: 1, Span: 1}}}
	for _, test := range []struct {
		name     string
		page     page
		wanted   int
		problems int
	}{
		{"file", page{entries: []backup.Entry{{Name: "f", Kind: backup.File, Size: 1, Xattrs: large, Content: content}, {Name: "p", Kind: backup.FIFO}}}, 1, 0},
		{"self", page{self: &backup.Entry{Kind: backup.Directory, Xattrs: large}}, 0, 1},
		{"fits", page{self: &backup.Entry{Kind: backup.Directory, Xattrs: large[:0]}}, 0, 0},
	} {
		w := &visit{visitor: newVisitor(), slice: &slice{svc: f.svc}, path: "dir"}
		test.page.fingerprint = backup.Fingerprint{1}
		data, err := w.encodePage(&test.page)
		if n, _ := wanted(test.page.entries); err != nil || len(data) > maxListingBytes || n != test.wanted || len(w.problems) != test.problems {
			t.Errorf("%s: %d bytes, %d files to read, problems %v, error %v", test.name, len(data), n, w.problems, err)
		}
		if zero := test.page.fingerprint == (backup.Fingerprint{}); zero != (test.problems > 0) {
			t.Errorf("%s: fingerprint %x", test.name, test.page.fingerprint)
		}
	}
}

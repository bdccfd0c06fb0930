package walk

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
)

// contextCancelledAfterSends returns a context that is cancelled after this many messages.
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

// Directories that are gone when their turn comes, or are no longer directories, are left out, and
// their pages of the last snapshot are ended.
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
	w.wantPages(t, "ann", "dan", "eve", "eve/sub", "never") // because their parents list them
	for _, v := range w.pages {
		if p, err := listing.DecodePage(v); err != nil || len(p.Entries) > 0 || p.Self.Flags != backup.AttributesUnknown || v.Fingerprint != (backup.Fingerprint{}) {
			t.Errorf("page of %q: %+v, error %v; want that nothing is known of it", v.Path, p, err)
		}
	}
	w.wantRemoved(t, "ann", "dan", "eve") // the previous snapshot never had the others
	w.wantProblems(t)
	if w.counts.Directories != 0 || w.counts.Vanished != 5 {
		t.Errorf("%d directories, %d vanished", w.counts.Directories, w.counts.Vanished)
	}
}

// If the root is gone the snapshot fails: at once, if no walker has seen it or no other exists, and
// otherwise after other walkers have looked as well.
func TestRootGone(t *testing.T) {
	for _, test := range []struct {
		name       string
		alone      bool
		seen       bool
		generation int32
		looks      int
		fails      bool
	}{
		{"the first snapshot", false, false, 0, 1, true},
		{"the only walker", true, true, 0, 1, true},
		{"one of several", false, true, 0, 1, false},
		{"the last of several", false, true, 0, rootLooks, true},
		{"one of several, further down", false, true, 1, 1, false},
		{"the last of several, further down", false, true, 1, childLooks, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, home)
			f.svc.opts.Alone = test.alone
			if test.seen {
				f.snapshot()
			}
			task := f.rootTask()
			task.Generation, task.Attempt = test.generation, childAttempts
			f.remove("")
			err := f.look(t.Context(), task, test.looks)
			sent := f.take()
			if !test.fails {
				if !source.IsOtherTree(err) || len(sent) > 0 {
					t.Errorf("error %v, sent %+v; want that another walker tries", err, sent)
				}
				return
			}
			if err != nil || len(sent) != 1 || !sent[0].Last || !strings.Contains(sent[0].Failed, f.dir) {
				t.Errorf("sent %+v, error %v; want that the snapshot fails", sent, err)
			}
		})
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

// A blockingSource signals each call, and answers when ctx is done.
type blockingSource struct {
	source.Source
	asked chan<- struct{}
}

func (s blockingSource) Open(ctx context.Context, _ string) (source.Tree, error) {
	s.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// While the index is unavailable a task is handed back, and nothing is reported about the tree.
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

// The same holds while this process has no descriptors left.
func TestTransient(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.EMFILE: true, syscall.ENFILE: true, backup.ErrUnavailable: true, syscall.EACCES: false, syscall.EIO: false,
	} {
		if got := transient(t.Context(), &os.PathError{Err: err}); got != want {
			t.Errorf("%v: transient %v, want %v", err, got, want)
		}
	}
}

// Unreadable entries are problems, and keep their content of the last snapshot.
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
	f.chmod(0o444, "names") // it can be listed, but its entries not read with stat
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
		if _, ok := state["new/file"]; ok {
			t.Error(`"new/file" is in the snapshot`)
		}
		// An entry without an earlier copy is listed by its name.
		want := backup.Entry{Name: "new", Kind: backup.File, Flags: backup.Unreadable | backup.ContentMissing | backup.AttributesUnknown}
		if got := state["names/new"]; !reflect.DeepEqual(got, want) {
			t.Errorf("names/new: %+v, want %+v", got, want)
		}
	}
	f.chmod(0o755, "closed", "names", "new")
	w := f.snapshot()
	w.wantProblems(t)
	f.wantTree(w)
}

// The same holds if its directory was moved.
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

// An excluded name that stat may not read is no problem.
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

// A pattern for directories only does not exclude an entry whose kind is unknown.
func TestUnreadableIsNotTakenForADirectory(t *testing.T) {
	f := newFixture(t, treetest.Tree{"d/cache": treetest.File("c"), "d/other": treetest.File("o")})
	f.selection = backup.Selection{Exclude: []string{"cache/"}}
	f.snapshot()
	f.fail(faultsource.StatEntry, "d/cache", unix.EIO, 0)
	w := f.snapshot()
	w.wantProblems(t, "d/cache: stat")
	if e := f.state(w)["d/cache"]; e.Flags&backup.Unreadable == 0 || e.Size != 1 {
		t.Errorf("%+v, want the last good copy", e)
	}
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

// Directories whose paths are too long are left out, and the others are not.
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

// Extended attributes for which a listing has no room are left to the reader, which can store them
// elsewhere: those of files first, which it opens anyway.
func TestXattrsWithoutRoom(t *testing.T) {
	f := newFixture(t, nil)
	seed := 0
	xattrs := func(size int) []backup.Xattr {
		seed++
		return []backup.Xattr{{Name: "user.large", Value: []byte(noise(seed, size))}}
	}
	const much, some = 2 * maxListingBytes, maxListingBytes / 2
	content := backup.Content{Refs: []backup.Ref{{Length: 1, Span: 1}}}
	stored := backup.Ref{Chunk: backup.ChunkID{1}, Length: 5, Span: 5}
	for _, test := range []struct {
		name string
		page page
		want []string // the entries whose attributes are left to the reader
	}{
		{"fits", page{self: &backup.Entry{Kind: backup.Directory, Xattrs: xattrs(some)}}, nil},
		{"file", page{entries: []backup.Entry{
			{Name: "f", Kind: backup.File, Size: 1, Xattrs: xattrs(much), Content: content}, {Name: "p", Kind: backup.FIFO, Xattrs: xattrs(10)},
		}}, []string{"f"}},
		{"self", page{self: &backup.Entry{Kind: backup.Directory, Xattrs: xattrs(much)}}, []string{""}},
		{"fifo", page{entries: []backup.Entry{{Name: "f", Kind: backup.File, Xattrs: xattrs(10)}, {Name: "p", Kind: backup.FIFO, Xattrs: xattrs(much)}}}, []string{"f", "p"}},
		{"all kinds", page{self: &backup.Entry{Kind: backup.Directory, Xattrs: xattrs(some)}, entries: []backup.Entry{
			{Name: "f", Kind: backup.File, Xattrs: xattrs(some)}, {Name: "in a chunk", Kind: backup.File, XattrChunk: stored},
			{Name: "link", Kind: backup.Symlink, Xattrs: xattrs(some)}, {Name: "none", Kind: backup.Symlink},
		}}, []string{"", "f", "link"}},
	} {
		w := &visit{visitor: newVisitor(), slice: &slice{svc: f.svc}, path: "dir"}
		data, err := w.encodePage(&test.page)
		if err != nil || len(data) > maxListingBytes || len(w.problems) > 0 {
			t.Errorf("%s: %d bytes, problems %v, error %v", test.name, len(data), w.problems, err)
		}
		p, err := listing.Decode(data)
		must(t, err)
		var left []string
		for _, e := range append([]backup.Entry{*cmp.Or(p.Self, &backup.Entry{})}, p.Entries...) {
			if e.Flags&backup.XattrsWanted != 0 {
				left = append(left, e.Name)
			}
			if e.Flags&backup.XattrsWanted != 0 && len(e.Xattrs) > 0 || e.Name == "in a chunk" && e.XattrChunk != stored {
				t.Errorf("%s: %+v", test.name, e)
			}
		}
		if !slices.Equal(left, test.want) || wantsXattrs(&test.page) != (len(test.want) > 0) {
			t.Errorf("%s: the attributes of %q are left, want those of %q", test.name, left, test.want)
		}
	}
}

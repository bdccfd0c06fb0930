package walk

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A mountedFixture is a shard with a file system in it, "mnt".
type mountedFixture struct {
	*fixture
	from    string // what is mounted
	unmount func()
}

func newMountedFixture(t *testing.T, below treetest.Tree) *mountedFixture {
	t.Helper()
	f := &mountedFixture{fixture: newFixture(t, merged(below, treetest.Tree{"mnt": treetest.Dir(), "plain/file": treetest.File("p")})), from: t.TempDir()}
	treetest.Make(t, f.from, treetest.Tree{
		"a/file": treetest.File("a"), "a/deep/file": treetest.File("d"), "b/file": treetest.File("b"), "top": treetest.File("t"), "link": treetest.Symlink("top"),
	})
	f.mount()
	return f
}

func (f *mountedFixture) mount() {
	f.Helper()
	f.unmount = treetest.Bind(f.fixture, f.from, filepath.Join(f.dir, "mnt"))
}

// If a file system is unmounted at any point during a walk, no result reports its files as gone.
// The attempt is left to others or, if there are none, the snapshot fails. The following snapshots
// keep the last good copy, and report that, for as long as it is not mounted.
func TestMountVanishesInMidWalk(t *testing.T) {
	below := treetest.Tree{"mnt/a/file": treetest.File("another"), "mnt/a/below": treetest.File("x")}
	for name, test := range map[string]struct {
		below       treetest.Tree // the mount
		at          string        // the directory before which it is unmounted
		directories int           // of one slice
		alone, base bool
	}{
		"others, with a base":             {nil, "mnt/a", 1, false, true},
		"others, without a base":          {nil, "mnt/a", 1, false, false},
		"alone, with a base":              {nil, "mnt/b", 1, true, true},
		"alone, without a base":           {nil, "mnt/b", 1, true, false},
		"in one slice, with a base":       {nil, "mnt/a", 1000, false, true},
		"in one slice, without a base":    {nil, "mnt/a", 1000, false, false},
		"below is the same, with a base":  {below, "mnt/a", 1, false, true},
		"below is the same, without":      {below, "mnt/a", 1, false, false},
		"below is the same, in one slice": {below, "mnt/a", 1000, false, true},
		"after the last directory":        {nil, "plain", 1000, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newMountedFixture(t, test.below)
			if test.base {
				f.wantTree(f.snapshot())
			}
			f.svc.opts.Alone, f.svc.opts.Directories = test.alone, 1
			f.source.Inject(faultsource.Fault{Call: faultsource.OpenDirectory, Path: test.at, Times: 1, Do: f.unmount})
			s := f.begin()
			ends, failed := f.attempt(s, test.directories)
			if got := failed != ""; got != test.alone || failed != "" && !strings.Contains(failed, `"mnt" is no longer mounted`) {
				t.Errorf("the snapshot fails: %q", failed)
			}
			if !test.alone && (len(ends) == 0 || slices.ContainsFunc(ends, func(err error) bool { return !source.IsOtherTree(err) })) {
				t.Errorf("attempts ended with %v, want that another tree is there", ends)
			}
			must(t, f.index.Fail(t.Context(), s.ID, "test", f.now))
			f.wantKept(test.base, len(test.below))
		})
	}
}

// wantKept makes snapshots while nothing is mounted, and one when it is again.
func (f *mountedFixture) wantKept(base bool, below int) {
	f.Helper()
	f.svc.budgets = budgetOf(1000)
	for range 2 {
		w := f.snapshot()
		if !base {
			w.wantProblems(f)
			f.wantTree(w)
			continue
		}
		w.wantProblems(f, "mnt: open")
		state := f.state(w)
		for path, flags := range map[string]backup.Flags{"mnt/": backup.Unreadable | backup.Boundary, "mnt/a/file": 0, "mnt/a/deep/file": 0, "mnt/top": 0, "mnt/link": 0} {
			if e, ok := state[path]; !ok || e.Flags != flags || !slices.Equal(e.Content.Refs, contentOf(&e).Refs) {
				f.Errorf("%q: %+v, want it with flags %b", path, e, flags)
			}
		}
		if _, ok := state["mnt/a/below"]; ok {
			f.Error("what is below the mount is in the snapshot")
		}
		// mnt, a, deep and b, with four files and a link
		if c := w.counts; c.Carried != 4+5 || c.Files != 1+5 || c.Directories != 2+4 || c.Vanished != 0 {
			f.Errorf("counts %+v", c)
		}
	}
	f.mount()
	w := f.snapshot()
	w.wantProblems(f)
	f.wantTree(w)
	for path, e := range f.state(w) {
		if want := path == "mnt/"; e.Flags&backup.Boundary != 0 != want || e.Flags&backup.Flawed != 0 {
			f.Errorf("%q has the flags %b", path, e.Flags)
		}
	}
	again := f.snapshot()
	again.wantPages(f)
}

// A snapshot that permits it takes the content of the directory that was a mount point.
func TestUnmountedIsBelieved(t *testing.T) {
	for name, request := range map[string]func(f *mountedFixture){
		"allow shrink":    func(f *mountedFixture) { f.request.AllowShrink = true },
		"one file system": func(f *mountedFixture) { f.selection.OneFileSystem = true },
	} {
		t.Run(name, func(t *testing.T) {
			f := newMountedFixture(t, treetest.Tree{"mnt/below": treetest.File("x")})
			f.snapshot()
			f.unmount()
			request(f)
			w := f.snapshot()
			w.wantProblems(t)
			f.wantTree(w)
		})
	}
}

// inMemoryAndSpilled runs a test twice: with directories that are held in memory, and with all
// directories sorted through a file.
func inMemoryAndSpilled(t *testing.T, test func(t *testing.T, spillEntries int)) {
	for name, entries := range map[string]int{"in memory": spillEntries, "spilled": 1} {
		t.Run(name, func(t *testing.T) { test(t, entries) })
	}
}

// spill makes the fixture hold this many entries of a directory in memory.
func (f *fixture) spill(entries int) {
	f.svc.spillEntries, f.svc.opts.Directories = entries, 1
}

// A mount whose directory disappeared with it, as with automounters, is not deleted.
func TestMountPointIsGoneToo(t *testing.T) {
	for name, test := range map[string]func(f *mountedFixture){
		"gone":                   func(*mountedFixture) {},
		"a directory beside it":  func(f *mountedFixture) { f.remove("plain") },
		"all beside it":          func(f *mountedFixture) { f.remove("plain"); f.remove("file-000000") },
		"the directory stays":    func(f *mountedFixture) { treetest.Make(f, f.dir, treetest.Tree{"mnt/below": treetest.File("x")}) },
		"a file in its place":    func(f *mountedFixture) { f.write("mnt", "in its place") },
		"others in its place":    func(f *mountedFixture) { treetest.Make(f, f.dir, files("", 700)) },
		"a symlink in its place": func(f *mountedFixture) { must(f, os.Symlink("plain", filepath.Join(f.dir, "mnt"))) },
	} {
		t.Run(name, func(t *testing.T) {
			inMemoryAndSpilled(t, func(t *testing.T, entries int) {
				f := newMountedFixture(t, treetest.Tree{"mnt/below": treetest.File("x"), "file-000000": treetest.File("0")})
				f.spill(entries)
				f.snapshot()
				f.unmount()
				f.remove("mnt")
				test(f)
				f.wantMountKept()
			})
		})
	}
}

// wantMountKept makes snapshots while the mount is gone with its directory.
func (f *mountedFixture) wantMountKept() {
	f.Helper()
	for range 2 {
		w := f.snapshot()
		w.wantProblems(f, "mnt: open")
		state := f.state(w)
		if state["mnt/top"].Kind != backup.File || state["mnt/"].Flags&backup.Unreadable == 0 || state["mnt"].Kind != backup.Directory || slices.Contains(w.removed, "mnt") {
			f.Errorf("removed %q, mnt %+v", w.removed, state["mnt/"])
		}
		f.wantCounts(w, state)
	}
	f.request.AllowShrink = true
	w := f.snapshot()
	w.wantProblems(f)
	f.wantCounts(w, f.state(w))
	f.wantTree(w)
}

// wantCounts fails the test unless the counts agree with the snapshot's content.
func (f *fixture) wantCounts(w walked, state map[string]backup.Entry) {
	f.Helper()
	var files, bytes, directories int64
	for path, e := range state {
		switch {
		case strings.HasSuffix(path, "/"):
			directories++
		case e.Kind != backup.Directory:
			files++
			bytes += e.Size
		}
	}
	if c := w.counts; c.Files != files || c.Bytes != bytes || c.Directories != directories {
		f.Errorf("counts %+v; the snapshot has %d files, %d bytes, %d directories", c, files, bytes, directories)
	}
}

// The same for a file that was mounted over another.
func TestMountedFileIsGone(t *testing.T) {
	for name, test := range map[string]func(f *fixture){
		"the file below is there": func(*fixture) {},
		"the file below is gone":  func(f *fixture) { f.remove("d/hosts") },
		"others are beside it":    func(f *fixture) { treetest.Make(f, filepath.Join(f.dir, "d"), files("", 700)) },
		"gone, and others":        func(f *fixture) { f.remove("d/hosts"); treetest.Make(f, filepath.Join(f.dir, "d"), files("", 700)) },
	} {
		t.Run(name, func(t *testing.T) {
			inMemoryAndSpilled(t, func(t *testing.T, entries int) { testMountedFileIsGone(t, entries, test) })
		})
	}
}

func testMountedFileIsGone(t *testing.T, entries int, change func(f *fixture)) {
	f := newFixture(t, treetest.Tree{"d/hosts": treetest.File("below"), "d/other": treetest.File("o")})
	f.spill(entries)
	from := filepath.Join(t.TempDir(), "from")
	if err := os.WriteFile(from, []byte("mounted"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(f.dir, "d/hosts")
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
		t.Skip("this user may not mount: ", err)
	}
	unmount := sync.OnceFunc(func() { must(f, unix.Unmount(at, unix.MNT_DETACH)) })
	t.Cleanup(unmount)
	first := f.state(f.snapshot())["d/hosts"]
	unmount()
	change(f)
	for range 2 {
		w := f.snapshot()
		w.wantProblems(t, "d/hosts: open")
		state := f.state(w)
		if e := state["d/hosts"]; e.Size != first.Size || e.Mtime != first.Mtime || e.Flags&backup.Unreadable == 0 || !slices.Equal(e.Content.Refs, first.Content.Refs) {
			t.Errorf("%+v, want %+v", e, first)
		}
		f.wantCounts(w, state)
	}
	f.request.AllowShrink = true
	w := f.snapshot()
	w.wantProblems(t)
	f.wantTree(w)
}

// A mount that is left out may disappear without a report.
func TestMountThatIsLeftOutMayGo(t *testing.T) {
	f := newFixture(t, treetest.Tree{"mnt": treetest.Dir(), "plain/file": treetest.File("p")})
	unmount := treetest.Tmpfs(t, filepath.Join(f.dir, "mnt"))
	f.selection.OneFileSystem = true
	f.source.Inject(faultsource.Fault{Call: faultsource.OpenDirectory, Path: "plain", Do: unmount})
	f.svc.opts.Directories = 1
	w := f.snapshot()
	w.wantProblems(t)
	if _, ok := f.state(w)["plain/file"]; !ok || w.counts.Vanished != 0 {
		t.Errorf("counts %+v", w.counts)
	}
}

// A large directory that was a mount point is kept like any other.
func TestUnmountedLargeDirectory(t *testing.T) {
	f := newMountedFixture(t, merged(files("mnt", 300)))
	f.snapshot()
	f.unmount()
	f.svc.spillEntries = 100
	w := f.snapshot()
	w.wantProblems(t, "mnt: open")
	state := f.state(w)
	if _, below := state["mnt/file-000000"]; below || state["mnt/top"].Kind != backup.File {
		t.Errorf("the snapshot has what is below the mount: %v; top: %+v", below, state["mnt/top"])
	}
}

package walk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
)

// fail injects an error into a call for a path, this many times.
func (f *fixture) fail(call faultsource.Call, path string, errno syscall.Errno, times int) *faultsource.Injected {
	return f.source.Inject(faultsource.Fault{Call: call, Path: path, Times: times, Err: faultsource.Posix(call, errno)})
}

// attempt walks the tasks of a snapshot once each, in slices of this many directories, until no
// task is left that can be walked. It returns why attempts ended, and why the snapshot failed.
func (f *fixture) attempt(s backup.Snapshot, directories int) (ends []error, failed string) {
	f.Helper()
	f.svc.budgets = budgetOf(directories)
	for {
		tasks, err := f.index.ClaimTasks(f.Context(), f.claim(s))
		must(f, err)
		if len(tasks) == 0 {
			return ends, ""
		}
		for i := range tasks {
			err := f.walk(f.Context(), &tasks[i])
			parts := f.take()
			if err != nil {
				ends = append(ends, err)
				continue
			}
			if last := parts[len(parts)-1]; last.Failed != "" {
				return ends, last.Failed
			}
			f.apply(parts...)
		}
	}
}

// A walker that sees another tree at the source, or none, reports nothing of it, neither at the
// root task nor at a later one.
func TestBlindWalker(t *testing.T) {
	blind := map[string]func(f *fixture){
		"an empty directory": func(f *fixture) { must(f, os.Mkdir(f.dir, 0o755)) },
		"another tree":       func(f *fixture) { treetest.Make(f, f.dir, home) },
		"nothing":            func(*fixture) {},
		"no directory":       func(f *fixture) { must(f, os.WriteFile(f.dir, nil, 0o600)) },
		"something mounted over it": func(f *fixture) {
			must(f, os.Rename(f.dir+"-meant", f.dir))
			treetest.Tmpfs(f, f.dir)
		},
	}
	for name, becomeBlind := range blind {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, home)
			f.snapshot()
			s := f.begin()
			f.svc.budgets = budgetOf(1)
			tasks, err := f.index.ClaimTasks(t.Context(), f.claim(s))
			must(t, err)
			root := tasks[0]
			f.rename("", "../shard-meant") // another machine's, on which it is not mounted
			becomeBlind(f)
			child := root
			child.Directories, child.Generation = []string{"ann/mail"}, 1
			for _, test := range []struct {
				task    backup.WalkTask
				attempt int32
				looks   int
				fails   bool
			}{
				{root, 1, 1, false}, {root, 9, rootLooks - 1, false}, {root, 1, rootLooks, true},
				{child, 1, 1, false}, {child, 1, 100, false}, {child, childAttempts, childLooks - 1, false}, {child, childAttempts, childLooks, true},
			} {
				task := &test.task
				task.Attempt = test.attempt
				err := f.look(t.Context(), task, test.looks)
				sent := f.take()
				if !test.fails && (!source.IsOtherTree(err) || len(sent) > 0) {
					t.Errorf("generation %d, look %d at attempt %d: error %v, sent %+v; want that another tree is there",
						task.Generation, test.looks, test.attempt, err, sent)
				}
				if test.fails && (err != nil || len(sent) != 1 || sent[0].Failed == "" || len(sent[0].Pages)+len(sent[0].Removed) > 0) {
					t.Errorf("generation %d, look %d at attempt %d: error %v, sent %+v; want that the snapshot fails",
						task.Generation, test.looks, test.attempt, err, sent)
				}
			}
		})
	}
}

// A snapshot that permits a new root takes it, with its content.
func TestNewRoot(t *testing.T) {
	f := newFixture(t, home)
	f.snapshot()
	f.remove("")
	treetest.Make(t, f.dir, treetest.Tree{"other": treetest.File("x")})
	if _, failed := f.attempt(f.begin(), 1000); failed != "" {
		t.Errorf("the first attempt fails the snapshot: %s", failed)
	}
	running, err := f.index.BeginSnapshot(t.Context(), f.shard.ID, backup.Snapshot{}, f.now)
	if !errors.Is(err, backup.ErrRunning) {
		t.Fatal(err)
	}
	must(t, f.index.Fail(t.Context(), running.ID, "test", f.now))
	f.request.NewRoot = true
	f.wantTree(f.snapshot())
	f.request.NewRoot = false
	f.wantTree(f.snapshot())
}

// If the root has no identity, a directory counts as gone only if another that was seen still
// exists.
func TestGoneWithoutAnIdentity(t *testing.T) {
	for name, test := range map[string]struct {
		directories []string
		gone        bool
	}{
		"alone":              {[]string{"ann"}, false},
		"with one that is":   {[]string{"ann", "bob"}, true},
		"below one that is":  {[]string{"bob/gone"}, true},
		"with one that went": {[]string{"ann", "empty"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, merged(home, treetest.Tree{"bob/gone/file": treetest.File("x")}))
			f.compare = backup.CompareMtime | backup.CompareCtime
			f.snapshot()
			for _, path := range []string{"ann", "empty", "bob/gone"} {
				f.remove(path)
			}
			task := f.rootTask()
			task.Directories, task.Generation, task.Job.Root, task.Job.Compare = test.directories, 1, backup.Root{FileSystem: task.Job.Root.FileSystem}, f.compare
			must(t, f.walk(t.Context(), task))
			var w walked
			w.add(f.take())
			if gone := len(w.removed) > 0; gone != test.gone || (w.counts.Carried > 0) == test.gone || (len(w.problems) > 0) == test.gone {
				t.Errorf("removed %q, carried %d, problems %q", w.removed, w.counts.Carried, w.problems)
			}
		})
	}
}

// If the root has no lasting identity, it is recognized by its content: another file system at its
// path is not treated as one from which everything was deleted.
func TestAnotherTreeWithoutAnIdentity(t *testing.T) {
	other := treetest.Tree{"x": treetest.File("1"), "y/file": treetest.File("2"), "z": treetest.Symlink("x")}
	tests := map[string]struct {
		change  func(f *fixture)
		refused bool
	}{
		"as it was":      {func(*fixture) {}, false},
		"another":        {func(f *fixture) { f.replaceAll(other) }, true},
		"another, large": {func(f *fixture) { f.replaceAll(files("", 700)) }, true},
		"an empty one":   {func(f *fixture) { f.replaceAll(nil) }, true},
		// A remounted vfat looks like this.
		"another of the same": {func(f *fixture) { f.replaceAll(mine()) }, false},
		"other kinds": {func(f *fixture) {
			f.replaceAll(treetest.Tree{"ann": treetest.File(""), "zoe": treetest.Dir()})
		}, true},
		"all but one are others": {func(f *fixture) {
			f.rename("zoe", "../zoe")
			f.replaceAll(other)
			f.rename("../zoe", "zoe")
		}, false},
		"all have other names": {func(f *fixture) {
			f.rename("ann", "../last")
			f.replaceAll(nil)
			f.rename("../last", "last")
		}, true},
		"excluded":     {func(f *fixture) { f.selection.Exclude = []string{"ann", "zoe", "many-*"}; f.replaceAll(other) }, false},
		"allow shrink": {func(f *fixture) { f.request.AllowShrink = true; f.replaceAll(other) }, false},
		"new root":     {func(f *fixture) { f.request.NewRoot = true; f.replaceAll(other) }, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			inMemoryAndSpilled(t, func(t *testing.T, entries int) {
				f := newFixture(t, mine())
				f.spill(entries)
				if w := f.snapshot(); len(w.pages) < 3 {
					t.Fatalf("%d pages of two directories, want several of the root", len(w.pages))
				}
				test.change(f)
				f.wantRefused(test.refused)
			})
		})
	}
}

// mine returns a tree whose root has several pages.
func mine() treetest.Tree {
	tree := treetest.Tree{"ann/file": treetest.File("a"), "zoe": treetest.File("z")}
	for i := range 520 {
		tree[fmt.Sprintf("many-%0200d", i)] = treetest.File("")
	}
	return tree
}

// replaceAll replaces the content of the root directory, but not the directory.
func (f *fixture) replaceAll(tree treetest.Tree) {
	f.Helper()
	was, err := os.ReadDir(f.dir)
	must(f, err)
	treetest.Make(f, f.dir+"-new", tree) // while the old inodes are in use
	for _, e := range was {
		f.remove(e.Name())
	}
	entries, err := os.ReadDir(f.dir + "-new")
	must(f, err)
	for _, e := range entries {
		f.rename("../"+filepath.Base(f.dir)+"-new/"+e.Name(), e.Name())
	}
}

// wantRefused walks the root of a tree whose inode number alone is known, and checks whether it is
// refused.
func (f *fixture) wantRefused(refused bool) {
	f.Helper()
	task := f.rootTask()
	task.Job.Compare, task.Job.Root = f.compare, backup.Root{FileSystem: task.Job.Root.FileSystem, Inode: task.Job.Root.Inode}
	err := f.walk(f.Context(), task)
	if got := source.IsOtherTree(err); got != refused || !refused && err != nil {
		f.Fatalf("error %v, want that another tree is there: %v", err, refused)
	}
	if sent := f.take(); !refused || len(sent) > 0 {
		if refused || len(sent) == 0 || sent[0].Failed != "" {
			f.Errorf("sent %+v", sent)
		}
		return
	}
	f.svc.opts.Alone = true
	must(f, f.walk(f.Context(), task))
	if sent := f.take(); len(sent) != 1 || !strings.Contains(sent[0].Failed, "use --new-root or --allow-shrink") || len(sent[0].Pages)+len(sent[0].Removed) > 0 {
		f.Errorf("sent %+v, want that the snapshot fails", sent)
	}
}

// A directory with a stale handle is opened again before anything is reported.
func TestStaleDirectory(t *testing.T) {
	for _, call := range []faultsource.Call{faultsource.OpenDirectory, faultsource.StatDirectory, faultsource.List} {
		f := newFixture(t, treetest.Tree{"ann/mail/2": treetest.File("two"), "ann/mail/old/0": treetest.File("zero")})
		f.snapshot()
		f.write("ann/mail/2", "two more")
		f.fail(call, "ann/mail", unix.ESTALE, 1)
		w := f.snapshot()
		w.wantProblems(t)
		f.wantTree(w)
		always := f.fail(call, "ann/mail", unix.ESTALE, 0)
		w = f.snapshot()
		if len(w.problems) != 1 || !strings.HasPrefix(w.problems[0], "ann/mail: ") {
			t.Errorf("%s: problems %q", call, w.problems)
		}
		if e, ok := f.state(w)["ann/mail/2"]; !ok || !slices.Equal(e.Content.Refs, contentOf(&e).Refs) {
			t.Errorf("%s: %+v, want the last good copy", call, e)
		}
		always.Lift()
		w = f.snapshot()
		w.wantProblems(t)
		f.wantTree(w)
	}
}

// An entry that vanishes while it is read with stat is left out and counted, and nothing else.
func TestVanishedIsCounted(t *testing.T) {
	f := newFixture(t, home)
	f.fail(faultsource.StatEntry, "ann/notes", unix.ENOENT, 1)
	f.fail(faultsource.ReadLink, "bob/photos/link", unix.ENOENT, 1)
	f.fail(faultsource.EntryXattrs, "bob/pipe", unix.ENOENT, 1)
	w := f.snapshot()
	w.wantProblems(t)
	if c := w.counts; c.Vanished != 3 || c.Errors != 0 || c.Carried != 0 || c.Files != 8-3 {
		t.Errorf("counts %+v", c)
	}
	state := f.state(w)
	for _, path := range []string{"ann/notes", "bob/photos/link", "bob/pipe"} {
		if e, ok := state[path]; ok {
			t.Errorf("%s is in the snapshot: %+v", path, e)
		}
	}
	w = f.snapshot()
	if w.counts.Vanished != 0 || w.counts.Files != 8 {
		t.Errorf("counts %+v of the next snapshot", w.counts)
	}
}

// Unreadable extended attributes are reported, keep the last good copy, and are read again although
// nothing else has changed.
func TestXattrsUnreadable(t *testing.T) {
	for _, test := range []struct {
		call  faultsource.Call
		asked string // by its source
		path  string // in the snapshot
	}{
		{faultsource.DirectoryXattrs, "ann/mail", "ann/mail/"}, {faultsource.EntryXattrs, "bob/photos/link", "bob/photos/link"}, {faultsource.DirectoryXattrs, "", "/"},
	} {
		t.Run(test.path, func(t *testing.T) {
			f := newFixture(t, home)
			const attribute = "trusted.test" // also of symlinks
			set := func(value string) {
				if err := unix.Lsetxattr(filepath.Join(f.dir, test.asked), attribute, []byte(value), 0); err != nil {
					t.Skip("not tested: ", err)
				}
			}
			set("good")
			f.snapshot()
			set("better")
			for _, times := range []int{1, 1} {
				f.fail(test.call, test.asked, unix.EIO, times)
				w := f.snapshot()
				w.wantProblems(t, strings.TrimSuffix(test.asked, "/")+": xattr")
				if e := f.state(w)[test.path]; e.Flags != backup.XattrsUnreadable || len(e.Xattrs) != 1 || string(e.Xattrs[0].Value) != "good" {
					t.Errorf("%+v, want the attribute of the last good copy, flagged", e)
				}
			}
			w := f.snapshot()
			w.wantProblems(t)
			if e := f.state(w)[test.path]; e.Flags != 0 || len(e.Xattrs) != 1 || string(e.Xattrs[0].Value) != "better" {
				t.Errorf("%+v, want what is there now", e)
			}
			again := f.snapshot()
			again.wantPages(t)
		})
	}
}

// A shortage of resources on this machine ends the attempt, and is not attributed to an entry.
func TestShortOfSomething(t *testing.T) {
	for call, path := range map[faultsource.Call]string{
		faultsource.OpenDirectory: "ann", faultsource.List: "ann", faultsource.StatEntry: "ann/notes", faultsource.ReadLink: "bob/photos/link",
		faultsource.DirectoryXattrs: "ann", faultsource.EntryXattrs: "bob/pipe", faultsource.OpenRoot: "",
	} {
		for _, errno := range []syscall.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS} {
			f := newFixture(t, home)
			task := f.rootTask()
			f.fail(call, path, errno, 1)
			if err := f.walk(t.Context(), task); err == nil || source.IsOtherTree(err) || !source.IsTransient(err) {
				t.Errorf("%s: %v: error %v", call, errno, err)
			}
			for _, m := range f.take() {
				if m.Last {
					t.Errorf("%s: %v: sent %+v", call, errno, m)
				}
			}
		}
	}
}

// The clock of a file server may be behind this machine's: an entry that has just changed may have
// a time that looks old, and is looked at again.
func TestRacyByTheTreesClock(t *testing.T) {
	f := newFixture(t, treetest.Tree{"old/file": treetest.File("o").WithMtime(longAgo)})
	f.compare = backup.CompareMtime // a time that tests can set
	lag, skew := time.Minute, time.Second
	f.source.SetClock(func() (time.Time, time.Duration) { return f.now.Add(-lag), skew })
	stamp := func(path string, at time.Time) {
		treetest.Make(t, f.dir, treetest.Tree{path: treetest.File("x").WithMtime(at)})
		must(t, os.Chtimes(filepath.Join(f.dir, filepath.Dir(path)), longAgo, longAgo))
	}
	stamp("just/file", f.now.Add(-lag-skew)) // as the file server stamps it now
	stamp("before/file", f.now.Add(-lag-skew-time.Millisecond))
	must(t, os.Chtimes(f.dir, longAgo, longAgo))
	state := f.state(f.snapshot())
	for path, want := range map[string]backup.Flags{"just/file": backup.Racy, "before/file": 0, "old/file": 0} {
		if got := state[path].Flags; got != want {
			t.Errorf("%s has the flags %b, want %b", path, got, want)
		}
	}
	if w := f.snapshot(); !slices.Equal(w.wanted(t), []string{"just/file"}) {
		t.Errorf("to read %q", w.wanted(t))
	}
}

// Device numbers change from boot to boot: files on them are not read again, and hard links are
// still recognized.
func TestDevicesChangeNumbers(t *testing.T) {
	f := newFixture(t, treetest.Tree{"a": treetest.Dir(), "b": treetest.Dir()})
	at := func(name string) string { return filepath.Join(f.dir, name) }
	images := map[string]string{"a": filepath.Join(t.TempDir(), "a"), "b": filepath.Join(t.TempDir(), "b")}
	for name, image := range images {
		treetest.Ext4(t, image)
		unmount := treetest.Attach(t, image, at(name))
		treetest.Make(t, at(name), treetest.Tree{"file": treetest.File("of " + name), "link": treetest.HardLink("file")})
		must(t, os.RemoveAll(filepath.Join(at(name), "lost+found")))
		unmount()
	}
	devices := func(first, second string) (numbers [2]uint64, unmount func()) {
		one := treetest.Attach(t, images[first], at(first))
		two := treetest.Attach(t, images[second], at(second))
		for i, name := range []string{"a", "b"} {
			var st unix.Stat_t
			must(t, unix.Stat(at(name), &st))
			numbers[i] = st.Dev
		}
		return numbers, func() { one(); two() }
	}
	before, unmount := devices("a", "b")
	first := f.state(f.snapshot())
	unmount()
	after, _ := devices("b", "a")
	if before[0] != after[1] || before[1] != after[0] {
		t.Logf("devices %v became %v, and were to be exchanged", before, after)
	}
	if before == after {
		t.Skip("the devices have the numbers that they had")
	}
	w := f.snapshot()
	w.wantPages(t)
	second := f.state(w)
	for path, e := range first {
		if e.Device != 0 || second[path].Inode != e.Inode || !slices.Equal(second[path].Content.Refs, e.Content.Refs) {
			t.Errorf("%s: %+v became %+v", path, e, second[path])
		}
	}
	if second["a/file"].Inode != second["b/file"].Inode {
		t.Log("the file systems have other inodes: the test shows less than it might")
	}
}

// A root that could be read before, and now cannot be, is left to other walkers: the permission may
// be missing only for this one.
func TestRootThatIsRefused(t *testing.T) {
	for _, call := range []faultsource.Call{faultsource.OpenDirectory, faultsource.List} {
		f := newFixture(t, home)
		task := f.rootTask()
		refused := f.fail(call, "", unix.EACCES, 0)
		must(t, f.walk(t.Context(), task))
		if sent := f.take(); len(sent) != 1 || !strings.Contains(sent[0].Failed, "permission denied") {
			t.Errorf("%s: sent %+v, want that the first snapshot fails", call, sent)
		}
		must(t, f.index.Fail(t.Context(), task.Job.Snapshot, "test", f.now))
		refused.Lift()
		f.snapshot()
		task = f.rootTask()
		f.fail(call, "", unix.EACCES, 0)
		if err := f.walk(t.Context(), task); !source.IsOtherTree(err) || len(f.take()) > 0 {
			t.Errorf("%s: error %v, want that another walker tries", call, err)
		}
		must(t, f.look(t.Context(), task, rootLooks))
		if sent := f.take(); len(sent) != 1 || !strings.Contains(sent[0].Failed, "permission denied") {
			t.Errorf("%s: sent %+v, want that the snapshot fails", call, sent)
		}
	}
}

// If Check fails while a slice is walked, nothing of it is sent.
func TestRootIsCheckedBeforeAResultIsSent(t *testing.T) {
	f := newFixture(t, home)
	f.snapshot()
	task := f.rootTask()
	f.write("readme", "changed")
	fault := f.source.Inject(faultsource.Fault{Call: faultsource.Check, Err: &source.OtherTreeError{What: "another"}})
	if err := f.walk(t.Context(), task); !source.IsOtherTree(err) || len(f.take()) > 0 || fault.Happened() == 0 {
		t.Errorf("error %v", err)
	}
	fault.Lift()
	f.fail(faultsource.Check, "", unix.EIO, 0)
	if err := f.walk(t.Context(), task); !errors.Is(err, backup.ErrUnavailable) || source.IsOtherTree(err) || len(f.take()) > 0 {
		t.Errorf("error %v", err)
	}
}

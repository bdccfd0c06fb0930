package walk

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/treetest"
)

var home = treetest.Tree{
	"ann/notes":       treetest.File("notes"),
	"ann/mail/1":      treetest.File("one"),
	"ann/mail/2":      treetest.File("two"),
	"ann/mail/old/0":  treetest.File("zero"),
	"bob/photos/a":    treetest.File("a"),
	"bob/photos/link": treetest.Symlink("../../ann/notes"),
	"bob/pipe":        treetest.FIFO(),
	"empty":           treetest.Dir(),
	"readme":          treetest.File("read me"),
}

// The first snapshot has everything; the next one of an unchanged tree has nothing, and costs one
// stat per entry.
func TestUnchanged(t *testing.T) {
	tree := merged(home)
	delete(tree, "bob/pipe") // WalkDir's comparison knows three kinds
	f := newFixture(t, tree)
	files, directories := f.entries()
	first := f.snapshot()
	f.wantTree(first)
	second := f.snapshot()
	f.wantTree(second)
	second.wantPages(t)
	if len(second.parts) != 1 || second.batches+second.children+len(second.ended)+len(second.removed) > 0 {
		t.Errorf("an unchanged tree gives %+v", second.parts)
	}
	for _, w := range []walked{first, second} {
		w.wantProblems(t)
		if c := w.counts; c.StatCalls != files+directories || c.Files != files || c.Directories != directories || c.Bytes != 5+3+3+4+1+7 {
			t.Errorf("counts %+v of %d files in %d directories", c, files, directories)
		}
	}
	if first.counts.FilesNew != files || second.counts.FilesUnchanged != files {
		t.Errorf("%d new, then %d unchanged files, want %d", first.counts.FilesNew, second.counts.FilesUnchanged, files)
	}
}

func TestOneChangedFile(t *testing.T) {
	f := newFixture(t, home)
	f.snapshot()
	f.write("ann/mail/2", "two more")
	w := f.snapshot()
	w.wantPages(t, "ann/mail")
	if got := w.wanted(t); !slices.Equal(got, []string{"ann/mail/2"}) || w.batches != 1 {
		t.Errorf("%d batches to read %q", w.batches, got)
	}
	if c := w.counts; c.FilesChanged != 1 || c.FilesNew != 0 || c.FilesUnchanged != 7 {
		t.Errorf("counts %+v", c)
	}
}

// Changes in the tree, and what a snapshot then sends.
func TestChanges(t *testing.T) {
	for _, test := range []struct {
		name    string
		change  func(f *fixture)
		pages   []string
		removed []string
		wanted  []string
	}{
		{"a file is removed", func(f *fixture) { f.remove("ann/notes") }, []string{"ann"}, nil, nil},
		{"an empty directory is removed", func(f *fixture) { f.remove("empty") }, []string{""}, []string{"empty"}, nil},
		{"a subtree is removed", func(f *fixture) { f.remove("ann/mail") }, []string{"ann"}, []string{"ann/mail"}, nil},
		{"everything is removed", func(f *fixture) { f.remove("ann"); f.remove("bob"); f.remove("empty"); f.remove("readme") },
			[]string{""}, []string{"ann", "bob", "empty"}, nil},
		{"a directory becomes a file", func(f *fixture) { f.remove("ann/mail"); f.write("ann/mail", "now a file") },
			[]string{"ann"}, []string{"ann/mail"}, []string{"ann/mail"}},
		{"a file becomes a directory", func(f *fixture) {
			f.remove("readme")
			treetest.Make(f, f.dir, treetest.Tree{"readme/first": treetest.File("1")})
		}, []string{"", "readme"}, nil, []string{"readme/first"}},
		{"a directory is replaced by a link", func(f *fixture) {
			f.remove("ann/mail")
			must(f, os.Symlink("/etc", filepath.Join(f.dir, "ann/mail")))
		}, []string{"ann"}, []string{"ann/mail"}, nil},
		{"a directory is renamed", func(f *fixture) { f.rename("ann/mail", "ann/post") },
			[]string{"ann", "ann/post", "ann/post/old"}, []string{"ann/mail"}, nil},
		{"a directory moves elsewhere", func(f *fixture) { f.rename("ann/mail", "bob/mail") },
			[]string{"ann", "bob", "bob/mail", "bob/mail/old"}, []string{"ann/mail"}, nil},
		{"a directory moves, and one of its files changes", func(f *fixture) { f.rename("ann/mail", "mail"); f.write("mail/1", "changed") },
			[]string{"", "ann", "mail", "mail/old"}, []string{"ann/mail"}, []string{"mail/1"}},
		{"a mode changes", func(f *fixture) { must(f, os.Chmod(filepath.Join(f.dir, "empty"), 0o700)) }, []string{"empty"}, nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree := merged(home)
			delete(tree, "bob/pipe")
			f := newFixture(t, tree)
			f.snapshot()
			test.change(f)
			w := f.snapshot()
			w.wantPages(t, test.pages...)
			w.wantRemoved(t, test.removed...)
			if got := w.wanted(t); !slices.Equal(got, test.wanted) {
				t.Errorf("to read %q, want %q", got, test.wanted)
			}
			f.wantTree(w)
			again := f.snapshot()
			again.wantPages(t)
		})
	}
}

// An entry that changed within the clock's granularity before the snapshot began is looked at again
// by the next.
func TestRacy(t *testing.T) {
	f := newFixture(t, treetest.Tree{"calm/file": treetest.File("c"), "racy/file": treetest.File("r")})
	f.now = changed(t, filepath.Join(f.dir, "racy/file")).Add(posix.DefaultGrain)
	w := f.snapshot()
	for _, p := range w.pages {
		if zero := p.Fingerprint == (backup.Fingerprint{}); zero != (p.Path == "racy" || !changed(t, filepath.Join(f.dir, p.Path)).Before(f.now.Add(-time.Hour-posix.DefaultGrain))) {
			t.Errorf("page of %q: fingerprint %x", p.Path, p.Fingerprint)
		}
	}
	if e := f.state(w)["racy/file"]; e.Flags.WithClass(0) != backup.Racy {
		t.Errorf("flags %v of a racy file", e.Flags)
	}
	second := f.snapshot()
	if got := second.wanted(t); !slices.Contains(got, "racy/file") {
		t.Errorf("to read %q, without the racy file", got)
	}
	if e := f.state(second)["racy/file"]; e.Flags.WithClass(0) != 0 {
		t.Errorf("flags %v of a file that was racy", e.Flags)
	}
	third := f.snapshot()
	third.wantPages(t)
	// If the clock was set back, everything is racy, and nothing is lost.
	f.now = f.now.Add(-24 * time.Hour)
	back := f.snapshot()
	if e := f.state(back)["calm/file"]; e.Flags != backup.Racy {
		t.Errorf("flags %v of a file that changed after the snapshot's start", e.Flags)
	}
}

// changed returns the ctime of a path.
func changed(t testing.TB, path string) time.Time {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return time.Unix(st.Ctim.Sec, st.Ctim.Nsec)
}

func TestExclusion(t *testing.T) {
	for _, test := range []struct {
		name      string
		selection backup.Selection
		want      []string // entries, without directories' own
	}{
		{"pattern", backup.Selection{Exclude: []string{"*.tmp", "/cache/"}}, []string{"big", "keep", "keep/.skip", "keep/file"}},
		{"larger than", backup.Selection{ExcludeLargerBytes: 99}, []string{"a.tmp", "cache", "cache/file", "keep", "keep/.skip", "keep/file"}},
		{"if present", backup.Selection{ExcludeIfPresent: []string{".skip"}}, []string{"a.tmp", "big", "cache", "cache/file", "keep"}},
		{"if present, and itself excluded", backup.Selection{ExcludeIfPresent: []string{".skip"}, Exclude: []string{".*"}},
			[]string{"a.tmp", "big", "cache", "cache/file", "keep"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, treetest.Tree{
				"a.tmp": treetest.File("x"), "big": treetest.Sparse(100), "cache/file": treetest.File("x"),
				"keep/.skip": treetest.File(""), "keep/file": treetest.File("x"),
			})
			f.snapshot()
			f.selection = test.selection
			state := f.state(f.snapshot())
			var got []string
			for path := range state {
				if path[len(path)-1] != '/' {
					got = append(got, path)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, test.want) {
				t.Errorf("snapshot has %q, want %q", got, test.want)
			}
			f.selection = backup.Selection{}
			f.wantTree(f.snapshot())
		})
	}
}

// Mount points in the shard are kept, empty.
func TestOneFileSystem(t *testing.T) {
	f := newFixture(t, treetest.Tree{"mnt/below": treetest.File("x"), "mnt/sub/file": treetest.File("x"), "file": treetest.File("x")})
	f.snapshot()
	mnt := filepath.Join(f.dir, "mnt")
	if err := unix.Mount("bctl-test", mnt, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(mnt, unix.MNT_DETACH)) })
	f.write("mnt/mounted", "m")
	f.selection = backup.Selection{OneFileSystem: true}
	w := f.snapshot()
	w.wantRemoved(t, "mnt/sub")
	state := f.state(w)
	for _, path := range []string{"mnt/mounted", "mnt/below", "mnt/sub/"} {
		if _, ok := state[path]; ok {
			t.Errorf("%q is in the snapshot", path)
		}
	}
	if e, ok := state["mnt/"]; !ok || e.Kind != backup.Directory {
		t.Errorf("the mount point is not in the snapshot: %+v", e)
	}
	f.selection = backup.Selection{}
	f.wantTree(f.snapshot())
}

// The same holds for a bind mount of a part of the same file system. A mounted file is always left
// out, even if it is on the same file system.
func TestOneFileSystemLeavesOutBindMounts(t *testing.T) {
	inMemoryAndSpilled(t, func(t *testing.T, spillEntries int) {
		f := newFixture(t, treetest.Tree{
			"a/file": treetest.File("a"), "mnt/below": treetest.File("b"), "d/hosts": treetest.File(""), "d/other": treetest.File(""), "d/plain": treetest.File("p"),
		})
		f.svc.spillEntries = spillEntries
		f.snapshot()
		elsewhere := t.TempDir()
		treetest.Tmpfs(t, elsewhere)
		treetest.Make(t, elsewhere, treetest.Tree{"hosts": treetest.File("of another file system")})
		treetest.Bind(t, filepath.Join(f.dir, "a"), filepath.Join(f.dir, "mnt"))
		treetest.Bind(t, filepath.Join(f.dir, "a/file"), filepath.Join(f.dir, "d/other"))
		treetest.Bind(t, filepath.Join(elsewhere, "hosts"), filepath.Join(f.dir, "d/hosts"))
		f.selection.OneFileSystem = true
		w := f.snapshot()
		w.wantProblems(t)
		state := f.state(w)
		f.wantCounts(w, state)
		for path, want := range map[string]bool{
			"a/file": true, "d/plain": true, "mnt/": true, "mnt/file": false, "mnt/below": false, "d/hosts": false, "d/other": false,
		} {
			if _, is := state[path]; is != want {
				t.Errorf("%s is in the snapshot: %v", path, is)
			}
		}
		f.selection = backup.Selection{}
		w = f.snapshot()
		w.wantProblems(t)
		f.wantTree(w)
	})
}

// A large directory has several pages: one new name changes one or two of them, and pages that no
// longer exist are ended.
func TestPages(t *testing.T) {
	f := newFixture(t, merged(files("large", 5000), treetest.Tree{"large/sub/file": treetest.File("x")}))
	first := f.snapshot()
	if n := len(first.pages) - 2; n < 3 {
		t.Fatalf("%d pages of a large directory", n)
	}
	f.write("large/file-002500x", "new")
	w := f.snapshot()
	// The first, with the directory's own attributes, and the one with the name.
	if n := len(w.pages); n > 3 {
		t.Errorf("%d pages changed by one new file", n)
	}
	if got := w.wanted(t); !slices.Equal(got, []string{"large/file-002500x"}) {
		t.Errorf("to read %q", got)
	}
	f.wantTree(w)
	for i := range 4990 {
		f.remove(fmt.Sprintf("large/file-%06d", i))
	}
	w = f.snapshot()
	if len(w.ended) == 0 || len(w.wanted(t)) > 0 {
		t.Errorf("%d pages ended, to read %q", len(w.ended), w.wanted(t))
	}
	f.wantTree(w)
}

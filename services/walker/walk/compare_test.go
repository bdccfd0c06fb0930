package walk

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/treetest"
)

var longAgo = time.Date(2020, 1, 2, 3, 4, 5, 6, time.UTC)

// replace replaces a file by another with the same size and mtime; the directory keeps its own.
func (f *fixture) replace(path, content string) {
	f.Helper()
	dir := filepath.Dir(filepath.Join(f.dir, path))
	info, err := os.Stat(dir)
	must(f, err)
	f.write(path+".new", content)
	must(f, os.Chtimes(filepath.Join(f.dir, path+".new"), longAgo, longAgo))
	f.rename(path+".new", path)
	must(f, os.Chtimes(dir, info.ModTime(), info.ModTime()))
}

// Changes, and what is sent and read again for them, by the compared attributes.
func TestCompare(t *testing.T) {
	touched := func(f *fixture) { f.chmod(0o600, "d/file"); f.chmod(0o644, "d/file") }
	replaced := func(f *fixture) { f.replace("d/file", "FILE") }
	rewritten := func(f *fixture) { f.write("d/file", "FILE") }
	for _, test := range []struct {
		name   string
		change func(f *fixture)
		by     backup.Compare
		pages  []string
		wanted []string
	}{
		{"touched, all", touched, 0, []string{"d"}, []string{"d/file"}},
		{"touched, mtime", touched, backup.CompareMtime, nil, nil},
		{"touched, mtime and inode", touched, backup.CompareMtime | backup.CompareInode, nil, nil},
		{"touched, ctime", touched, backup.CompareCtime, []string{"d"}, []string{"d/file"}},
		{"replaced, mtime", replaced, backup.CompareMtime, nil, nil},
		{"replaced, mtime and inode", replaced, backup.CompareMtime | backup.CompareInode, []string{"d"}, []string{"d/file"}},
		{"replaced, mtime and ctime", replaced, backup.CompareMtime | backup.CompareCtime, []string{"d"}, []string{"d/file"}},
		{"rewritten, mtime", rewritten, backup.CompareMtime, []string{"d"}, []string{"d/file"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, treetest.Tree{"d/file": treetest.File("file").WithMtime(longAgo), "e/file": treetest.File("file")})
			f.compare = test.by
			f.snapshot()
			test.change(f)
			w := f.snapshot()
			w.wantPages(t, test.pages...)
			if got := w.wanted(t); !slices.Equal(got, test.wanted) {
				t.Errorf("to read %q, want %q", got, test.wanted)
			}
			again := f.snapshot()
			again.wantPages(t)
		})
	}
}

// With a different choice each page is stored again, and nothing is read.
func TestCompareChanges(t *testing.T) {
	f := newFixture(t, treetest.Tree{"d/file": treetest.File("file")})
	f.snapshot()
	for _, by := range []backup.Compare{backup.CompareMtime, backup.CompareMtime | backup.CompareInode, 0} {
		f.compare = by
		w := f.snapshot()
		w.wantPages(t, "", "d")
		if got := w.wanted(t); len(got) > 0 {
			t.Errorf("compared by %v: to read %q", by, got)
		}
		f.wantTree(w)
	}
}

// The inode determines which names are one file, in every comparison mode.
func TestCompareKeepsHardlinks(t *testing.T) {
	f := newFixture(t, treetest.Tree{
		"a/one": treetest.File("same").WithMtime(longAgo), "b/two": treetest.HardLink("a/one"), "c/single": treetest.File("same").WithMtime(longAgo),
	})
	f.compare = backup.CompareMtime
	f.snapshot()
	f.replace("a/one", "same")
	f.replace("c/single", "same")
	f.remove("b/two")
	must(t, os.Link(filepath.Join(f.dir, "a/one"), filepath.Join(f.dir, "b/two")))
	must(t, os.Chtimes(filepath.Join(f.dir, "b"), longAgo, longAgo))
	w := f.snapshot()
	w.wantPages(t, "a", "b")
	if got := w.wanted(t); len(got) > 0 {
		t.Errorf("to read %q", got)
	}
	state := f.state(w)
	if one, two := state["a/one"], state["b/two"]; one.Inode != two.Inode || one.Nlink != 2 || two.Nlink != 2 {
		t.Errorf("links of inodes %d and %d", one.Inode, two.Inode)
	}
}

// If inodes are not compared, a directory is not identified with an earlier one that had its inode.
func TestCompareWithoutInodeMovesNothing(t *testing.T) {
	f := newFixture(t, treetest.Tree{"d/file": treetest.File("file").WithMtime(longAgo)})
	f.compare = backup.CompareMtime
	f.snapshot()
	f.rename("d", "e")
	if w := f.snapshot(); !slices.Equal(w.wanted(t), []string{"e/file"}) {
		t.Errorf("to read %q", w.wanted(t))
	}
	f.compare = backup.CompareMtime | backup.CompareInode
	f.snapshot()
	f.rename("e", "f")
	if w := f.snapshot(); len(w.wanted(t)) > 0 {
		t.Errorf("to read %q", w.wanted(t))
	}
}

// Without ctime, racy entries are determined by mtime.
func TestRacyByMtime(t *testing.T) {
	f := newFixture(t, treetest.Tree{"calm": treetest.File("c").WithMtime(longAgo), "racy": treetest.File("r")})
	f.compare = backup.CompareMtime
	must(t, os.Chtimes(filepath.Join(f.dir, "racy"), f.now, f.now))
	state := f.state(f.snapshot())
	if calm, racy := state["calm"], state["racy"]; calm.Flags != 0 || racy.Flags != backup.Racy {
		t.Errorf("flags %v of a calm file, %v of a racy one", calm.Flags, racy.Flags)
	}
	if w := f.snapshot(); !slices.Equal(w.wanted(t), []string{"racy"}) {
		t.Errorf("to read %q", w.wanted(t))
	}
	w := f.snapshot()
	w.wantPages(t)
}

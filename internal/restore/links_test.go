package restore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// The result for hardlinked names if the first of them cannot be restored, and if the target has
// another file of that name.
func TestHardlinks(t *testing.T) {
	f := newFixture(t)
	names := func(content string, inode uint64, names ...string) (entries []backup.Entry) {
		for _, name := range names {
			e := f.file(name, content)
			e.Nlink, e.Inode = 3, inode
			entries = append(entries, e)
		}
		return entries
	}
	bad := names("lost", 2, "x", "y", "z")
	for i := range bad {
		bad[i].Content.Refs = []backup.Ref{{Chunk: backup.ChunkID{1}, Length: 4, Span: 4}}
	}
	f.directory("", append(names("linked", 1, "a", "b", "c"), bad...)...)
	target := t.TempDir()
	write(t, filepath.Join(target, "b"), "linked", testTime)
	sum, obs := f.restore(Options{Target: target})
	obs.wantProblems(t, "x", "y", "z")
	wantNames(t, target, "a", "b", "c")
	wantGroups(t, target, "a b c")
	if sum.Links != 2 || sum.Files != 1 {
		t.Errorf("%+v", sum)
	}
	sum, _ = f.restore(Options{Target: target})
	if sum.Kept != 3 {
		t.Errorf("second restore: %+v", sum)
	}
}

// wantGroups checks which names are one file. Each group is a list of paths.
func wantGroups(t *testing.T, target string, groups ...string) {
	t.Helper()
	byInode := map[uint64][]string{}
	err := filepath.WalkDir(target, func(path string, d os.DirEntry, err error) error {
		check(t, err)
		if !d.IsDir() {
			st := stat(t, path)
			rel, err := filepath.Rel(target, path)
			check(t, err)
			byInode[st.Ino] = append(byInode[st.Ino], rel)
		}
		return nil
	})
	check(t, err)
	var got []string
	for _, paths := range byInode {
		slices.Sort(paths)
		got = append(got, strings.Join(paths, " "))
	}
	slices.Sort(got)
	slices.Sort(groups)
	if !slices.Equal(got, groups) {
		t.Errorf("files %q, want %q", got, groups)
	}
}

// Names of one inode are one file only if all attributes of the file agree.
func TestNamesThatDoNotAgree(t *testing.T) {
	needRoot(t)
	for what, change := range map[string]func(f *fixture, e *backup.Entry){
		"inode":   func(_ *fixture, e *backup.Entry) { e.Inode++ },
		"kind":    func(_ *fixture, e *backup.Entry) { e.Kind, e.Content, e.Size = backup.FIFO, backup.Content{}, 0 },
		"content": func(f *fixture, e *backup.Entry) { e.Content.Refs = []backup.Ref{f.chunk([]byte("CONTENT"), 0)} },
		"size": func(f *fixture, e *backup.Entry) {
			e.Size, e.Content.Refs = 3, []backup.Ref{f.chunk([]byte("con"), 0)}
		},
		"hole": func(f *fixture, e *backup.Entry) {
			e.Content.Refs, e.Size = []backup.Ref{f.chunk([]byte("tent"), 3)}, 7
		},
		"hole at the end": func(_ *fixture, e *backup.Entry) { e.Size += 10 },
		"mode":            func(_ *fixture, e *backup.Entry) { e.Mode = 0o600 },
		"uid":             func(_ *fixture, e *backup.Entry) { e.UID = 4242 },
		"gid":             func(_ *fixture, e *backup.Entry) { e.GID = 4242 },
		"mtime":           func(_ *fixture, e *backup.Entry) { e.Mtime.Nsec++ },
		"btime":           func(_ *fixture, e *backup.Entry) { e.Btime.Sec++ },
		"xattrs":          func(_ *fixture, e *backup.Entry) { e.Xattrs = []backup.Xattr{xattr("user.a", "other")} },
		"xattrs in a chunk": func(f *fixture, e *backup.Entry) {
			e.Xattrs, e.XattrChunk = nil, f.xattrs(xattr("user.a", "other"))
		},
		"no xattrs":           func(_ *fixture, e *backup.Entry) { e.Xattrs = nil },
		"a mount of its own":  func(_ *fixture, e *backup.Entry) { e.Flags |= backup.Boundary },
		"content in a list":   func(f *fixture, e *backup.Entry) { e.Content = f.list(1, f.chunk([]byte("content"), 0)) },
		"content never read":  func(_ *fixture, e *backup.Entry) { e.Flags |= backup.Unreadable | backup.ContentMissing },
		"content to be read":  func(_ *fixture, e *backup.Entry) { e.Flags |= backup.Wanted },
		"a target of symlink": func(_ *fixture, e *backup.Entry) { *e = linkLike(e, "elsewhere") },
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t)
			var entries []backup.Entry
			for i, name := range []string{"a", "b", "c", "d"} {
				e := f.file(name, "content")
				e.Nlink, e.Inode, e.Xattrs = 4, 99, []backup.Xattr{xattr("user.a", "1")}
				e.Btime = backup.Time{Sec: 1_500_000_000}
				if i == 1 || i == 3 {
					change(f, &e)
				}
				entries = append(entries, e)
			}
			f.directory("", entries...)
			model := f.separately(entries)
			target := t.TempDir()
			// Into a new target, again, and into one in which all names were one file.
			for range 3 {
				f.restore(Options{Target: target})
				switch what {
				case "content never read", "content to be read":
					wantGroups(t, target, "a c")
					return
				case "a mount of its own":
					wantGroups(t, target, "a c", "b", "d")
				default:
					wantGroups(t, target, "a c", "b d")
				}
				wantEqualFiles(t, model, target)
				for _, name := range []string{"b", "c", "d"} {
					check(t, os.Remove(filepath.Join(target, name)))
					check(t, os.Link(filepath.Join(target, "a"), filepath.Join(target, name)))
				}
			}
		})
	}
}

// The same holds for special files.
func TestSpecialNamesThatDoNotAgree(t *testing.T) {
	needRoot(t)
	fifo, device, link := entry("", backup.FIFO), entry("", backup.CharDev), symlink("", "x")
	device.Rdev, link.Mode = unix.Mkdev(1, 3), 0o777
	for what, test := range map[string]struct {
		e      backup.Entry
		change func(e *backup.Entry)
	}{
		"kind":   {fifo, func(e *backup.Entry) { e.Kind = backup.Socket }},
		"device": {device, func(e *backup.Entry) { e.Rdev = unix.Mkdev(1, 5) }},
		"type":   {device, func(e *backup.Entry) { e.Kind = backup.BlockDev }},
		"target": {link, func(e *backup.Entry) { e.Target = "y" }},
	} {
		f := newFixture(t)
		var entries []backup.Entry
		for i, name := range []string{"a", "b", "c", "d"} {
			e := test.e
			e.Name, e.Nlink = name, 4
			if i%2 == 1 {
				test.change(&e)
			}
			entries = append(entries, e)
		}
		f.directory("", entries...)
		target := t.TempDir()
		_, obs := f.restore(Options{Target: target})
		obs.wantProblems(t)
		wantGroups(t, target, "a c", "b d")
		if describe(t, filepath.Join(target, "a")) == describe(t, filepath.Join(target, "b")) {
			t.Errorf("%s: a and b are the same", what)
		}
	}
}

func linkLike(e *backup.Entry, target string) backup.Entry {
	l := symlink(e.Name, target)
	l.Nlink, l.Inode = e.Nlink, e.Inode
	return l
}

// separately restores the entries as files of their own, and returns the target.
func (f *fixture) separately(entries []backup.Entry) string {
	other := *f
	other.pages = nil
	alone := slices.Clone(entries)
	for i := range alone {
		alone[i].Nlink = 1
	}
	other.directory("", alone...)
	target := f.t.TempDir()
	other.restore(Options{Target: target})
	f.id, f.pack = other.id, other.pack
	return target
}

// wantEqualFiles compares names, content and attributes, but not which names are one file.
func wantEqualFiles(t *testing.T, want, got string) {
	t.Helper()
	entries, err := os.ReadDir(want)
	check(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		if a, b := describe(t, filepath.Join(want, e.Name())), describe(t, filepath.Join(got, e.Name())); a != b {
			t.Errorf("%s is %s, want %s", e.Name(), b, a)
		}
	}
	wantNames(t, got, names...)
}

// describe returns everything that restore sets on a file.
func describe(t *testing.T, path string) string {
	t.Helper()
	st := stat(t, path)
	content := ""
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		data, err := os.ReadFile(path)
		check(t, err)
		content = fmt.Sprintf("%d %s", st.Size, data)
	case unix.S_IFLNK:
		var err error
		content, err = os.Readlink(path)
		check(t, err)
	}
	buf := make([]byte, 4096)
	n, err := unix.Lgetxattr(path, "user.a", buf)
	if err != nil {
		n = 0
	}
	return fmt.Sprintf("%o %d:%d %x %v %q %q", st.Mode, st.Uid, st.Gid, st.Rdev, st.Mtim, content, buf[:n])
}

// A file may have its attributes in the page under one name, and in a chunk under another.
func TestNamesWithXattrsInBothForms(t *testing.T) {
	f := newFixture(t)
	inline, chunked := f.file("a", "content"), f.file("b", "content")
	inline.Nlink, chunked.Nlink = 2, 2
	inline.Xattrs = []backup.Xattr{xattr("user.a", "1"), xattr("user.b", "")}
	chunked.XattrChunk = f.xattrs(inline.Xattrs...)
	f.directory("", inline, chunked)
	target := t.TempDir()
	f.restore(Options{Target: target})
	wantGroups(t, target, "a b")
}

// Inode numbers belong to a file system. The listings record where a file system begins, which
// distinguishes equal numbers.
func TestFileSystemsOfAShard(t *testing.T) {
	f := newFixture(t)
	name := func(name string) backup.Entry {
		e := f.file(name, "content")
		e.Nlink, e.Inode = 9, 7
		return e
	}
	mounted := entry("", backup.Directory)
	mounted.Mode, mounted.Flags = 0o755, backup.Boundary
	f.directory("", name("a"), subdirectory("m1"), subdirectory("m2"), subdirectory("plain"))
	f.page(backup.Page{Path: "m1", Self: &mounted, Entries: []backup.Entry{name("a"), name("b"), subdirectory("deep"), subdirectory("inner")}})
	f.directory("m1/deep", name("a"))
	f.page(backup.Page{Path: "m1/inner", Self: &mounted, Entries: []backup.Entry{name("a"), name("b")}})
	f.page(backup.Page{Path: "m2", Self: &mounted, Entries: []backup.Entry{name("a")}})
	f.directory("plain", name("a"))
	target := t.TempDir()
	_, obs := f.restore(Options{Target: target})
	obs.wantProblems(t)
	wantGroups(t, target, "a plain/a", "m1/a m1/b m1/deep/a", "m1/inner/a m1/inner/b", "m2/a")

	target = t.TempDir()
	f.restore(Options{Target: target, Path: "m1"})
	wantGroups(t, target, "a b deep/a", "inner/a inner/b")
}

// The first page of a directory is damaged, so it is not known whether a file system begins there.
func TestFileSystemOfADamagedPage(t *testing.T) {
	f := newFixture(t)
	name := func(name string) backup.Entry {
		e := f.file(name, "content")
		e.Nlink, e.Inode = 9, 7
		return e
	}
	f.directory("", name("a"), subdirectory("d"))
	keys := f.pagesOf("d", []backup.Entry{name("a")}, []backup.Entry{name("b"), name("c")})
	f.drop("d", keys[0])
	target := t.TempDir()
	_, obs := f.restore(Options{Target: target})
	obs.wantProblems(t, "d")
	wantGroups(t, target, "a", "d/b d/c")
}

// Two names that are one file at the target, and two files of the same size and mtime in the
// snapshot, do not stay one file. Nor does a restore change the attributes of a name outside the
// snapshot through a name inside it.
func TestInodesThatAreSharedAtTheTarget(t *testing.T) {
	f := newFixture(t)
	a, b := f.file("a", "aaaa"), f.file("b", "bbbb")
	c := f.file("c", "cccc")
	c.Mode = 0o600
	f.directory("", a, b, c)
	outside := filepath.Join(t.TempDir(), "outside")
	target := t.TempDir()
	write(t, filepath.Join(target, "a"), "aaaa", testTime)
	check(t, os.Link(filepath.Join(target, "a"), filepath.Join(target, "b")))
	write(t, outside, "cccc", testTime)
	check(t, os.Link(outside, filepath.Join(target, "c")))
	_, obs := f.restore(Options{Target: target})
	obs.wantProblems(t)
	wantGroups(t, target, "a", "b", "c")
	if st := stat(t, outside); st.Mode&0o777 != 0o644 || st.Nlink != 1 {
		t.Errorf("the name outside has mode %o and %d names", st.Mode&0o777, st.Nlink)
	}
	if st := stat(t, filepath.Join(target, "c")); st.Mode&0o777 != 0o600 {
		t.Errorf("c has mode %o", st.Mode&0o777)
	}
	// One of a and b was kept, and it is not known which; their content decides.
	f.restore(Options{Target: target, Verify: true})
	wantFile(t, filepath.Join(target, "a"), "aaaa")
	wantFile(t, filepath.Join(target, "b"), "bbbb")
}

// A name outside the target is not changed, for any number of links.
func TestLinkOutsideTheTarget(t *testing.T) {
	f := newFixture(t)
	a, b := f.file("a", "aaaa"), f.file("b", "aaaa")
	for _, e := range []*backup.Entry{&a, &b} {
		e.Nlink, e.Inode, e.Mode = 2, 77, 0o600
	}
	f.directory("", a, b)
	outside, target := filepath.Join(t.TempDir(), "outside"), t.TempDir()
	write(t, outside, "aaaa", testTime)
	check(t, os.Link(outside, filepath.Join(target, "a")))
	_, obs := f.restore(Options{Target: target})
	obs.wantProblems(t)
	if st := stat(t, outside); st.Mode&0o777 != 0o644 || st.Nlink != 1 {
		t.Errorf("the name outside has mode %o and %d names", st.Mode&0o777, st.Nlink)
	}
	wantGroups(t, target, "a b")
}

// Never keeps existing entries. Such an entry is not a name of the snapshot's file, and nothing is
// linked to it.
func TestLinksBesideWhatIsKept(t *testing.T) {
	f := newFixture(t)
	var entries []backup.Entry
	for _, name := range []string{"a", "b", "c"} {
		e := f.file(name, "content")
		e.Nlink = 3
		entries = append(entries, e)
	}
	f.directory("", entries...)
	target := t.TempDir()
	write(t, filepath.Join(target, "a"), "theirs", testTime)
	_, obs := f.restore(Options{Target: target, Overwrite: Never})
	obs.wantProblems(t)
	wantGroups(t, target, "a", "b c")
	wantFile(t, filepath.Join(target, "a"), "theirs")
	wantFile(t, filepath.Join(target, "b"), "content")
}

// A dry run reports the same links that a real run then makes.
func TestLinksInADryRun(t *testing.T) {
	for what, prepare := range map[string]func(t *testing.T, target string){
		"new":       func(*testing.T, string) {},
		"all right": func(t *testing.T, target string) { linked(t, target, "content", testTime) },
		"others":    func(t *testing.T, target string) { linked(t, target, "old", backup.Time{Sec: 1}) },
		"unlinked": func(t *testing.T, target string) {
			for _, name := range []string{"a", "b", "c"} {
				write(t, filepath.Join(target, name), "content", testTime)
			}
		},
		"a directory": func(t *testing.T, target string) { check(t, os.Mkdir(filepath.Join(target, "b"), 0o755)) },
	} {
		for _, overwrite := range []Overwrite{IfChanged, IfNewer, Always, Never} {
			t.Run(what+" "+string(overwrite), func(t *testing.T) {
				f := newFixture(t)
				var entries []backup.Entry
				for _, name := range []string{"a", "b", "c"} {
					e := f.file(name, "content")
					e.Nlink = 3
					entries = append(entries, e)
				}
				f.directory("", entries...)
				target := t.TempDir()
				prepare(t, target)
				o := Options{Target: target, Overwrite: overwrite, DryRun: true}
				_, dry, err := f.tryRestore(context.Background(), o)
				check(t, err)
				o.DryRun = false
				_, wet, err := f.tryRestore(context.Background(), o)
				check(t, err)
				if !slices.Equal(dry.actions(), wet.actions()) || len(dry.problems) != len(wet.problems) {
					t.Errorf("dry run %q %v, real run %q %v", dry.actions(), dry.problems, wet.actions(), wet.problems)
				}
			})
		}
	}
}

// linked makes a, b and c names of one file.
func linked(t *testing.T, target, content string, mtime backup.Time) {
	t.Helper()
	write(t, filepath.Join(target, "a"), content, mtime)
	for _, name := range []string{"b", "c"} {
		check(t, os.Link(filepath.Join(target, "a"), filepath.Join(target, name)))
	}
}

package restore

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/selection"
	"github.com/bctl/bctl/internal/source/treetest"
)

func TestEverythingComesBack(t *testing.T) {
	needRoot(t)
	mtime := testTime.Time()
	want := filepath.Join(t.TempDir(), "want")
	treetest.Make(t, want, treetest.Tree{
		"file":             treetest.File("content").WithMode(0o640).WithOwner(1000, 2000).WithMtime(mtime),
		"setuid":           treetest.File("#!").WithMode(0o6755).WithOwner(1000, 2000).WithMtime(mtime),
		"empty":            treetest.File("").WithMtime(mtime),
		"xattr":            treetest.File("x").WithXattr("user.color", "blue").WithMtime(mtime),
		"hole":             treetest.Sparse(1<<20, treetest.Extent{Offset: 512 << 10, Data: strings.Repeat("data", 1024)}).WithMtime(mtime),
		"all-hole":         treetest.Sparse(8 << 20).WithMtime(mtime),
		"link":             treetest.Symlink("/no/where").WithOwner(7, 8).WithMtime(mtime),
		"fifo":             treetest.FIFO().WithMode(0o600).WithMtime(mtime),
		"socket":           treetest.Socket().WithMode(0o755).WithMtime(mtime),
		"null":             treetest.CharDev(1, 3).WithMode(0o666).WithMtime(mtime),
		"loop":             treetest.BlockDev(7, 0).WithMtime(mtime),
		"dir/other":        treetest.HardLink("file"),
		"dir/locked":       treetest.Dir().WithMode(0o500).WithMtime(mtime),
		"dir":              treetest.Dir().WithMode(0o2750).WithOwner(1, 2).WithMtime(mtime).WithXattr("user.d", "1"),
		"names\n\xff/\xfe": treetest.File("bytes").WithMtime(mtime),
		"names\n\xff":      treetest.Dir().WithMtime(mtime),
	})
	check(t, os.Chtimes(want, time.Time{}, mtime))

	f := newFixture(t)
	own := func(e backup.Entry, mode, uid, gid uint32) backup.Entry {
		e.Mode, e.UID, e.GID = mode, uid, gid
		return e
	}
	hole := entry("hole", backup.File)
	hole.Size = 1 << 20
	hole.Content.Refs = []backup.Ref{f.chunk([]byte(strings.Repeat("data", 1024)), 512<<10)}
	allHole := entry("all-hole", backup.File)
	allHole.Size = 8 << 20
	xattr := f.file("xattr", "x")
	xattr.Xattrs = []backup.Xattr{{Name: "user.color", Value: []byte("blue")}}
	null, loop := entry("null", backup.CharDev), entry("loop", backup.BlockDev)
	null.Rdev, loop.Rdev = unix.Mkdev(1, 3), unix.Mkdev(7, 0)
	first, second := own(f.file("file", "content"), 0o640, 1000, 2000), own(f.file("other", "content"), 0o640, 1000, 2000)
	first.Nlink, second.Nlink, first.Inode, second.Inode = 2, 2, 99, 99
	f.directory("", first, own(f.file("setuid", "#!"), 0o6755, 1000, 2000), f.file("empty", ""), xattr, hole, allHole,
		own(symlink("link", "/no/where"), 0o777, 7, 8), own(entry("fifo", backup.FIFO), 0o600, 0, 0),
		own(entry("socket", backup.Socket), 0o755, 0, 0), own(null, 0o666, 0, 0), own(loop, 0o600, 0, 0),
		subdirectory("dir"), subdirectory("names\n\xff"))
	self := own(entry("", backup.Directory), 0o2750, 1, 2)
	self.Xattrs = []backup.Xattr{{Name: "user.d", Value: []byte("1")}}
	f.page(backup.Page{Path: "dir", Self: &self, Entries: []backup.Entry{second, subdirectory("locked")}})
	locked := own(entry("", backup.Directory), 0o500, 0, 0)
	f.page(backup.Page{Path: "dir/locked", Self: &locked})
	f.directory("names\n\xff", f.file("\xfe", "bytes"))

	got := filepath.Join(t.TempDir(), "a", "got")
	sum, obs := f.restore(Options{Target: got})
	obs.wantProblems(t)
	treetest.Equal(t, want, got)
	if sum.Files != 12 || sum.Links != 1 || sum.Directories != 4 {
		t.Errorf("summary %+v", sum)
	}

	// A second run has nothing left to do, and does no damage.
	sum, obs = f.restore(Options{Target: got, Verify: true})
	obs.wantProblems(t)
	treetest.Equal(t, want, got)
	if sum.Files != 0 || sum.Links != 0 || sum.Directories != 0 || sum.Kept != 13 || sum.KeptDirs != 4 || sum.Bytes != 0 {
		t.Errorf("second summary %+v: %v", sum, obs.actions())
	}

	// A directory that gets other attributes is counted once.
	if err := os.Chmod(filepath.Join(got, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if sum, _ = f.restore(Options{Target: got}); sum.Directories != 0 || sum.KeptDirs != 3 || sum.Attributes != 1 {
		t.Errorf("third summary %+v", sum)
	}
}

func TestManyFilesOfManyPacksAndPages(t *testing.T) {
	f := newFixture(t)
	var pages [][]backup.Entry
	for page := range 5 {
		var entries []backup.Entry
		for i := range 300 {
			name := string(rune('a'+page)) + strings.Repeat("x", i%7) + string(rune('0'+i%10)) + strings.Repeat("y", i/10)
			entries = append(entries, f.file(name, strings.Repeat(name, 1+i*3)))
		}
		pages = append(pages, entries)
		f.newPack()
	}
	f.pagesOf("", pages...)
	target := t.TempDir()
	sum, obs := f.restore(Options{Target: target, Concurrency: 3})
	obs.wantProblems(t)
	if sum.Files != 1500 {
		t.Errorf("%d files", sum.Files)
	}
	name := "c" + "xx" + "2" + strings.Repeat("y", 28) // i = 282: 282%7 = 2, 282%10 = 2
	wantFile(t, filepath.Join(target, name), strings.Repeat(name, 1+282*3))
}

// A file whose content is lists of lists, with holes at every level.
func TestListsOfLists(t *testing.T) {
	f := newFixture(t)
	const hole = 64 << 20
	var upper []backup.Ref
	at := map[int64]string{}
	var offset int64
	for i := range 3 {
		var lower []backup.Ref
		for j := range 4 {
			data := strings.Repeat(string(rune('a'+i*4+j)), 100_000)
			ref := f.chunk([]byte(data), hole)
			offset += hole
			at[offset] = data
			offset += ref.Length
			lower = append(lower, ref)
			f.newPack()
		}
		list := f.list(1, lower...).Refs[0]
		upper = append(upper, list)
	}
	e := entry("big", backup.File)
	e.Content = f.list(2, upper...)
	e.Size = offset + hole // and a hole at the end
	f.directory("", e, f.file("small", "s"))
	target := t.TempDir()
	_, obs := f.restore(Options{Target: target})
	obs.wantProblems(t)

	in, err := os.Open(filepath.Join(target, "big"))
	check(t, err)
	defer in.Close()
	for offset, data := range at {
		got := make([]byte, len(data))
		if _, err := in.ReadAt(got, offset); err != nil || string(got) != data {
			t.Errorf("at %d: %.10q, want %.10q (%v)", offset, got, data, err)
		}
	}
	st := stat(t, filepath.Join(target, "big"))
	if st.Size != e.Size || st.Blocks*512 > 4<<20 {
		t.Errorf("size %d, want %d; %d bytes on disk", st.Size, e.Size, st.Blocks*512)
	}
	sum, _ := f.restore(Options{Target: target, Verify: true})
	if sum.Kept != 2 {
		t.Errorf("kept %d of 2 that are right", sum.Kept)
	}
}

func TestOverwrite(t *testing.T) {
	later, earlier := backup.Time{Sec: testTime.Sec + 1}, backup.Time{Sec: testTime.Sec - 1}
	for _, test := range []struct {
		overwrite Overwrite
		want      map[string]string
		actions   []string
	}{
		{IfChanged, map[string]string{"same": "AAAA", "time": "bbbb", "size": "cccc", "old": "eeee", "new": "dddd"},
			[]string{"create new", "keep same", "replace old", "replace size", "replace time"}},
		{Always, map[string]string{"same": "aaaa", "time": "bbbb", "size": "cccc", "old": "eeee", "new": "dddd"},
			[]string{"create new", "replace old", "replace same", "replace size", "replace time"}},
		{Never, map[string]string{"same": "AAAA", "time": "BBBB", "size": "C", "old": "EEEE", "new": "dddd"},
			[]string{"create new", "keep old", "keep same", "keep size", "keep time"}},
		{IfNewer, map[string]string{"same": "AAAA", "time": "BBBB", "size": "C", "old": "eeee", "new": "dddd"},
			[]string{"create new", "keep same", "keep size", "keep time", "replace old"}},
	} {
		t.Run(string(test.overwrite), func(t *testing.T) {
			f := newFixture(t)
			f.directory("", f.file("same", "aaaa"), f.file("time", "bbbb"), f.file("size", "cccc"), f.file("new", "dddd"), f.file("old", "eeee"))
			target := t.TempDir()
			write(t, filepath.Join(target, "same"), "AAAA", testTime)
			write(t, filepath.Join(target, "time"), "BBBB", later)
			write(t, filepath.Join(target, "size"), "C", testTime)
			write(t, filepath.Join(target, "old"), "EEEE", earlier)
			_, obs := f.restore(Options{Target: target, Overwrite: test.overwrite})
			obs.wantProblems(t)
			for name, content := range test.want {
				wantFile(t, filepath.Join(target, name), content)
			}
			if got := obs.actions(); !slices.Equal(got, test.actions) {
				t.Errorf("%q, want %q", got, test.actions)
			}
			wantNames(t, target, "same", "time", "size", "new", "old")
		})
	}
}

func TestVerifyFindsWhatSizeAndTimeHide(t *testing.T) {
	f := newFixture(t)
	sparse := entry("sparse", backup.File)
	sparse.Size = 3000
	sparse.Content.Refs = []backup.Ref{f.chunk(bytes.Repeat([]byte{1}, 1000), 1000)}
	f.directory("", f.file("bad", "good"), f.file("fine", "fine"), sparse)
	target := t.TempDir()
	f.restore(Options{Target: target})
	write(t, filepath.Join(target, "bad"), "evil", testTime)
	damaged, err := os.ReadFile(filepath.Join(target, "sparse"))
	check(t, err)
	damaged[2999] = 1 // in the hole
	write(t, filepath.Join(target, "sparse"), string(damaged), testTime)
	_, obs := f.restore(Options{Target: target, Verify: true})
	if got, want := obs.actions(), []string{"keep fine", "replace bad", "replace sparse"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	wantFile(t, filepath.Join(target, "bad"), "good")
}

func TestDryRunMakesNothing(t *testing.T) {
	f := newFixture(t)
	f.directory("", f.file("a", "a"), subdirectory("d"))
	f.directory("d", f.file("b", "b"))
	target := filepath.Join(t.TempDir(), "target")
	sum, obs := f.restore(Options{Target: target, DryRun: true})
	if got, want := obs.actions(), []string{"create a", "create d/b"}; !slices.Equal(got, want) || sum.Files != 2 {
		t.Errorf("%q, want %q; %+v", got, want, sum)
	}
	wantNothing(t, target)
}

func TestSelection(t *testing.T) {
	f := newFixture(t)
	f.directory("", f.file("a.txt", "1"), f.file("a.bin", "2"), subdirectory("d"), subdirectory("e"))
	f.directory("d", f.file("b.txt", "3"), f.file("b.bin", "4"))
	f.directory("e", f.file("c.bin", "5"), subdirectory("all"))
	f.directory("e/all", f.file("c.bin", "5"), f.file("secret", "6"))
	compile := func(patterns ...string) Selector {
		m, err := selection.Compile(backup.Selection{Exclude: patterns})
		check(t, err)
		return m
	}
	target := t.TempDir()
	_, obs := f.restore(Options{Target: target, Include: compile("*.txt", "all"), Exclude: compile("secret")})
	obs.wantProblems(t)
	if got, want := obs.actions(), []string{"create a.txt", "create d/b.txt", "create e/all/c.bin"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := stat(t, filepath.Join(target, "e")).Mtim.Sec; got != testTime.Sec {
		t.Errorf("a directory on the way has time %d", got)
	}
}

func TestPartOfASnapshot(t *testing.T) {
	f := newFixture(t)
	f.directory("", subdirectory("d"), subdirectory("dd"))
	f.directory("d", f.file("file", "content"), subdirectory("sub"))
	f.directory("d/sub", f.file("deep", "deep"))
	f.directory("dd", f.file("other", "other"))

	target := t.TempDir()
	f.restore(Options{Target: target, Path: "d"})
	wantNames(t, target, "file", "sub")
	wantFile(t, filepath.Join(target, "sub/deep"), "deep")

	target = t.TempDir()
	check(t, os.Chmod(target, 0o700))
	write(t, filepath.Join(target, "beside"), "b", testTime)
	f.restore(Options{Target: target, Path: "d/file", Delete: true})
	wantNames(t, target, "file", "beside")
	if st := stat(t, target); st.Mode&0o777 != 0o700 {
		t.Errorf("the target of one file got mode %o", st.Mode)
	}

	_, _, err := f.tryRestore(context.Background(), Options{Target: target, Path: "d/none"})
	if !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("a path that is not there: %v", err)
	}
}

// After an interruption at any file, no unfinished file at the target looks finished, and a second
// run completes the restore.
func TestInterruptedAndRunAgain(t *testing.T) {
	f := newFixture(t)
	content := map[string]string{}
	var entries []backup.Entry
	for i := range 200 {
		name := "f" + strings.Repeat("i", i%50) + string(rune('a'+i/50))
		content[name] = strings.Repeat(name, 2000)
		e := f.file(name, content[name])
		half := len(content[name]) / 2
		e.Content.Refs = []backup.Ref{f.chunk([]byte(content[name][:half]), 0), f.chunk([]byte(content[name][half:]), 0)}
		entries = append(entries, e)
		if i%20 == 0 {
			f.newPack()
		}
	}
	f.directory("", entries...)
	f.newPack()
	target := t.TempDir()
	for stop := 1; ; stop += 40 {
		ctx, cancel := context.WithCancel(context.Background())
		obs := &observer{onChange: func() func(Change) {
			done := 0
			return func(c Change) {
				if c.Action == Create {
					if done++; done == stop {
						cancel()
					}
				}
			}
		}()}
		_, err := Restore(ctx, f.deps(), Options{Snapshot: f.snapshot, Target: target}, obs)
		cancel()
		for name, want := range content {
			info, statErr := os.Stat(filepath.Join(target, name))
			if statErr == nil && info.Size() == int64(len(want)) && backup.TimeOf(info.ModTime()) == testTime {
				wantFile(t, filepath.Join(target, name), want)
			}
		}
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	names := make([]string, 0, len(content))
	for name := range content {
		names = append(names, name)
	}
	wantNames(t, target, names...)
}

// A directory that could not be read during the backup is created and reported. Unreported, an
// empty directory would look like the original.
func TestDirectoryThatCouldNotBeRead(t *testing.T) {
	f := newFixture(t)
	f.directory("", f.file("file", "f"), subdirectory("closed"))
	self := entry("", backup.Directory)
	self.Flags = backup.Unreadable
	f.page(backup.Page{Path: "closed", Self: &self})
	for _, dry := range []bool{true, false} {
		_, obs := f.restore(Options{Target: filepath.Join(t.TempDir(), "target"), DryRun: dry})
		obs.wantProblems(t, "closed")
	}
	// Nothing in it is deleted, because the original may have contained it.
	target := filepath.Join(t.TempDir(), "target")
	check(t, os.MkdirAll(filepath.Join(target, "closed"), 0o700))
	check(t, os.WriteFile(filepath.Join(target, "closed/there"), []byte("t"), 0o600))
	_, obs := f.restore(Options{Target: target, Delete: true})
	obs.wantProblems(t, "closed")
	wantFile(t, filepath.Join(target, "closed/there"), "t")
}

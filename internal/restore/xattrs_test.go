package restore

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/store"
)

// xattrForms are the forms in which a listing stores the attributes of an entry.
var xattrForms = map[string]func(f *fixture, e *backup.Entry, xattrs []backup.Xattr){
	"inline":     func(_ *fixture, e *backup.Entry, xattrs []backup.Xattr) { e.Xattrs = xattrs },
	"in a chunk": func(f *fixture, e *backup.Entry, xattrs []backup.Xattr) { e.XattrChunk = f.xattrs(xattrs...) },
}

// xattrs stores a chunk of attributes.
func (f *fixture) xattrs(xattrs ...backup.Xattr) backup.Ref {
	return f.chunk(listing.EncodeXattrs(nil, xattrs), 0)
}

func xattr(name, value string) backup.Xattr { return backup.Xattr{Name: name, Value: []byte(value)} }

func wantXattr(t *testing.T, path, name, value string) {
	t.Helper()
	buf := make([]byte, 64<<10)
	n, err := unix.Lgetxattr(path, name, buf)
	if value == "" && err == unix.ENODATA {
		return
	}
	if err != nil || string(buf[:n]) != value {
		t.Errorf("%s: %s is %.40q, want %.40q (%v)", path, name, buf[:max(n, 0)], value, err)
	}
}

// An ACL that gives user 4242 more rights than others. The mode of a file with it is 0664.
const testACL = "\x02\x00\x00\x00" + "\x01\x00\x06\x00\xff\xff\xff\xff" + "\x02\x00\x06\x00\x92\x10\x00\x00" +
	"\x04\x00\x04\x00\xff\xff\xff\xff" + "\x10\x00\x06\x00\xff\xff\xff\xff" + "\x20\x00\x04\x00\xff\xff\xff\xff"

// The same for a directory with mode 0775.
const testACLOf775 = "\x02\x00\x00\x00" + "\x01\x00\x07\x00\xff\xff\xff\xff" + "\x02\x00\x07\x00\x92\x10\x00\x00" +
	"\x04\x00\x05\x00\xff\xff\xff\xff" + "\x10\x00\x07\x00\xff\xff\xff\xff" + "\x20\x00\x05\x00\xff\xff\xff\xff"

// Every kind of entry gets its attributes back in each form, into a new target, and into one in
// which the entries lack them.
func TestXattrsOfAllKindsInAllForms(t *testing.T) {
	needRoot(t)
	mtime := testTime.Time()
	want := filepath.Join(t.TempDir(), "want")
	const name, value = "trusted.color", "blue" // symlinks and devices have no user.* attributes
	treetest.Make(t, want, treetest.Tree{
		"file":    treetest.File("content").WithMtime(mtime).WithXattr(name, value),
		"empty":   treetest.File("").WithMtime(mtime).WithXattr(name, value),
		"acl":     treetest.File("acl").WithMode(0o664).WithMtime(mtime).WithXattr("system.posix_acl_access", testACL),
		"symlink": treetest.Symlink("/no/where").WithMtime(mtime).WithXattr(name, value),
		"fifo":    treetest.FIFO().WithMtime(mtime).WithXattr(name, value),
		"null":    treetest.CharDev(1, 3).WithMode(0o644).WithMtime(mtime).WithXattr(name, value),
		"dir":     treetest.Dir().WithMtime(mtime).WithXattr(name, value),
		"dir/in":  treetest.File("in").WithMtime(mtime).WithXattr(name, value),
	})
	check(t, os.Chtimes(want, mtime, mtime))
	check(t, unix.Setxattr(want, name, []byte(value), 0))
	for form, put := range xattrForms {
		t.Run(form, func(t *testing.T) {
			f := newFixture(t)
			with := func(e backup.Entry) backup.Entry {
				put(f, &e, []backup.Xattr{xattr(name, value)})
				return e
			}
			acl := f.file("acl", "acl")
			acl.Mode = 0o664
			put(f, &acl, []backup.Xattr{xattr("system.posix_acl_access", testACL)})
			null, link := entry("null", backup.CharDev), symlink("symlink", "/no/where")
			null.Rdev, link.Mode = unix.Mkdev(1, 3), 0o777
			self := entry("", backup.Directory)
			self.Mode = 0o755
			self = with(self)
			f.page(backup.Page{Self: &self, Entries: []backup.Entry{
				with(f.file("file", "content")), with(f.file("empty", "")), acl, with(link), with(entry("fifo", backup.FIFO)), with(null), subdirectory("dir"),
			}})
			f.page(backup.Page{Path: "dir", Self: &self, Entries: []backup.Entry{with(f.file("in", "in"))}})
			target := filepath.Join(t.TempDir(), "target")
			_, obs := f.restore(Options{Target: target})
			obs.wantProblems(t)
			treetest.Equal(t, want, target)

			// Lost attributes are restored, and additional ones are removed, although size and
			// mtime match.
			for _, path := range []string{"file", "empty", "symlink", "fifo", "null", "dir/in"} {
				check(t, unix.Lremovexattr(filepath.Join(target, path), name))
			}
			check(t, os.Chmod(filepath.Join(target, "acl"), 0o600))
			check(t, unix.Removexattr(filepath.Join(target, "acl"), "system.posix_acl_access"))
			setXattr(t, filepath.Join(target, "file"), "user.more", "x")
			for _, path := range []string{"dir", "."} {
				check(t, os.Chtimes(filepath.Join(target, path), mtime, mtime))
			}
			sum, obs := f.restore(Options{Target: target})
			obs.wantProblems(t)
			treetest.Equal(t, want, target)
			if sum.Files != 0 || sum.Attributes != 7 {
				t.Errorf("%+v", sum)
			}
		})
	}
}

// 2,000 files with one of three ACLs: each chunk is fetched once.
func TestRepeatedXattrChunks(t *testing.T) {
	f := newFixture(t)
	const files, directories = 200, 10
	var names []backup.Entry
	chunks := []backup.Ref{f.xattrs(xattr("user.a", "0")), f.xattrs(xattr("user.a", "1")), f.xattrs(xattr("user.a", "2"))}
	for d := range directories {
		name := fmt.Sprintf("d%02d", d)
		names = append(names, subdirectory(name))
		var entries []backup.Entry
		for i := range files {
			e := f.file(fmt.Sprintf("f%03d", i), "x")
			e.XattrChunk = chunks[i%3]
			entries = append(entries, e)
		}
		self := entry("", backup.Directory)
		self.Mode, self.XattrChunk = 0o755, chunks[d%3]
		f.page(backup.Page{Path: name, Self: &self, Entries: entries})
	}
	f.directory("", names...)
	f.newPack()
	counted := &countingStore{Store: f.store}
	f.store = counted
	target := filepath.Join(t.TempDir(), "target")
	_, obs := f.restore(Options{Target: target})
	obs.wantProblems(t)
	for d := range directories {
		dir := filepath.Join(target, fmt.Sprintf("d%02d", d))
		wantXattr(t, dir, "user.a", fmt.Sprint(d%3))
		for i := range files {
			wantXattr(t, filepath.Join(dir, fmt.Sprintf("f%03d", i)), "user.a", fmt.Sprint(i%3))
		}
	}
	// The pack's table, attributes, and the one chunk of all files.
	if n := counted.ranges.Load(); n > 8 {
		t.Errorf("%d ranges were read", n)
	}
}

// Directories that wait for nothing else get their attributes together.
func TestXattrChunksOfEmptyDirectories(t *testing.T) {
	f := newFixture(t)
	const directories = 100
	var names []backup.Entry
	for i := range directories {
		name := fmt.Sprintf("d%03d", i)
		names = append(names, subdirectory(name))
		self := entry("", backup.Directory)
		self.Mode, self.XattrChunk = 0o755, f.xattrs(xattr("user.a", name))
		f.page(backup.Page{Path: name, Self: &self})
	}
	f.directory("", names...)
	f.newPack()
	counted := &countingStore{Store: f.store}
	f.store = counted
	target := t.TempDir()
	_, obs := f.restore(Options{Target: target})
	obs.wantProblems(t)
	for _, e := range names {
		wantXattr(t, filepath.Join(target, e.Name), "user.a", e.Name)
	}
	if n := counted.ranges.Load(); n > 4 {
		t.Errorf("%d ranges were read", n)
	}
}

// More attributes, all different, than fit into a bundle and the cache.
func TestManyXattrsAreBounded(t *testing.T) {
	f := newFixture(t)
	const files = 400
	// Each value is as large as an inode of ext4 can hold. The filler is the rest of the chunk,
	// which the kernel refuses.
	value := func(i int) string { return strings.Repeat(fmt.Sprintf("%08d", i), 3500/8) }
	filler := strings.Repeat("f", 48<<10)
	var entries []backup.Entry
	for i := range files {
		e := f.file(fmt.Sprintf("f%03d", i), "x")
		e.XattrChunk = f.xattrs(xattr("user.a", value(i)), xattr("no-namespace", filler))
		entries = append(entries, e)
		if i%50 == 49 {
			f.newPack()
		}
	}
	f.directory("", entries...)
	target := filepath.Join(t.TempDir(), "target")
	sum, obs := f.restore(Options{Target: target})
	if sum.Problems != files {
		t.Errorf("%+v", sum)
	}
	obs.wantText(t, "f007", "set xattr no-namespace")
	for i := range files {
		wantXattr(t, filepath.Join(target, fmt.Sprintf("f%03d", i)), "user.a", value(i))
	}
}

func TestWindowsOfXattrsAreBounded(t *testing.T) {
	w := &bundle{}
	for i := range 1 << 20 {
		if w.full() {
			break
		}
		w.add(&file{dir: &directory{}, e: backup.Entry{XattrChunk: backup.Ref{Chunk: backup.ChunkID{byte(i), byte(i >> 8)}, Length: 64 << 10}}})
	}
	if w.xattrBytes > maxBundleXattrBytes+64<<10 || len(w.files) != maxBundleXattrBytes>>16 {
		t.Errorf("%d files, %d bytes", len(w.files), w.xattrBytes)
	}
	w = &bundle{}
	for i := range 8 { // lengths that do not add up
		w.add(&file{dir: &directory{}, e: backup.Entry{XattrChunk: backup.Ref{Chunk: backup.ChunkID{byte(i)}, Length: 1 << 62}}})
	}
	if !w.full() {
		t.Errorf("%d bytes of chunks of any length", w.xattrBytes)
	}
	var c xattrCache
	for i := range 100 {
		c.put(backup.ChunkID{byte(i)}, &xattrSet{xattrs: []backup.Xattr{xattr("user.a", strings.Repeat("x", 1<<20))}})
	}
	if c.bytes > maxCachedXattrBytes || len(c.sets) != c.recent.Len() || len(c.sets) == 0 {
		t.Errorf("%d bytes in %d sets, %d in the list", c.bytes, len(c.sets), c.recent.Len())
	}
}

// If attributes cannot be read, each entry that has them is a problem. The rest of the entry is
// restored, existing attributes stay, and the next restore tries again.
func TestXattrChunksThatCannotBeHad(t *testing.T) {
	for name, spoil := range map[string]func(f *fixture) backup.Ref{
		"in no pack": func(*fixture) backup.Ref { return backup.Ref{Chunk: backup.ChunkID{1}, Length: 10, Span: 10} },
		"too long":   func(*fixture) backup.Ref { return backup.Ref{Chunk: backup.ChunkID{2}, Length: 1 << 62, Span: 1 << 62} },
		"longer than it is": func(f *fixture) backup.Ref {
			ref := f.xattrs(xattr("user.a", "1"))
			ref.Length++
			return ref
		},
		"not attributes": func(f *fixture) backup.Ref { return f.chunk([]byte("something else"), 0) },
		"in a damaged pack": func(f *fixture) backup.Ref {
			f.newPack()
			ref, id := f.xattrs(xattr("user.a", "1")), f.id
			f.newPack()
			check(f.t, f.store.Delete(f.t.Context(), store.PackName(f.snapshot, id)))
			return ref
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			ref := spoil(f)
			bad, good := f.file("bad", "content"), f.file("good", "content")
			bad.XattrChunk, good.XattrChunk = ref, f.xattrs(xattr("user.a", "good"))
			link := symlink("link", "x")
			link.XattrChunk = ref
			self := entry("", backup.Directory)
			self.Mode, self.XattrChunk = 0o755, ref
			f.directory("", subdirectory("dir"), bad, good, link)
			f.page(backup.Page{Path: "dir", Self: &self, Entries: []backup.Entry{f.file("in", "in")}})
			target := filepath.Join(t.TempDir(), "target")
			for run := range 2 {
				sum, obs := f.restore(Options{Target: target})
				obs.wantProblems(t, "bad", "dir", "link")
				obs.wantText(t, "bad", "xattr: ")
				wantFile(t, filepath.Join(target, "bad"), "content")
				wantFile(t, filepath.Join(target, "dir/in"), "in")
				wantXattr(t, filepath.Join(target, "good"), "user.a", "good")
				for _, path := range []string{"bad", "dir"} {
					if st := stat(t, filepath.Join(target, path)); st.Mtim.Sec != testTime.Sec || st.Mode&0o200 == 0 {
						t.Errorf("%s: the rest of its attributes is not set: %v, mode %o", path, st.Mtim, st.Mode)
					}
				}
				if sum.Kept == 0 && sum.Files == 0 {
					t.Errorf("%+v", sum)
				}
				// They may be known from another place.
				for _, path := range []string{"bad", "dir"} {
					if run == 0 {
						setXattr(t, filepath.Join(target, path), "user.theirs", "x")
					}
					wantXattr(t, filepath.Join(target, path), "user.theirs", "x")
				}
			}
		})
	}
}

// If a lost chunk is back, the next restore sets the attributes that it could not set before.
func TestXattrChunkComesBack(t *testing.T) {
	f := newFixture(t)
	e := f.file("file", "content")
	e.XattrChunk = f.xattrs(xattr("user.a", "1"))
	f.newPack()
	at := f.at[e.XattrChunk.Chunk]
	delete(f.at, e.XattrChunk.Chunk)
	f.directory("", e)
	target := t.TempDir()
	_, obs := f.restore(Options{Target: target})
	obs.wantProblems(t, "file")
	f.at[e.XattrChunk.Chunk] = at
	sum, obs := f.restore(Options{Target: target})
	obs.wantProblems(t)
	wantXattr(t, filepath.Join(target, "file"), "user.a", "1")
	if sum.Attributes != 1 {
		t.Errorf("%+v", sum)
	}
}

// A problem of a file with several names is reported once.
func TestXattrChunkOfLinks(t *testing.T) {
	f := newFixture(t)
	var names []backup.Entry
	for _, name := range []string{"a", "b", "c"} {
		e := f.file(name, "content")
		e.Nlink, e.XattrChunk = 3, backup.Ref{Chunk: backup.ChunkID{1}, Length: 10, Span: 10}
		names = append(names, e)
	}
	f.directory("", names...)
	sum, obs := f.restore(Options{Target: t.TempDir()})
	obs.wantProblems(t, "a")
	if sum.Links != 2 {
		t.Errorf("%+v", sum)
	}
}

// An attribute that does not fit into an inode also fails with "no space left on device".
func TestXattrWithoutRoom(t *testing.T) {
	f := newFixture(t)
	probe := filepath.Join(t.TempDir(), "probe")
	write(t, probe, "", testTime)
	huge := strings.Repeat("x", 60<<10)
	if err := unix.Setxattr(probe, "user.huge", []byte(huge), 0); err != unix.ENOSPC {
		t.Skip("this file system has room for 60 KiB: ", err)
	}
	e := f.file("file", "content")
	e.Xattrs = []backup.Xattr{xattr("user.huge", huge), xattr("user.small", "s")}
	f.directory("", e, f.file("other", "other"))
	target := t.TempDir()
	_, obs := f.restore(Options{Target: target})
	obs.wantProblems(t, "file")
	obs.wantText(t, "file", "set xattr user.huge: no space left on device")
	wantFile(t, filepath.Join(target, "file"), "content")
	wantFile(t, filepath.Join(target, "other"), "other")
	wantXattr(t, filepath.Join(target, "file"), "user.small", "s")
}

func setXattr(t *testing.T, path, name, value string) {
	t.Helper()
	check(t, unix.Setxattr(path, name, []byte(value), 0))
}

//go:build linux

package sourcetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/treetest"
)

func openFile(t testing.TB, d source.Directory, name string) source.File {
	t.Helper()
	f, err := d.OpenFile(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func openDirectoryOnce(t testing.TB, tree source.Tree, path string) source.Directory {
	t.Helper()
	d, err := tree.OpenDirectory(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	return closing{d}
}

// closing is a directory that closes itself at its end.
type closing struct{ source.Directory }

func (d closing) Read(ctx context.Context, dst []backup.Entry, problem func(name, op string, err error)) ([]backup.Entry, int, error) {
	entries, n, err := d.Directory.Read(ctx, dst, problem)
	if err != nil {
		d.Close()
	}
	return entries, n, err
}

func readFile(t testing.TB, d source.Directory, name string) string {
	t.Helper()
	f, err := d.OpenFile(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// Content is read from front to back in pieces of any size, and at the end as io.ReaderAt requires.
// Stat reports changes.
func (s *suite) testContent(t *testing.T) {
	dir, tree := s.tree(t)
	content := make([]byte, 3<<20+123)
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	treetest.Make(t, dir, treetest.Tree{"file": treetest.File(string(content)), "empty": treetest.File("")})
	d := openDirectory(t, tree, "")
	for _, pieceBytes := range []int{4 << 10, 100_000, 1 << 20, 8 << 20} {
		f := openFile(t, d, "file")
		var got []byte
		piece := make([]byte, pieceBytes)
		for {
			n, err := f.ReadAt(piece, int64(len(got)))
			got = append(got, piece[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil || n != pieceBytes {
				t.Fatalf("%d bytes, error %v; want all or the end", n, err)
			}
		}
		if !bytes.Equal(got, content) {
			t.Errorf("content differs when read in pieces of %d bytes", pieceBytes)
		}
	}
	f := openFile(t, d, "empty")
	if n, err := f.ReadAt(make([]byte, 10), 0); n != 0 || err != io.EOF {
		t.Errorf("an empty file: %d bytes, error %v; want the end", n, err)
	}
	if start, length, err := f.NextExtent(0, 0); start != 0 || length != 0 || err != nil {
		t.Errorf("an empty file has the extent %d+%d, error %v", start, length, err)
	}
	s.statSeesChange(t, dir, d)
}

func (s *suite) statSeesChange(t *testing.T, dir string, d source.Directory) {
	f := openFile(t, d, "file")
	stat := func() backup.Entry {
		e, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return s.asKernel(e)
	}
	path := filepath.Join(dir, "file")
	if got, want := stat(), s.kernelEntry(t, path); !reflect.DeepEqual(got, want) {
		t.Errorf("Stat:\n got %+v\nwant %+v", got, want)
	}
	if err := os.Truncate(path, 7); err != nil {
		t.Fatal(err)
	}
	if got := stat().Size; got != 7 {
		t.Errorf("size %d after it was truncated, want 7", got)
	}
	if n, err := f.ReadAt(make([]byte, 100), 0); n != 7 || err != io.EOF {
		t.Errorf("after it was truncated: %d bytes, error %v; want 7 and the end", n, err)
	}
	if err := os.Truncate(path, 50); err != nil {
		t.Fatal(err)
	}
	if n, err := f.ReadAt(make([]byte, 100), 0); n != 50 || err != io.EOF {
		t.Errorf("after it grew: %d bytes, error %v; want 50 and the end", n, err)
	}
}

// Extents cover everything that is not zero, at any offsets at which the file was written. The
// ranges between them are zero.
func (s *suite) testExtents(t *testing.T) {
	dir, tree := s.tree(t)
	spec := treetest.Tree{
		"solid": treetest.File(strings.Repeat("x", 100_000)),
		"hole":  treetest.Sparse(10 << 20),
		"begin": treetest.Sparse(1<<20, treetest.Extent{Data: "x"}),
		"end":   treetest.Sparse(1<<20+1, treetest.Extent{Offset: 1 << 20, Data: "x"}),
		"odd": treetest.Sparse(64<<20+77, treetest.Extent{Offset: 1_234_567, Data: strings.Repeat("y", 7777)},
			treetest.Extent{Offset: 33_333_333, Data: "z"}, treetest.Extent{Offset: 64 << 20, Data: "end"}),
		"huge": treetest.Sparse(1<<42, treetest.Extent{Offset: 1 << 41, Data: "x"}),
	}
	treetest.Make(t, dir, spec)
	d := openDirectory(t, tree, "")
	for name := range spec {
		if name == "huge" && !s.has(Holes) {
			continue
		}
		f := openFile(t, d, name)
		e, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		dataBytes := checkExtents(t, name, f, e.Size, filepath.Join(dir, name))
		if hasHoles := dataBytes < e.Size; s.has(Holes) && hasHoles != (name != "solid") {
			t.Errorf("%s: %d of %d bytes are data", name, dataBytes, e.Size)
		}
	}
}

// checkExtents reads a file by its extents and compares them with a plain read of everything that
// SEEK_DATA finds.
func checkExtents(t *testing.T, name string, f source.File, size int64, path string) (dataBytes int64) {
	t.Helper()
	plain, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	end := int64(0) // end of the previous extent
	for offset := int64(0); ; {
		start, length, err := f.NextExtent(offset, size)
		if err != nil {
			t.Fatalf("%s: NextExtent(%d): %v", name, offset, err)
		}
		if length == 0 {
			start = size
		}
		if start < offset || start+length > size {
			t.Fatalf("%s: extent %d+%d is not within %d to %d", name, start, length, offset, size)
		}
		if hole, err := plain.Seek(end, unix.SEEK_DATA); start > end && err == nil && hole < start {
			t.Errorf("%s: there is data at %d, but the next extent is at %d", name, hole, start)
		}
		if length == 0 {
			return dataBytes
		}
		got, want := make([]byte, length), make([]byte, length)
		if _, err := f.ReadAt(got, start); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		if _, err := plain.ReadAt(want, start); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s: content of the extent %d+%d differs", name, start, length)
		}
		dataBytes += length
		offset, end = start+length, start+length
	}
}

// Attributes are sorted, are returned for every entry that may have them, and include POSIX ACLs.
func (s *suite) testXattrs(t *testing.T) {
	dir, tree := s.tree(t)
	treetest.Make(t, dir, treetest.Tree{"file": treetest.File("x"), "plain": treetest.File(""), "dir/in": treetest.File(""),
		"link": treetest.Symlink("file"), "fifo": treetest.FIFO()})
	d := openDirectory(t, tree, "")
	want := map[string]map[string]string{}
	set := func(path, name, value string) {
		if err := unix.Lsetxattr(filepath.Join(dir, path), name, []byte(value), 0); err != nil {
			t.Logf("not tested: %s of %q: %v", name, path, err)
			return
		}
		if want[path] == nil {
			want[path] = map[string]string{}
		}
		want[path][name] = value
	}
	// acl_entry: tag, permissions, id: u::rw u:1000:r g::r m::r o::- (acl(5))
	acl := "\x02\x00\x00\x00" + "\x01\x00\x06\x00\xff\xff\xff\xff" + "\x02\x00\x04\x00\xe8\x03\x00\x00" +
		"\x04\x00\x04\x00\xff\xff\xff\xff" + "\x10\x00\x04\x00\xff\xff\xff\xff" + "\x20\x00\x00\x00\xff\xff\xff\xff"
	set("file", "user.z", "last")
	set("file", "user.a", "\x00\xff")
	set("file", "user.empty", "")
	set("file", "user.big", strings.Repeat("b", 3000))
	set("file", "system.posix_acl_access", acl)
	set("dir", "system.posix_acl_default", acl)
	set("", "user.root", "r")
	if os.Getuid() == 0 {
		set("file", "trusted.t", "t")
		set("file", "security.s", "s")
		set("link", "trusted.link", "l")
		set("fifo", "trusted.fifo", "f")
	}
	for _, path := range []string{"", "file", "plain", "dir", "link", "fifo"} {
		got, err := xattrsOf(t, tree, d, path)
		if !s.has(Xattrs) {
			if len(got) > 0 || !errors.Is(err, source.ErrNoXattrs) {
				t.Errorf("%q: %d attributes, error %v; want ErrNoXattrs", path, len(got), err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", path, err)
		}
		if len(want[path]) == 0 && got != nil {
			t.Errorf("%q: %d attributes, want nil", path, len(got))
		}
		if len(got) != len(want[path]) {
			t.Errorf("%q: %d attributes, want %d", path, len(got), len(want[path]))
		}
		for i, x := range got {
			if value, ok := want[path][x.Name]; !ok || value != string(x.Value) {
				t.Errorf("%q: %s is %q, want %q", path, x.Name, x.Value, value)
			}
			if i > 0 && got[i-1].Name >= x.Name {
				t.Errorf("%q: %s is not after %s", path, x.Name, got[i-1].Name)
			}
		}
	}
}

func xattrsOf(t *testing.T, tree source.Tree, d source.Directory, path string) ([]backup.Xattr, error) {
	ctx := context.Background()
	switch path {
	case "":
		return d.Xattrs(ctx, "", backup.Directory)
	case "dir":
		return openDirectory(t, tree, path).Xattrs(ctx, "", backup.Directory)
	case "link":
		return d.Xattrs(ctx, path, backup.Symlink)
	case "fifo":
		return d.Xattrs(ctx, path, backup.FIFO)
	}
	return openFile(t, d, path).Xattrs()
}

// Attributes up to MaxXattrBytes are returned. More is an error, and returns none of them.
func (s *suite) testXattrLimit(t *testing.T) {
	if !s.has(Xattrs) {
		t.Skip("the source has no extended attributes")
	}
	dir, tree := s.tree(t)
	treetest.Make(t, dir, treetest.Tree{"file": treetest.File("x")})
	d := openDirectory(t, tree, "")
	totalBytes, space := 0, "user."
	if os.Getuid() == 0 {
		space = "trusted." // tmpfs accepts any number of these
	}
	for name := 'a'; name <= 't'; name++ { // the last ones exceed the limit
		attribute := space + string(name)
		if err := unix.Setxattr(filepath.Join(dir, "file"), attribute, bytes.Repeat([]byte{byte(name)}, 60<<10), 0); err != nil {
			t.Skipf("the file system does not take %d bytes of attributes: %v", totalBytes, err)
		}
		totalBytes += len(attribute) + 60<<10
		got, err := openFile(t, d, "file").Xattrs()
		if fits := totalBytes <= source.MaxXattrBytes; fits && (err != nil || len(got) != int(name-'a')+1) {
			t.Errorf("%d bytes: %d attributes, error %v", totalBytes, len(got), err)
		} else if !fits && err == nil {
			t.Errorf("%d bytes are more than MaxXattrBytes, and no error", totalBytes)
		}
	}
}

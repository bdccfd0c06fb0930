//go:build linux

package nfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/nfs3"
	"github.com/bctl/bctl/internal/nfs3/nfs3test"
	"github.com/bctl/bctl/internal/nfs3/rpc/rpctest"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/nfs"
)

// open opens the export of a server of faults.
func open(t testing.TB, s *nfs3test.Server) source.Tree {
	t.Helper()
	tree, err := nfs.New(nfs.Options{}).Open(context.Background(), urlOf(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

func urlOf(s *nfs3test.Server) string {
	_, port, _ := strings.Cut(s.Address(), ":")
	return fmt.Sprintf("nfs://%s/export?mountport=%s&timeout=300ms&retry=20s&uid=0&gid=0&groups=", s.Address(), port)
}

// list returns the names in a directory, and its problems.
func list(t testing.TB, tree source.Tree, path string) (names, problems []string, err error) {
	t.Helper()
	d, err := tree.OpenDirectory(t.Context(), path)
	if err != nil {
		return nil, nil, err
	}
	defer d.Close()
	for {
		entries, _, err := d.Read(t.Context(), nil, func(name, op string, err error) {
			problems = append(problems, fmt.Sprint(name, " ", op, " ", errors.Is(err, fs.ErrNotExist)))
		})
		for _, e := range entries {
			names = append(names, e.Name)
		}
		if err == io.EOF {
			return names, problems, nil
		}
		if err != nil {
			return names, problems, err
		}
	}
}

func wantNames(t testing.TB, got []string, err error, want string) {
	t.Helper()
	if text := strings.Join(got, " "); text != want || err != nil {
		t.Errorf("names %q, error %v; want %q", text, err, want)
	}
}

// Whatever a server leaves out of its listings is asked for, and nothing is lost.
func TestListings(t *testing.T) {
	for _, b := range []nfs3test.Behavior{
		{}, {NoAttributes: true}, {NoHandles: true}, {NoAttributes: true, NoHandles: true}, {NoPlus: true}, {NoDots: true},
		{PageEntries: 1}, {PageEntries: 2}, {PageEntries: 1, NoPlus: true},
	} {
		t.Run(fmt.Sprintf("%+v", b), func(t *testing.T) {
			s := nfs3test.Serve(t)
			dir := s.Add(s.Root, "dir", nfs3.Directory, "")
			s.Add(dir, "deep", nfs3.Regular, "x")
			s.Add(s.Root, "file", nfs3.Regular, "content")
			s.Add(s.Root, "link", nfs3.Symlink, "target")
			s.Set(b)
			tree := open(t, s)
			names, problems, err := list(t, tree, "")
			wantNames(t, names, err, "dir file link")
			if len(problems) > 0 {
				t.Errorf("problems %q", problems)
			}
			names, _, err = list(t, tree, "dir")
			wantNames(t, names, err, "deep")
			if _, _, err := list(t, tree, "link"); !errors.Is(err, backup.ErrOutside) {
				t.Errorf("a symlink: error %v, want ErrOutside", err)
			}
			if got, err := content(t, tree, "dir", "deep"); got != "x" || err != nil {
				t.Errorf("content %q, error %v", got, err)
			}
		})
	}
}

func content(t testing.TB, tree source.Tree, dir, name string) (string, error) {
	t.Helper()
	d, err := tree.OpenDirectory(t.Context(), dir)
	if err != nil {
		return "", err
	}
	defer d.Close()
	f, err := d.OpenFile(t.Context(), name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	return string(b), err
}

// A listing that has no end, or makes no progress, is an error of the directory.
func TestListingsWithoutEnd(t *testing.T) {
	for _, b := range []nfs3test.Behavior{{EmptyPages: true}, {Loop: true}, {Loop: true, PageEntries: 3}, {Loop: true, PageEntries: 1}} {
		s := nfs3test.Serve(t)
		for i := range 20 {
			s.Add(s.Root, fmt.Sprint("file", i), nfs3.Regular, "")
		}
		s.Set(b)
		names, _, err := list(t, open(t, s), "")
		if !errors.Is(err, syscall.EIO) || source.IsGone(err) {
			t.Errorf("%+v: error %v, want EIO", b, err)
		}
		if len(names) > 200 {
			t.Errorf("%+v: %d names came before the error", b, len(names))
		}
	}
}

// A directory that grows while it is read ends when it no longer grows.
func TestGrowing(t *testing.T) {
	s := nfs3test.Serve(t)
	s.Add(s.Root, "first", nfs3.Regular, "")
	s.Set(nfs3test.Behavior{PageEntries: 2})
	n := 0
	s.Grow(func(_ *nfs3test.Node, add func(name string)) {
		if n++; n <= 10 {
			add(fmt.Sprint("new", n))
			add(fmt.Sprint("newer", n))
		}
	})
	if names, _, err := list(t, open(t, s), ""); len(names) != 21 || err != nil {
		t.Errorf("%d names, error %v; want 21", len(names), err)
	}
}

// A position that is no longer valid makes the listing begin again; it deletes nothing.
func TestBadCookie(t *testing.T) {
	s := nfs3test.Serve(t)
	for i := range 5 {
		s.Add(s.Root, fmt.Sprint("file", i), nfs3.Regular, "")
	}
	s.Set(nfs3test.Behavior{PageEntries: 3})
	tree := open(t, s)
	pages := 0
	s.Deny(func(op string, _ *nfs3test.Node) nfs3.Status {
		if op == "READDIRPLUS" {
			if pages++; pages == 2 {
				return nfs3.StatusBadCookie
			}
		}
		return nfs3.StatusOK
	})
	if _, _, err := list(t, tree, ""); !errors.Is(err, source.ErrStale) || source.IsGone(err) {
		t.Errorf("error %v, want ErrStale", err)
	}
	names, _, err := list(t, tree, "")
	wantNames(t, names, err, "file0 file1 file2 file3 file4")
}

// No answer of a server but that of LOOKUP means that an entry is gone (I13).
func TestNothingIsGone(t *testing.T) {
	for _, status := range []nfs3.Status{
		nfs3.StatusNoEnt, nfs3.StatusStale, nfs3.StatusBadHandle, nfs3.StatusIO, nfs3.StatusServerFault, nfs3.StatusNXIO, nfs3.Status(999),
	} {
		for _, op := range []string{"READDIRPLUS", "GETATTR", "READ", "READLINK", "LOOKUP"} {
			if op == "LOOKUP" && status == nfs3.StatusNoEnt {
				continue
			}
			s := nfs3test.Serve(t)
			s.Add(s.Root, "file", nfs3.Regular, "content")
			s.Add(s.Root, "link", nfs3.Symlink, "target")
			tree := open(t, s)
			s.Set(nfs3test.Behavior{NoAttributes: true, NoHandles: true})
			s.Deny(func(called string, _ *nfs3test.Node) nfs3.Status {
				if called == op {
					return status
				}
				return nfs3.StatusOK
			})
			_, problems, err := list(t, tree, "")
			if source.IsGone(err) || strings.Contains(fmt.Sprint(problems), "true") {
				t.Errorf("%s answers %v: problems %q, error %v", op, status, problems, err)
			}
			if _, err := content(t, tree, "", "file"); err != nil && source.IsGone(err) {
				t.Errorf("%s answers %v: reading fails with %v", op, status, err)
			}
		}
	}
}

// A subdirectory that was listed is opened with one call. If it is elsewhere by then, its path is
// looked up.
func TestKeptHandles(t *testing.T) {
	s := nfs3test.Serve(t)
	a := s.Add(s.Root, "a", nfs3.Directory, "")
	b := s.Add(a, "b", nfs3.Directory, "")
	s.Add(b, "file", nfs3.Regular, "")
	outside := s.Add(s.Root, "outside", nfs3.Directory, "")
	tree := open(t, s)
	before, _ := s.Counts()
	names, _, err := list(t, tree, "")
	wantNames(t, names, err, "a outside")
	names, _, err = list(t, tree, "a")
	wantNames(t, names, err, "b")
	if after, _ := s.Counts(); after-before != 2 {
		t.Errorf("%d calls for two directories", after-before)
	}
	s.Move(a, "b", outside, "b")
	if _, _, err := list(t, tree, "a/b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that was moved away: error %v, want ErrNotExist", err)
	}
	list(t, tree, "")
	s.Delete(s.Root, "a")
	s.Add(s.Root, "a", nfs3.Symlink, "outside")
	if _, _, err := list(t, tree, "a"); !errors.Is(err, backup.ErrOutside) {
		t.Errorf("a directory that became a symlink: error %v, want ErrOutside", err)
	}
}

// An unchanged walk costs one call for each page of a directory.
func TestCallsOfAWalk(t *testing.T) {
	s := nfs3test.Serve(t)
	const directories, files = 100, 20
	for i := range directories {
		dir := s.Add(s.Root, fmt.Sprint("dir", i), nfs3.Directory, "")
		for j := range files {
			s.Add(dir, fmt.Sprint("file", j), nfs3.Regular, "")
		}
	}
	tree := open(t, s)
	before, _ := s.Counts()
	names, _, err := list(t, tree, "")
	if err != nil || len(names) != directories {
		t.Fatalf("%d names, error %v", len(names), err)
	}
	for _, name := range names {
		if files, _, err := list(t, tree, name); len(files) != 20 || err != nil {
			t.Errorf("%s: %d files, error %v", name, len(files), err)
		}
	}
	if after, _ := s.Counts(); after-before != directories+1 || s.Count("READDIRPLUS") != directories+1 {
		t.Errorf("%d calls, %d of them READDIRPLUS; want %d", after-before, s.Count("READDIRPLUS"), directories+1)
	}
	before, _ = s.Counts()
	d, err := tree.OpenDirectory(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	if after, _ := s.Counts(); after-before != 1 {
		t.Errorf("%d calls for the root, want 1", after-before)
	}
}

// The first reading of the files of a directory looks none of them up.
func TestCallsOfReading(t *testing.T) {
	s := nfs3test.Serve(t)
	for i := range 10 {
		s.Add(s.Root, fmt.Sprint("file", i), nfs3.Regular, "content")
	}
	tree := open(t, s)
	d, err := tree.OpenDirectory(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	before, _ := s.Counts()
	for i := range 10 {
		f, err := d.OpenFile(t.Context(), fmt.Sprint("file", i))
		if err != nil {
			t.Fatal(err)
		}
		was, err1 := f.Stat()
		buf := make([]byte, was.Size)
		n, err2 := f.ReadAt(buf, 0)
		is, err3 := f.Stat()
		if string(buf[:n]) != "content" || was.Size != 7 || is.Size != 7 || errors.Join(err1, err2, err3) != nil {
			t.Errorf("%q, error %v", buf[:n], errors.Join(err1, err2, err3))
		}
	}
	if after, _ := s.Counts(); after-before != 10 || s.Count("READ") != 10 {
		t.Errorf("%d calls, %d of them READ; want 10", after-before, s.Count("READ"))
	}
}

// Content is right, or an error, whatever READ returns.
func TestReads(t *testing.T) {
	want := string(bytes.Repeat([]byte("0123456789abcdef"), 200_000)) // 3.2 MB
	for _, b := range []nfs3test.Behavior{{}, {NoAttributes: true}, {ShortReads: 100_000}} {
		s := nfs3test.Serve(t)
		s.Add(s.Root, "file", nfs3.Regular, want)
		tree := open(t, s)
		s.Set(b)
		if got, err := content(t, tree, "", "file"); got != want || err != nil {
			t.Errorf("%+v: %d bytes, equal %v, error %v", b, len(got), got == want, err)
		}
	}
	for _, b := range []nfs3test.Behavior{{EmptyReads: true}, {LyingReads: true}} {
		s := nfs3test.Serve(t)
		s.Add(s.Root, "file", nfs3.Regular, want)
		tree := open(t, s)
		s.Set(b)
		if got, err := content(t, tree, "", "file"); !errors.Is(err, syscall.EIO) {
			t.Errorf("%+v: %d bytes, error %v; want EIO", b, len(got), err)
		}
	}
}

// A file that changes between two READs does not look as if it had not.
func TestChangeIsSeen(t *testing.T) {
	s := nfs3test.Serve(t)
	file := s.Add(s.Root, "file", nfs3.Regular, "content")
	tree := open(t, s)
	d, err := tree.OpenDirectory(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f, err := d.OpenFile(t.Context(), "file")
	if err != nil {
		t.Fatal(err)
	}
	before, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4)
	f.ReadAt(buf, 0)
	s.Do(func() { file.Attr.Ctime.Nsec++ })
	f.ReadAt(buf, 3)
	if after, err := f.Stat(); after.Ctime == before.Ctime || err != nil {
		t.Errorf("ctime %v, error %v; it was %v", after.Ctime, err, before.Ctime)
	}
}

// A directory of another file system is a Boundary, and so is a file.
func TestCrossing(t *testing.T) {
	s := nfs3test.Serve(t)
	dir := s.Add(s.Root, "mounted", nfs3.Directory, "")
	s.Do(func() { dir.Attr.FSID = 8 })
	s.Add(dir, "below", nfs3.Directory, "")
	file := s.Add(s.Root, "file", nfs3.Regular, "")
	s.Do(func() { file.Attr.FSID = 9 })
	tree := open(t, s)
	for range 2 { // by path, and with a kept handle
		for path, want := range map[string]backup.Flags{"": 0, "mounted": backup.Boundary, "mounted/below": 0} {
			d, err := tree.OpenDirectory(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			if d.Self().Flags != want {
				t.Errorf("%q has the flags %b, want %b", path, d.Self().Flags, want)
			}
			entries, _, _ := d.Read(t.Context(), nil, nil)
			for _, e := range entries {
				if e.Name == "file" && e.Flags != backup.Boundary {
					t.Errorf("the file has the flags %b", e.Flags)
				}
			}
			d.Close()
		}
	}
	if err := source.CheckTree(t.Context(), tree, []string{"mounted"}); err != nil {
		t.Error(err)
	}
	s.Do(func() { dir.Attr.FSID = 7 })
	if err := source.CheckTree(t.Context(), tree, []string{"mounted"}); !source.IsOtherTree(err) {
		t.Errorf("error %v, want that nothing is mounted", err)
	}
}

// Attributes and names that no file can have are problems of one entry, or of the directory.
func TestImpossible(t *testing.T) {
	s := nfs3test.Serve(t)
	s.Add(s.Root, "good", nfs3.Regular, "")
	bad := s.Add(s.Root, "bad", nfs3.Regular, "")
	tree := open(t, s)
	for what, change := range map[string]func(a *nfs3.Attr){
		"type":  func(a *nfs3.Attr) { a.Type = 99 },
		"time":  func(a *nfs3.Attr) { a.Mtime.Nsec = 1e9 },
		"ctime": func(a *nfs3.Attr) { a.Ctime.Nsec = 1<<32 - 1 },
		"size":  func(a *nfs3.Attr) { a.Size = 1 << 63 },
	} {
		was := bad.Attr
		s.Do(func() { change(&bad.Attr) })
		names, problems, err := list(t, tree, "")
		wantNames(t, names, err, "good")
		if fmt.Sprint(problems) != "[bad stat false]" {
			t.Errorf("%s: problems %q", what, problems)
		}
		s.Do(func() { bad.Attr = was })
	}
	for _, name := range []string{"a/b", "", "nul\x00", strings.Repeat("x", 1100)} {
		s.Add(s.Root, name, nfs3.Regular, "")
		if _, _, err := list(t, tree, ""); !errors.Is(err, syscall.EIO) {
			t.Errorf("the name %q: error %v, want EIO", name, err)
		}
		s.Delete(s.Root, name)
	}
}

// The connection is reset at each call in turn, and the server restarts; the walk does not notice.
func TestResets(t *testing.T) {
	s := nfs3test.Serve(t)
	dir := s.Add(s.Root, "dir", nfs3.Directory, "")
	s.Add(dir, "file", nfs3.Regular, "content")
	s.Add(s.Root, "link", nfs3.Symlink, "target")
	tree := open(t, s)
	for at := range 8 {
		first, _ := s.Counts()
		s.Spoil(func(c *rpctest.Call) rpctest.Fault {
			if c.Number-first == at {
				return rpctest.Reset
			}
			return nil
		})
		names, problems, err := list(t, tree, "")
		wantNames(t, names, err, "dir link")
		if len(problems) > 0 {
			t.Errorf("problems %q", problems)
		}
		if got, err := content(t, tree, "dir", "file"); got != "content" || err != nil {
			t.Errorf("content %q, error %v", got, err)
		}
		if err := tree.Check(t.Context()); err != nil {
			t.Error(err)
		}
	}
	s.Restart(t)
	if err := tree.Check(t.Context()); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

// A server that is away makes the tree unavailable, and nothing in it gone.
func TestAway(t *testing.T) {
	s := nfs3test.Serve(t)
	s.Add(s.Root, "dir", nfs3.Directory, "")
	tree, err := nfs.New(nfs.Options{}).Open(t.Context(), strings.Replace(urlOf(s), "retry=20s", "retry=500ms", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	list(t, tree, "")
	s.Stop()
	for what, err := range map[string]error{
		"OpenDirectory": second(tree.OpenDirectory(t.Context(), "dir")), "Check": tree.Check(t.Context()),
		"Open": second(nfs.New(nfs.Options{}).Open(t.Context(), strings.Replace(urlOf(s), "retry=20s", "retry=500ms", 1))),
	} {
		if !errors.Is(err, backup.ErrUnavailable) || source.IsGone(err) || source.IsOtherTree(err) {
			t.Errorf("%s: error %v, want ErrUnavailable", what, err)
		}
	}
	s.Start(t)
	if err := tree.Check(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// Another root behind the export is another tree, and a root that the server forgot is too.
func TestOtherRoot(t *testing.T) {
	s := nfs3test.Serve(t)
	tree := open(t, s)
	was := s.Root
	s.Do(func() { was.Stale(true) })
	if err := tree.Check(t.Context()); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("error %v, want ErrUnavailable", err)
	}
	s.Do(func() { was.Stale(false) })
	other := s.Add(was, "other", nfs3.Directory, "")
	s.Do(func() { s.Root = other })
	if err := tree.Check(t.Context()); !source.IsOtherTree(err) {
		t.Errorf("error %v, want another tree", err)
	}
}

func TestURLs(t *testing.T) {
	for _, url := range []string{
		"", "nfs:", "nfs://", "nfs:///export", "nfs://host", "posix:///x", "nfs://user@host/x", "nfs://host/x#y", "nfs://host:0x1/x", "nfs://host:99999/x",
		"nfs://host/x?connections=0", "nfs://host/x?connections=17", "nfs://host/x?uid=-1", "nfs://host/x?groups=1,x", "nfs://host/x?reserved=maybe",
		"nfs://host/x?timeout=0s", "nfs://host/x?retry=soon", "nfs://host/x?other=1", "nfs://host/x?uid=1&uid=2", "nfs://host/x?", "nfs://host/%00",
		"nfs://host/x?groups=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17",
	} {
		if tree, err := nfs.New(nfs.Options{}).Open(t.Context(), url); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%q: %v, error %v; want ErrInvalid", url, tree, err)
		}
	}
}

//go:build linux

package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// Every kind of entry has the attributes that the kernel returns, from one stat each. A
// subdirectory has its name, kind and inode, from none.
func (s *suite) testKinds(t *testing.T) {
	dir, tree := s.tree(t)
	when := time.Date(1969, 12, 31, 23, 59, 58, 987654321, time.UTC)
	if !s.has(EarlyTimes) {
		when = when.AddDate(1, 0, 0)
	}
	spec := treetest.Tree{
		"file":     treetest.File("hello").WithMode(0o640).WithMtime(when),
		"setid":    treetest.File("").WithMode(0o6755),
		"sticky":   treetest.Dir().WithMode(0o1777),
		"same":     treetest.HardLink("file"),
		"link":     treetest.Symlink("file"),
		"dangling": treetest.Symlink("no/such/file"),
		"outside":  treetest.Symlink("/etc/passwd"),
		"odd":      treetest.Symlink("a\n\xff" + strings.Repeat("x", 900)),
		"fifo":     treetest.FIFO().WithMode(0o600),
		"socket":   treetest.Socket(),
		"sparse":   treetest.Sparse(1 << 40),
	}
	if os.Getuid() == 0 {
		spec["null"] = treetest.CharDev(1, 3)
		spec["block"] = treetest.BlockDev(259, 70000)
		spec["owned"] = treetest.File("x").WithOwner(123456789, 0x7fffffff)
	}
	treetest.Make(t, dir, spec)
	d := openDirectory(t, tree, "")
	if got, want := s.asKernel(d.Self()), s.kernelEntry(t, dir); !reflect.DeepEqual(got, want) {
		t.Errorf("the root:\n got %+v\nwant %+v", got, want)
	}
	if s.has(Devices) && tree.RootDevice() != d.Self().Device {
		t.Errorf("RootDevice %d, want the root's %d", tree.RootDevice(), d.Self().Device)
	}
	entries, statCalls := byName(t, d)
	for name := range spec {
		want := s.kernelEntry(t, filepath.Join(dir, name))
		if want.Kind == backup.Directory {
			want = backup.Entry{Kind: want.Kind, Inode: want.Inode}
		}
		if got := s.asKernel(entries[name]); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
	if len(entries) != len(spec) {
		t.Errorf("%d entries, want %d", len(entries), len(spec))
	}
	if want := len(spec) - 1; statCalls != want { // except the directory
		t.Errorf("%d stat calls, want %d", statCalls, want)
	}
	if a, b := entries["file"], entries["same"]; a.Inode != b.Inode || a.Nlink != 2 {
		t.Errorf("hard links %+v and %+v, want the same inode and Nlink 2", a, b)
	}
}

// A name is any bytes except '/' and NUL.
func (s *suite) testNames(t *testing.T) {
	dir, tree := s.tree(t)
	names := []string{"a", " ", "\n", "...", "..a", ".hidden", "*", `\`, "\xff\xfe", "é", "-rf", strings.Repeat("x", 255), strings.Repeat("é", 127), "$(x)"}
	for c := byte(1); c != 0; c++ {
		if c != '/' && c != '.' {
			names = append(names, "n"+string([]byte{c}))
		}
	}
	for i, name := range names {
		if i%2 == 0 {
			treetest.Make(t, dir, treetest.Tree{name: treetest.File(name)})
		} else {
			treetest.Make(t, dir, treetest.Tree{name + "/inner": treetest.File(name)})
		}
	}
	entries, _ := byName(t, openDirectory(t, tree, ""))
	if len(entries) != len(names) {
		t.Errorf("%d entries, want %d", len(entries), len(names))
	}
	for i, name := range names {
		parent, file := "", name
		if i%2 == 1 {
			parent, file = name, "inner"
		}
		if got := readFile(t, openDirectory(t, tree, parent), file); got != name {
			t.Errorf("content of %q in %q: %q", file, parent, got)
		}
	}
}

func (s *suite) testEmptyDirectory(t *testing.T) {
	_, tree := s.tree(t)
	d := openDirectory(t, tree, "")
	for range 2 { // further reads also return the end
		entries, n, err := d.Read(context.Background(), nil, nil)
		if len(entries) != 0 || n != 0 || err != io.EOF {
			t.Errorf("%d entries, %d stat calls, error %v; want the end", len(entries), n, err)
		}
	}
}

// A large directory is returned in bounded pieces, every entry once.
func (s *suite) testLargeDirectory(t *testing.T) {
	files, most := 100_000, 20_000
	if !testtarget.Runs(testtarget.Long) {
		files, most = 20_000, 10_000
	}
	dir, tree := s.tree(t)
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for i := range files {
		if err := unix.Mknodat(fd, fmt.Sprintf("file with a name of some length %d", i), unix.S_IFREG|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	d := openDirectory(t, tree, "")
	seen := make(map[string]bool, files)
	stats := 0
	var piece []backup.Entry
	for {
		var n int
		piece, n, err = d.Read(context.Background(), piece[:0], func(name, op string, err error) { t.Error(name, op, err) })
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if stats += n; len(piece) > most {
			t.Fatalf("%d entries at once: this is not bounded", len(piece))
		}
		for _, e := range piece {
			if seen[e.Name] {
				t.Errorf("%q came twice", e.Name)
			}
			seen[e.Name] = true
		}
	}
	if len(seen) != files || stats != files {
		t.Errorf("%d entries, %d stat calls, want %d of both", len(seen), stats, files)
	}
}

// Paths may be longer than PATH_MAX, because of long names or of many.
func (s *suite) testDeepPath(t *testing.T) {
	for _, name := range []string{strings.Repeat("n", 255), "ab"} {
		dir, tree := s.tree(t)
		path := makeDeep(t, dir, name, 3*unix.PathMax)
		d := openDirectory(t, tree, path)
		entries, _ := byName(t, d)
		if e, ok := entries["file"]; !ok || e.Kind != backup.File {
			t.Errorf("the file at the end of %d bytes of path did not come", len(path))
		}
		if got := readFile(t, d, "file"); got != "deep" {
			t.Errorf("content %q, want deep", got)
		}
		if _, err := tree.OpenDirectory(context.Background(), path+"/link"); !errors.Is(err, backup.ErrOutside) {
			t.Errorf("a symlink at the end: error %v, want ErrOutside", err)
		}
	}
}

// makeDeep creates nested directories until their path is long, and a file and a symlink in the
// last. They are removed before the test's directory is.
func makeDeep(t *testing.T, dir, name string, pathBytes int) (path string) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for len(path) < pathBytes {
		if err := unix.Mkdirat(at, name, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(at)
		if err != nil {
			t.Fatal(err)
		}
		at, path = next, backup.Join(path, name)
	}
	defer unix.Close(at)
	fd, err := unix.Openat(at, "file", unix.O_WRONLY|unix.O_CREAT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte("deep")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Symlinkat("/", at, "link"); err != nil {
		t.Fatal(err)
	}
	return path
}

// An entry that vanishes while a directory is read is left out and reported as gone; the others are
// returned.
func (s *suite) testVanishing(t *testing.T) {
	dir, tree := s.tree(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	for i := range 200 {
		treetest.Make(t, dir, treetest.Tree{fmt.Sprintf("stays%d", i): treetest.File("")})
	}
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			path := filepath.Join(dir, fmt.Sprintf("goes%d", i%50))
			_ = os.WriteFile(path, nil, 0o600)
			_ = os.Remove(path)
		}
	}()
	for range 200 {
		entries, _ := readAll(t, openDirectoryOnce(t, tree, ""))
		stays := 0
		for _, e := range entries {
			if strings.HasPrefix(e.Name, "stays") {
				stays++
			}
		}
		if stays != 200 {
			t.Errorf("%d of 200 entries that stay came", stays)
		}
	}
	close(stop)
	<-stopped

	if _, err := tree.OpenDirectory(context.Background(), "goes0"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is not there: error %v, want ErrNotExist", err)
	}
	if _, err := openDirectory(t, tree, "").OpenFile(context.Background(), "goes0"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: error %v, want ErrNotExist", err)
	}
}

//go:build linux

package posix_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/treetest"
)

// The budget of system calls: one statx per entry and per directory, none for a subdirectory in its
// parent, and five calls to read a small file.
func TestSystemCalls(t *testing.T) {
	if os.Getenv("BCTL_TEST_TRACED") != "" {
		return // this is the process under strace
	}
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("strace is not installed")
	}
	dir := t.TempDir()
	spec := treetest.Tree{"link": treetest.Symlink("x"), "fifo": treetest.FIFO(), "empty/dir": treetest.Dir()}
	for _, name := range []string{"a", "b", "d/c", "d/d", "d/e/f"} {
		spec[name] = treetest.File("content")
	}
	treetest.Make(t, dir, spec)

	// Directories: the root, d, d/e, empty, empty/dir. Each costs two getdents64; the second
	// returns the end.
	want := map[string]int{"openat2": 5, "getdents64": 10, "statx": 5 + 7, "readlinkat": 1}
	if got := trace(t, dir, "walk"); !equalCounts(got, want) {
		t.Errorf("a walk of 7 entries in 5 directories: %v, want %v", got, want)
	}
	want = map[string]int{"statx": 2, "fstatfs": 2, "openat": 1}
	if got := trace(t, dir, "check"); !equalCounts(got, want) {
		t.Errorf("a check of the root: %v, want %v", got, want)
	}
	want = map[string]int{"openat": 1, "statx": 2, "preadv2": 1, "flistxattr": 1}
	if got := trace(t, dir, "read"); !equalCounts(got, want) {
		t.Errorf("reading a small file: %v, want %v", got, want)
	}
}

// A mounted part of a tree costs no more than the rest of it.
func TestSystemCallsBelowAMount(t *testing.T) {
	if os.Getenv("BCTL_TEST_TRACED") != "" {
		return
	}
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("strace is not installed")
	}
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{"mnt": treetest.Dir()})
	treetest.Tmpfs(t, filepath.Join(dir, "mnt"))
	treetest.Make(t, dir, treetest.Tree{"mnt/a/b/file": treetest.File("x"), "mnt/c": treetest.Dir()})
	want := map[string]int{"openat2": 5, "getdents64": 10, "statx": 5 + 1}
	if got := trace(t, dir, "walk"); !equalCounts(got, want) {
		t.Errorf("a walk of a file in 5 directories: %v, want %v", got, want)
	}
}

// TestTraced runs under strace. Two calls mark the measured part.
func TestTraced(t *testing.T) {
	dir := os.Getenv("BCTL_TEST_TRACED")
	if dir == "" {
		t.Skip("runs under TestSystemCalls")
	}
	tree := openTree(t, dir)
	d, err := tree.OpenDirectory(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	unix.Chdir("/begin of the measured part")
	switch os.Getenv("BCTL_TEST_PART") {
	case "walk":
		walkAll(t, tree, nil)
	case "read":
		readAsReader(t, d, "a")
	case "check":
		if err := tree.Check(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	unix.Chdir("/end of the measured part")
}

func readAsReader(t *testing.T, d source.Directory, name string) {
	f, err := d.OpenFile(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var before, after backup.Entry
	if before, err = f.Stat(); err != nil {
		t.Fatal(err)
	}
	if start, length, err := f.NextExtent(0, before.Size); start != 0 || length != before.Size || err != nil {
		t.Fatal(start, length, err)
	}
	if n, err := f.ReadAt(make([]byte, 64<<10), 0); int64(n) != before.Size || err != io.EOF {
		t.Fatal(n, err)
	}
	if _, err := f.Xattrs(); err != nil {
		t.Fatal(err)
	}
	if after, err = f.Stat(); err != nil || after.Ctime != before.Ctime {
		t.Fatal(after, err)
	}
}

// trace returns how often the measured part makes each system call on files, except close.
func trace(t *testing.T, dir, part string) map[string]int {
	log := filepath.Join(t.TempDir(), "strace")
	cmd := exec.Command("strace", "-f", "-o", log,
		"-e", "trace=%file,%desc", "-e", "signal=none", os.Args[0], "-test.run=^TestTraced$", "-test.count=1")
	cmd.Env = append(os.Environ(), "BCTL_TEST_TRACED="+dir, "BCTL_TEST_PART="+part)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("strace: %v: %s", err, out)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	_, text2, _ := strings.Cut(string(text), "/begin of the measured part")
	measured, _, ok := strings.Cut(text2, "/end of the measured part")
	if !ok {
		t.Fatalf("the measured part is not in the trace:\n%s", text)
	}
	counts := map[string]int{}
	for _, match := range regexp.MustCompile(`(?m)^\d+ +(\w+)\(`).FindAllStringSubmatch(measured, -1) {
		switch match[1] {
		case "close", "chdir", "mmap", "munmap", "epoll_pwait", "epoll_wait":
		default:
			counts[match[1]]++
		}
	}
	return counts
}

func equalCounts(got, want map[string]int) bool {
	for name, n := range want {
		if got[name] != n {
			return false
		}
	}
	return len(got) == len(want)
}

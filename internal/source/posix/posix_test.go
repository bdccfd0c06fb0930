//go:build linux

package posix_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/sourcetest"
	"github.com/bctl/bctl/internal/source/treetest"
)

func TestSource(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T, dir string) source.Tree { return openTree(t, dir) })
}

// A file server that is so slow that each Read returns before its buffer is finished.
func TestSourceInPieces(t *testing.T) {
	dir := memoryDirectory(t)
	for i := range 200 {
		treetest.Make(t, dir, treetest.Tree{fmt.Sprintf("file-%03d", i): treetest.File("")})
	}
	for _, options := range []posix.Options{{}, {SortByInode: true}} {
		tree, err := posix.New(options).Open(t.Context(), posix.URL(dir))
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		posix.ReadInPieces(tree)
		d, err := tree.OpenDirectory(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		names := map[string]bool{}
		for _, want := range []int{64, 64, 64, 8} {
			entries, stats, err := d.Read(t.Context(), nil, nil)
			if len(entries) != want || stats != want || err != nil {
				t.Errorf("%d entries, %d stats, error %v; want %d", len(entries), stats, err, want)
			}
			for _, e := range entries {
				names[e.Name] = e.Kind == backup.File
			}
		}
		for i := range 200 {
			if name := fmt.Sprintf("file-%03d", i); !names[name] {
				t.Errorf("%s has not come", name)
			}
		}
		if _, _, err := d.Read(t.Context(), nil, nil); err != io.EOF {
			t.Errorf("error %v, want the end", err)
		}
	}
}

func TestSnapshots(t *testing.T) {
	sourcetest.RunSnapshots(t, posix.New(posix.Options{}), posix.URL)
}

// memoryDirectory is on tmpfs: no RWF_DONTCACHE, large extended attributes.
func memoryDirectory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "bctl-test-") //nolint:usetesting // t.TempDir need not be on tmpfs
	if err != nil {
		t.Skip("no tmpfs: ", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// On tmpfs, and without any feature that is newer than Linux 5.5.
func TestSourceOfOlderKernel(t *testing.T) {
	open := func(t *testing.T, dir string) source.Tree {
		tree := openTree(t, dir)
		posix.DisableOpenat2(tree)
		posix.DisableMountRoot(tree)
		posix.DisableXattrat(tree)
		posix.DisableCachestat(tree)
		return tree
	}
	sourcetest.Run(t, open, sourcetest.In(memoryDirectory), sourcetest.Lacks(sourcetest.Binds))
}

func TestURL(t *testing.T) {
	for path, want := range map[string]string{
		"/":             "posix:///",
		"/srv/a b":      "posix:///srv/a%20b",
		"/\xff\n%?#":    "posix:///%FF%0A%25%3F%23",
		"//twice//":     "posix:////twice//",
		"/host:80/@x;y": "posix:///host:80/@x;y",
	} {
		if got := posix.URL(path); got != want {
			t.Errorf("URL(%q) is %q, want %q", path, got, want)
		}
		if got, err := posix.Path(want); got != path || err != nil {
			t.Errorf("Path(%q) is %q, error %v; want %q", want, got, err, path)
		}
	}
	for _, url := range []string{"", "/srv", "posix:", "posix://", "posix://host/srv", "posix:/srv", "nfs:///srv", "posix:///a%", "posix:///a?b", "posix:///a%00b"} {
		if _, err := posix.Path(url); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("Path(%q): error %v, want ErrInvalid", url, err)
		}
	}
}

func FuzzURL(f *testing.F) {
	f.Add("/srv/\xff%41")
	f.Add("posix:///missing?ctime=1.5&inode=3&mtime=-2.0&snapshot=.snapshot%2Fhourly.0")
	f.Fuzz(func(t *testing.T, s string) {
		_, _ = posix.Path(s)
		if _, query, ok := strings.Cut(s, "?"); ok { // in no tree
			if _, err := posix.New(posix.Options{}).Open(t.Context(), "posix:///proc/missing?"+query); err == nil {
				t.Errorf("%q was opened", s)
			}
		}
		if path := "/" + s; !slices.Contains([]byte(path), 0) {
			if got, err := posix.Path(posix.URL(path)); got != path || err != nil {
				t.Errorf("%q came back as %q, error %v", path, got, err)
			}
		}
	})
}

func TestRoot(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{
		"file": treetest.File(""), "dir/in": treetest.File("x"), "link": treetest.Symlink("dir"),
		"dangling": treetest.Symlink("no"), "loop": treetest.Symlink("loop"), "closed": treetest.Dir().WithMode(0),
	})
	s := posix.New(posix.Options{})
	for path, want := range map[string]error{
		"missing": backup.ErrNotFound, "dangling": backup.ErrNotFound, "file": backup.ErrInvalid, "file/x": backup.ErrInvalid, "loop": backup.ErrInvalid,
	} {
		if _, err := s.Open(context.Background(), posix.URL(filepath.Join(dir, path))); !errors.Is(err, want) {
			t.Errorf("%s: error %v, want %v", path, err, want)
		}
	}
	tree := openTree(t, filepath.Join(dir, "link")) // the operator's own symlink
	if entries, _ := walkAll(t, tree, nil); entries != 1 {
		t.Errorf("%d entries behind a symlink as root, want 1", entries)
	}
	if err := tree.Close(); err != nil {
		t.Error(err)
	}
	if _, err := tree.OpenDirectory(context.Background(), ""); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("after Close: error %v, want ErrClosed", err)
	}
	if os.Getuid() == 0 { // nobody must be able to get here
		for above := dir; strings.HasPrefix(above, os.TempDir()+"/"); above = filepath.Dir(above) {
			os.Chmod(above, 0o755)
		}
	}
	asNobody(t, func() {
		if _, err := s.Open(context.Background(), posix.URL(filepath.Join(dir, "closed"))); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("closed: error %v, want ErrPermission", err)
		}
	})
}

// asNobody calls f on a thread that file systems treat as user nobody.
func asNobody(t *testing.T, f func()) {
	if os.Getuid() != 0 {
		f()
		return
	}
	var done sync.WaitGroup
	done.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		unix.RawSyscall(unix.SYS_SETFSUID, 65534, 0, 0)
		if id, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, ^uintptr(0), 0, 0); id != 65534 {
			t.Errorf("the file system user is %d", id)
			return
		}
		f()
	})
	done.Wait()
}

func TestSortByInode(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"z", "y", "c", "x", "a", "b"} {
		treetest.Make(t, dir, treetest.Tree{name: treetest.File(name)})
	}
	tree, err := posix.New(posix.Options{SortByInode: true}).Open(context.Background(), posix.URL(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	walkAll(t, tree, func(_ string, _ source.Directory, entries []backup.Entry) {
		if len(entries) != 6 || !slices.IsSortedFunc(entries, func(a, b backup.Entry) int { return int(a.Inode) - int(b.Inode) }) {
			t.Errorf("%d entries, not in the order of inodes: %+v", len(entries), entries)
		}
	})
}

// A file system whose listings do not contain the kinds of entries.
func TestUnknownKinds(t *testing.T) {
	dir := mountWithoutKinds(t)
	treetest.Make(t, dir, treetest.Tree{"dir/in": treetest.File("x"), "file": treetest.File(""), "link": treetest.Symlink("x")})
	os.Remove(filepath.Join(dir, "lost+found"))
	kinds := map[string]backup.Kind{}
	d, err := openTree(t, dir).OpenDirectory(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	entries, stats, err := d.Read(context.Background(), nil, nil)
	if err != nil || stats != 3 {
		t.Errorf("%d stat calls, error %v; want 3: the directory has cost one too", stats, err)
	}
	for _, e := range entries {
		kinds[e.Name] = e.Kind
		if e.Kind == backup.Directory && (e.Mode != 0 || !e.Mtime.IsZero()) {
			t.Errorf("a subdirectory has more than name, kind and inode: %+v", e)
		}
	}
	if kinds["dir"] != backup.Directory || kinds["file"] != backup.File || kinds["link"] != backup.Symlink {
		t.Errorf("kinds %v", kinds)
	}
}

func mountWithoutKinds(t *testing.T) string {
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 8<<20); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"mkfs.ext4", "-q", "-O", "^filetype", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%q: %v: %s", command, err, out)
		}
	}
	t.Cleanup(func() { exec.Command("umount", dir).Run() })
	return dir
}

// Calls that are made once per file or per entry do not allocate.
func TestAllocations(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{"file": treetest.File("content"), "link": treetest.Symlink("x")})
	d, err := openTree(t, dir).OpenDirectory(context.Background(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f, err := d.OpenFile(context.Background(), "file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 100)
	for name, call := range map[string]func(){
		"File.Xattrs":       func() { f.Xattrs() },
		"Directory.Xattrs":  func() { d.Xattrs(context.Background(), "", backup.Directory) },
		"File.Stat":         func() { f.Stat() },
		"File.ReadAt":       func() { f.ReadAt(buf, 0) },
		"File.NextExtent":   func() { f.NextExtent(0, 7) },
		"Directory.Read":    func() { d.Read(context.Background(), nil, nil) },
		"Directory.Self":    func() { d.Self() },
		"ReadAt at the end": func() { f.ReadAt(buf, 7) },
	} {
		if n := testing.AllocsPerRun(100, call); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if _, err := f.ReadAt(buf, 0); err != io.EOF {
		t.Errorf("error %v, want the end", err)
	}
}

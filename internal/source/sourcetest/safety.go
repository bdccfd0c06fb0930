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
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A file that became something else after it was listed is ErrReplaced, at once: a fifo without a
// writer does not block.
func (s *suite) testReplacedFile(t *testing.T) {
	dir, tree := s.tree(t)
	outside := t.TempDir()
	treetest.Make(t, outside, treetest.Tree{"file": treetest.File("secret")})
	treetest.Make(t, dir, treetest.Tree{"target": treetest.File("x")})
	replacements := treetest.Tree{
		"fifo":     treetest.FIFO(),
		"socket":   treetest.Socket(),
		"link":     treetest.Symlink("target"),
		"outside":  treetest.Symlink(filepath.Join(outside, "file")),
		"dangling": treetest.Symlink("nowhere"),
		"dir":      treetest.Dir(),
	}
	if os.Getuid() == 0 {
		replacements["null"] = treetest.CharDev(1, 3)
	}
	for name := range replacements {
		treetest.Make(t, dir, treetest.Tree{name: treetest.File("x")})
	}
	d := openDirectory(t, tree, "")
	readAll(t, d)
	for name := range replacements {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	treetest.Make(t, dir, replacements)
	for name := range replacements {
		if f, err := d.OpenFile(context.Background(), name); !errors.Is(err, source.ErrReplaced) {
			t.Errorf("%s: error %v, want ErrReplaced", name, err)
			if err == nil {
				f.Close()
			}
		}
	}
}

func (s *suite) testNotADirectory(t *testing.T) {
	dir, tree := s.tree(t)
	treetest.Make(t, dir, treetest.Tree{"file": treetest.File(""), "fifo": treetest.FIFO()})
	for _, path := range []string{"file", "fifo", "file/below"} {
		if _, err := tree.OpenDirectory(context.Background(), path); !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("%s: error %v, want ENOTDIR", path, err)
		}
	}
}

// Invalid paths are refused by their form; they may come from a message.
func (s *suite) testBadPaths(t *testing.T) {
	dir, tree := s.tree(t)
	treetest.Make(t, dir, treetest.Tree{"a/b/file": treetest.File("")})
	for _, path := range []string{"..", "a/..", "a/../..", "../" + filepath.Base(dir), "/", "/etc", "a//b", "a/", ".", "a/./b", "a\x00"} {
		_, err := tree.OpenDirectory(context.Background(), path)
		if !errors.Is(err, backup.ErrOutside) && !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("OpenDirectory(%q): error %v, want ErrOutside or ErrInvalid", path, err)
		}
	}
	d := openDirectory(t, tree, "a")
	for _, name := range []string{"", ".", "..", "b/file", "../a/b/file", "/etc/passwd", "b\x00"} {
		if _, err := d.OpenFile(context.Background(), name); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("OpenFile(%q): error %v, want ErrInvalid", name, err)
		}
		if _, err := d.Xattrs(context.Background(), name, backup.Symlink); name != "" && !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("Xattrs(%q): error %v, want ErrInvalid", name, err)
		}
	}
}

// No component of a path may be a symlink, not even one that leads inside.
func (s *suite) testOutside(t *testing.T) {
	dir, tree := s.tree(t)
	outside := t.TempDir()
	treetest.Make(t, outside, treetest.Tree{"below/file": treetest.File("secret")})
	treetest.Make(t, dir, treetest.Tree{
		"inside/below/file": treetest.File("x"),
		"absolute":          treetest.Symlink(outside),
		"relative":          treetest.Symlink("../" + filepath.Base(filepath.Dir(outside))),
		"within":            treetest.Symlink("inside"),
		"self":              treetest.Symlink("."),
		"loop":              treetest.Symlink("loop"),
		"proc":              treetest.Symlink("/proc/self/root"),
	})
	for _, path := range []string{"absolute", "absolute/below", "relative", "within", "within/below", "self", "self/inside", "loop", "proc/etc"} {
		d, err := tree.OpenDirectory(context.Background(), path)
		if !errors.Is(err, backup.ErrOutside) {
			t.Errorf("%s: error %v, want ErrOutside", path, err)
		}
		if err == nil {
			d.Close()
		}
	}
}

// While a directory and a file are exchanged with symlinks to the outside as fast as possible,
// nothing outside is ever read (I10).
func (s *suite) testSwappedRapidly(t *testing.T) {
	dir, tree := s.tree(t)
	outside := t.TempDir()
	treetest.Make(t, outside, treetest.Tree{"below/file": treetest.File("secret")})
	treetest.Make(t, dir, treetest.Tree{
		"d/below/file": treetest.File("inside"),
		"d-link":       treetest.Symlink(outside),
		"file":         treetest.File("inside"),
		"file-link":    treetest.Symlink(filepath.Join(outside, "below/file")),
	})
	lasting, most := time.Now().Add(time.Second), time.Minute // a slow source needs longer to meet the race
	if testing.Short() {
		lasting = time.Now().Add(200 * time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for ctx.Err() == nil {
			for _, name := range []string{"d", "file"} {
				path := filepath.Join(dir, name)
				if err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, path+"-link", unix.RENAME_EXCHANGE); err != nil {
					t.Errorf("swap: %v", err)
					return
				}
			}
		}
	})
	outcomes := map[string]int{}
	root := openDirectory(t, tree, "")
	all := []string{"directory: inside", "directory: outside", "file: inside", "file: replaced"}
	missing := func(outcome string) bool { return outcomes[outcome] == 0 }
	for ctx.Err() == nil && (time.Now().Before(lasting) || slices.ContainsFunc(all, missing)) {
		outcomes["directory: "+tryRead(t, tree, "d/below")]++
		outcomes["file: "+tryReadFile(t, root, "file")]++
	}
	cancel()
	swapper.Wait()
	for _, want := range all {
		if outcomes[want] == 0 {
			t.Errorf("never %q: the race was not met", want)
		}
	}
	t.Log(outcomes)
}

func tryRead(t *testing.T, tree source.Tree, path string) string {
	d, err := tree.OpenDirectory(context.Background(), path)
	if errors.Is(err, backup.ErrOutside) {
		return "outside"
	}
	if err != nil {
		t.Errorf("open %s: %v", path, err)
		return "error"
	}
	defer d.Close()
	return tryReadFile(t, d, "file")
}

func tryReadFile(t *testing.T, d source.Directory, name string) string {
	f, err := d.OpenFile(context.Background(), name)
	if errors.Is(err, source.ErrReplaced) {
		return "replaced"
	}
	if err != nil {
		t.Errorf("open %s: %v", name, err)
		return "error"
	}
	defer f.Close()
	content := make([]byte, 100)
	n, err := f.ReadAt(content, 0)
	if err != io.EOF || string(content[:n]) != "inside" {
		t.Fatalf("read %q, error %v: this is from outside", content[:n], err)
	}
	return "inside"
}

// Entries that may not be read are fs.ErrPermission. Those that can still be read with stat are
// listed.
func (s *suite) testPermission(t *testing.T) {
	if !s.has(LocalErrors) {
		t.Skip("the source does not act as the calling thread")
	}
	dir, tree := s.tree(t)
	treetest.Make(t, dir, treetest.Tree{
		"closed":       treetest.Dir().WithMode(0),
		"closed/file":  treetest.File(""),
		"no-file":      treetest.File("x").WithMode(0),
		"list/file":    treetest.File("x"),
		"list":         treetest.Dir().WithMode(0o444), // names can be read, attributes cannot
		"enter/file":   treetest.File("x"),
		"enter":        treetest.Dir().WithMode(0o111),
		"file":         treetest.File("x"),
		"not-mine/sub": treetest.Dir(), // O_NOATIME is for owners
	})
	t.Cleanup(func() {
		for _, name := range []string{"closed", "list", "enter"} {
			os.Chmod(filepath.Join(dir, name), 0o700)
		}
	})
	var done sync.WaitGroup
	done.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := dropPrivileges(); err != nil {
			t.Errorf("drop privileges: %v", err)
			return
		}
		if err := checkPermission(tree); err != nil {
			t.Error(err)
		}
	})
	done.Wait()
}

// dropPrivileges makes file systems treat this thread as another user.
func dropPrivileges() error {
	if os.Getuid() != 0 {
		return nil
	}
	const nobody = 65534
	unix.RawSyscall(unix.SYS_SETFSGID, nobody, 0, 0)
	unix.RawSyscall(unix.SYS_SETFSUID, nobody, 0, 0)
	if id, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, ^uintptr(0), 0, 0); id != nobody {
		return fmt.Errorf("the file system user is %d", id)
	}
	return nil
}

func checkPermission(tree source.Tree) error {
	ctx := context.Background()
	for path, mode := range map[string]uint32{"closed": 0, "enter": 0o111} {
		d, err := tree.OpenDirectory(ctx, path)
		if err != nil {
			return fmt.Errorf("directory %s, which may be looked at: %w", path, err)
		}
		defer d.Close()
		if d.Self().Mode != mode {
			return fmt.Errorf("directory %s: mode %#o, want %#o", path, d.Self().Mode, mode)
		}
		if _, _, err := d.Read(ctx, nil, nil); !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("list directory %s: error %v, want ErrPermission", path, err)
		}
	}
	root, err := tree.OpenDirectory(ctx, "")
	if err != nil {
		return err
	}
	defer root.Close()
	if _, err := root.OpenFile(ctx, "no-file"); !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("no-file: error %v, want ErrPermission", err)
	}
	f, err := root.OpenFile(ctx, "file")
	if err != nil {
		return fmt.Errorf("a file of somebody else that may be read: %w", err)
	}
	f.Close()
	for _, path := range []string{"not-mine", "not-mine/sub"} {
		d, err := tree.OpenDirectory(ctx, path)
		if err != nil {
			return fmt.Errorf("a directory of somebody else that may be read: %w", err)
		}
		d.Close()
	}
	d, err := tree.OpenDirectory(ctx, "list")
	if err != nil {
		return err
	}
	defer d.Close()
	var problems []string
	entries, statCalls, err := d.Read(ctx, nil, func(name, op string, err error) {
		problems = append(problems, fmt.Sprint(name, " ", op, " ", errors.Is(err, fs.ErrPermission)))
	})
	if err != nil || len(entries) != 0 || statCalls != 1 || len(problems) != 1 || problems[0] != "file stat true" {
		return fmt.Errorf("a directory that may only be listed: %d entries, %d stat calls, problems %q, error %v; want the problem of the file's stat",
			len(entries), statCalls, problems, err)
	}
	return nil
}

// Many goroutines may use a tree, and OpenFile of one directory, at once.
func (s *suite) testConcurrency(t *testing.T) {
	dir, tree := s.tree(t)
	spec := treetest.Tree{}
	for i := range 20 {
		for j := range 20 {
			spec[fmt.Sprintf("d%d/f%d", i, j)] = treetest.File(fmt.Sprintf("content %d %d", i, j))
		}
	}
	treetest.Make(t, dir, spec)
	var workers sync.WaitGroup
	for worker := range 8 {
		workers.Go(func() {
			for i := range 20 {
				i = (i + worker) % 20
				d := openDirectoryOnce(t, tree, fmt.Sprintf("d%d", i))
				entries, _ := readAll(t, closing{openDirectoryOnce(t, tree, fmt.Sprintf("d%d", i))})
				var readers sync.WaitGroup
				for _, e := range entries {
					readers.Go(func() {
						var j int
						fmt.Sscanf(e.Name, "f%d", &j)
						if got, want := readFile(t, d, e.Name), fmt.Sprintf("content %d %d", i, j); got != want {
							t.Errorf("%s: %q, want %q", e.Name, got, want)
						}
					})
				}
				readers.Wait()
				d.Close()
			}
		})
	}
	workers.Wait()
}

func (s *suite) testCancelled(t *testing.T) {
	dir, tree := s.tree(t)
	treetest.Make(t, dir, treetest.Tree{"file": treetest.File("x")})
	d := openDirectory(t, tree, "")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := tree.OpenDirectory(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("OpenDirectory: error %v, want Canceled", err)
	}
	if _, _, err := d.Read(ctx, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Read: error %v, want Canceled", err)
	}
	if _, err := d.OpenFile(ctx, "file"); !errors.Is(err, context.Canceled) {
		t.Errorf("OpenFile: error %v, want Canceled", err)
	}
}

//go:build linux

package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/treetest"
)

// The root of a tree is the same each time it is opened, even if the tree has changed. It differs
// from every other root.
func (s *suite) testRoot(t *testing.T) {
	dir, tree := s.tree(t)
	root := tree.Root()
	if !root.IsUnique(backup.CompareAll) {
		t.Errorf("the root %q has no identity of its own", root)
	}
	if parsed, err := backup.ParseRoot(root.String()); err != nil || parsed != root {
		t.Errorf("%q is read as %q, error %v", root, parsed, err)
	}
	treetest.Make(t, dir, treetest.Tree{"sub/file": treetest.File("x")})
	s.change(t, dir)
	again := s.open(t, dir)
	defer again.Close()
	if why := root.Differs(again.Root(), backup.CompareAll); why != "" {
		t.Errorf("the root differs when it is opened again: %s", why)
	}
	other := s.open(t, filepath.Join(dir, "sub"))
	defer other.Close()
	if root.Differs(other.Root(), backup.CompareAll) == "" {
		t.Errorf("the root %q does not differ from %q, another directory", root, other.Root())
	}
}

// change changes everything that may change in a root that stays the same.
func (s *suite) change(t *testing.T, dir string) {
	t.Helper()
	treetest.Make(t, dir, treetest.Tree{"comes": treetest.File("x"), "moves/in": treetest.File("x"), "goes": treetest.Dir()})
	longAgo := time.Unix(1e9, 0)
	for _, err := range []error{
		os.Remove(filepath.Join(dir, "goes")), os.Rename(filepath.Join(dir, "moves"), filepath.Join(dir, "moved")),
		os.Chmod(dir, 0o711), os.Chtimes(dir, longAgo, longAgo), os.Chmod(dir, 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The current time of a tree's clock is not later than the stamp of a change made immediately
// afterwards.
func (s *suite) testClock(t *testing.T) {
	dir, tree := s.tree(t)
	for i := range 200 {
		now, behind := tree.Clock()
		if behind < 0 || behind > time.Minute || time.Since(now).Abs() > time.Hour {
			t.Fatalf("the clock says %v, or %v before that", now, behind)
		}
		path := filepath.Join(dir, fmt.Sprint("file", i))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if e, least := s.kernelEntry(t, path), backup.TimeOf(now.Add(-behind)); e.Ctime.Compare(least) < 0 {
			t.Fatalf("a change is stamped with %v, before %v", e.Ctime.Time(), least.Time())
		}
	}
}

// Check distinguishes changes of a tree's root from changes of its content.
func (s *suite) testCheck(t *testing.T) {
	other := func(t *testing.T, err error) {
		t.Helper()
		if !source.IsOtherTree(err) || !errors.Is(err, backup.ErrUnavailable) {
			t.Errorf("error %v, want that another tree is there", err)
		}
	}
	unavailable := func(t *testing.T, err error) {
		t.Helper()
		if !errors.Is(err, backup.ErrUnavailable) {
			t.Errorf("error %v, want ErrUnavailable", err)
		}
	}
	well := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("error %v, although the root exists", err)
		}
	}
	must := func(t *testing.T, errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		become func(t *testing.T, dir string)
		want   func(t *testing.T, err error)
	}{
		"nothing":         {func(*testing.T, string) {}, well},
		"content changes": {s.change, well},
		"content goes":    {func(t *testing.T, dir string) { must(t, os.RemoveAll(filepath.Join(dir, "sub"))) }, well},
		"moves and returns": {func(t *testing.T, dir string) {
			must(t, os.Rename(dir, dir+"-away"), os.Rename(dir+"-away", dir))
		}, well},
		"mounted over, and that unmounted": {func(t *testing.T, dir string) { treetest.Tmpfs(t, dir)() }, well},
		"removed":                          {func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) }, unavailable},
		"moves":                            {func(t *testing.T, dir string) { must(t, os.Rename(dir, dir+"-away")) }, unavailable},
		"replaced by a file": {func(t *testing.T, dir string) {
			must(t, os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600))
		}, unavailable},
		"replaced by rename": {func(t *testing.T, dir string) {
			must(t, os.Mkdir(dir+"-new", 0o755), unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, dir+"-new", unix.RENAME_EXCHANGE))
		}, other},
		"removed and made again": {func(t *testing.T, dir string) { must(t, os.RemoveAll(dir), os.Mkdir(dir, 0o755)) }, other},
		"mounted over":           {func(t *testing.T, dir string) { treetest.Tmpfs(t, dir) }, other},
		"bound over": {func(t *testing.T, dir string) {
			must(t, os.Mkdir(dir+"-new", 0o755))
			treetest.Bind(t, dir+"-new", dir)
		}, other},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(name, " over") {
				s.needMounts(t)
			}
			dir := filepath.Join(s.dir(t), "root")
			treetest.Make(t, dir, treetest.Tree{"sub/file": treetest.File("x")})
			tree := s.open(t, dir)
			defer tree.Close()
			well(t, tree.Check(t.Context()))
			test.become(t, dir)
			for range 2 {
				test.want(t, tree.Check(t.Context()))
			}
		})
	}
}

// A mounted root no longer exists after it is unmounted, although files that were opened in it can
// still be read.
func (s *suite) testCheckUnmounted(t *testing.T) {
	s.needMounts(t)
	for name, mount := range s.mounts() {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(s.dir(t), "root")
			treetest.Make(t, dir, treetest.Tree{"below": treetest.File("x")})
			unmount := mount(t, dir)
			treetest.Make(t, dir, treetest.Tree{"sub/file": treetest.File("x")})
			tree := s.open(t, dir)
			defer tree.Close()
			if err := tree.Check(t.Context()); err != nil {
				t.Error(err)
			}
			unmount()
			if err := tree.Check(t.Context()); !source.IsOtherTree(err) {
				t.Errorf("error %v, want that another tree is there", err)
			}
		})
	}
}

// needMounts skips a test of mounts.
func (s *suite) needMounts(t *testing.T) {
	t.Helper()
	if !s.has(Mounts) {
		t.Skip("the source does not notice mounts")
	}
}

// mounts returns the ways to mount something at a directory.
func (s *suite) mounts() map[string]func(t testing.TB, dir string) (unmount func()) {
	return map[string]func(t testing.TB, dir string) func(){
		"tmpfs": treetest.Tmpfs,
		"loop":  treetest.Loop,
		"bind": func(t testing.TB, dir string) func() {
			t.Helper()
			from := dir + "-bound"
			treetest.Make(t, from, nil)
			return treetest.Bind(t, from, dir)
		},
	}
}

// A directory has the flag Boundary if a file system begins there, and no other entry has it.
func (s *suite) testBoundary(t *testing.T) {
	s.needMounts(t)
	for name, mount := range s.mounts() {
		t.Run(name, func(t *testing.T) {
			if name == "bind" && !s.has(Binds) {
				t.Skip("the source does not detect bind mounts")
			}
			dir, tree := s.tree(t)
			treetest.Make(t, dir, treetest.Tree{"a/mnt": treetest.Dir(), "a/plain/in": treetest.Dir(), "file": treetest.File("x")})
			unmount := mount(t, filepath.Join(dir, "a/mnt"))
			treetest.Make(t, dir, treetest.Tree{"a/mnt/sub/deep": treetest.Dir(), "a/mnt/file": treetest.File("x"), "a/mnt/sub/link": treetest.Symlink("x")})
			for path, want := range map[string]bool{"": false, "a": false, "a/plain": false, "a/plain/in": false, "a/mnt": true, "a/mnt/sub": false, "a/mnt/sub/deep": false} {
				s.wantBoundary(t, tree, path, want)
			}
			inside := s.open(t, filepath.Join(dir, "a/mnt")) // the parents of a root are ignored
			defer inside.Close()
			s.wantBoundary(t, inside, "", false)
			s.wantBoundary(t, inside, "sub", false)
			unmount()
			s.wantBoundary(t, tree, "a/mnt", false)
		})
	}
}

// wantBoundary checks a directory and its entries.
func (s *suite) wantBoundary(t *testing.T, tree source.Tree, path string, want bool) {
	t.Helper()
	d := openDirectoryOnce(t, tree, path)
	if got := d.Self().Flags; got&backup.Boundary != 0 != want || got&^backup.Boundary != 0 {
		t.Errorf("directory %q has the flags %b; it begins a file system: %v", path, got, want)
	}
	entries, _ := readAll(t, d)
	for _, e := range entries {
		if e.Flags != 0 {
			t.Errorf("%q in %q has the flags %b", e.Name, path, e.Flags)
		}
	}
}

// A file at which something is mounted is on a file system of its own.
func (s *suite) testBoundaryFile(t *testing.T) {
	if !s.has(Binds) {
		t.Skip("the source does not detect bind mounts")
	}
	dir, tree := s.tree(t)
	treetest.Make(t, dir, treetest.Tree{"from": treetest.File("bound"), "to": treetest.File("below"), "plain": treetest.File("")})
	treetest.Bind(t, filepath.Join(dir, "from"), filepath.Join(dir, "to"))
	entries, _ := byName(t, openDirectory(t, tree, ""))
	for name, want := range map[string]backup.Flags{"from": 0, "to": backup.Boundary, "plain": 0} {
		if got := entries[name].Flags; got != want {
			t.Errorf("%s has the flags %b, want %b", name, got, want)
		}
	}
}

// Walkers and readers rely on CheckTree: the root, and what is mounted in the tree.
func (s *suite) testCheckTree(t *testing.T) {
	s.needMounts(t)
	dir, tree := s.tree(t)
	treetest.Make(t, dir, treetest.Tree{"mnt/below": treetest.File("x"), "sub/mnt": treetest.Dir()})
	unmount := treetest.Tmpfs(t, filepath.Join(dir, "mnt"))
	other := treetest.Tmpfs(t, filepath.Join(dir, "sub/mnt"))
	both := []string{"mnt", "sub/mnt"}
	check := func(mounts ...string) error { return source.CheckTree(context.Background(), tree, mounts) }
	if err := check(both...); err != nil {
		t.Errorf("nothing has changed: %v", err)
	}
	other()
	if err := check(both[:1]...); err != nil {
		t.Errorf("a mount that was not named counts: %v", err)
	}
	if err := check(both...); !source.IsOtherTree(err) {
		t.Errorf("error %v, want that sub/mnt is not mounted", err)
	}
	unmount()
	if err := check(both...); !source.IsOtherTree(err) {
		t.Errorf("error %v, want that mnt is not mounted", err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "mnt")); err != nil {
		t.Fatal(err)
	}
	if err := check("mnt"); !source.IsOtherTree(err) {
		t.Errorf("error %v, want that mnt is gone", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := check(); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("error %v, want that the root is gone", err)
	}
}

// A closed tree can neither be checked nor read.
func (s *suite) testClosed(t *testing.T) {
	tree := s.open(t, s.dir(t))
	var closing sync.WaitGroup
	for range 4 {
		closing.Go(func() {
			_ = tree.Check(context.Background()) // meanwhile
			if err := tree.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	closing.Wait()
	if err := tree.Check(t.Context()); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Check: error %v, want ErrClosed", err)
	}
	if _, err := tree.OpenDirectory(t.Context(), ""); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("OpenDirectory: error %v, want ErrClosed", err)
	}
}

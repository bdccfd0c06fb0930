//go:build linux

package sourcetest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/treetest"
)

type snapshots struct {
	source source.Source
	url    func(dir string) string
	lacks  []Feature
}

// RunSnapshots runs the part of the suite for source snapshots. url returns src's URL for a
// directory of this machine.
func RunSnapshots(t *testing.T, src source.Source, url func(dir string) string, lacks ...Feature) {
	s := &snapshots{src, url, lacks}
	for name, test := range map[string]func(*testing.T){
		"Resolve":         s.testResolve,
		"AnyBytes":        s.testAnyBytes,
		"NoMatch":         s.testNoMatch,
		"NothingOutside":  s.testNothingOutside,
		"BadPatterns":     s.testBadPatterns,
		"BadURLs":         s.testBadURLs,
		"Rotation":        s.testRotation,
		"Removed":         s.testRemoved,
		"RemovedWithTop":  s.testRemovedWithTop,
		"BecameSymlink":   s.testBecameSymlink,
		"ChangedInPlace":  s.testChangedInPlace,
		"DeviceOfItsOwn":  s.testDeviceOfItsOwn,
		"ResolveCanceled": s.testResolveCanceled,
	} {
		t.Run(name, test)
	}
}

func (s *snapshots) resolve(t *testing.T, dir, pattern string) string {
	t.Helper()
	url, err := s.source.Resolve(t.Context(), s.url(dir), pattern)
	if err != nil {
		t.Fatal(err)
	}
	return url
}

func (s *snapshots) open(t *testing.T, url string) source.Tree {
	t.Helper()
	tree, err := s.source.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

// wantFile fails the test unless the tree has a file of this name at its root.
func wantFile(t *testing.T, tree source.Tree, name string) {
	t.Helper()
	entries, _ := byName(t, openDirectory(t, tree, ""))
	if _, ok := entries[name]; !ok {
		t.Errorf("the tree has %d entries, but no %q", len(entries), name)
	}
}

func (s *snapshots) wantExpired(t *testing.T, tree source.Tree, url string) {
	t.Helper()
	if err := tree.Check(t.Context()); !errors.Is(err, source.ErrExpired) {
		t.Errorf("Check: error %v, want ErrExpired", err)
	}
	again, err := s.source.Open(t.Context(), url)
	if !errors.Is(err, source.ErrExpired) {
		t.Errorf("Open: error %v, want ErrExpired", err)
	}
	if err == nil {
		again.Close()
	}
}

func (s *snapshots) testResolve(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{
		"live":                                  treetest.File(""),
		".snapshot/hourly.0/newest":             treetest.File(""),
		".snapshot/hourly.1/older":              treetest.File(""),
		".snapshot/hourly.10/oldest":            treetest.File(""),
		".snapshot/daily.2024-02-01_0010/day":   treetest.File(""),
		".snapshot/daily.2024-01-31_0010/other": treetest.File(""),
		".snapshot/hourly.file":                 treetest.File("not a directory"),
		".snapshot/hourly.link":                 treetest.Symlink("hourly.10"),
		"auto-9/export/a":                       treetest.File(""),
		"auto-10/export/b":                      treetest.File(""),
	})
	for pattern, want := range map[string]string{
		".snapshot/hourly.*":           "newest",
		".snapshot/hourly.[1-9]":       "older",
		".snapshot/daily.*":            "day",
		".snapshot/hourly.10":          "oldest",
		".snap*/hourly.?":              "newest",
		"auto-*/export":                "b",
		"auto-*/e*":                    "b",
		".snapshot/daily.2024-01-31_*": "other",
	} {
		t.Run(strings.ReplaceAll(pattern, "/", ":"), func(t *testing.T) {
			url := s.resolve(t, dir, pattern)
			for range 2 {
				tree := s.open(t, url)
				wantFile(t, tree, want)
				if err := tree.Check(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func (s *snapshots) testAnyBytes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a b%?#\xff")
	treetest.Make(t, dir, treetest.Tree{"&=+ \xff\n?/s;1/file": treetest.File("")})
	tree := s.open(t, s.resolve(t, dir, "&*/s;?"))
	wantFile(t, tree, "file")
	if err := tree.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// An error names the pattern and the directory that was searched.
func (s *snapshots) testNoMatch(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{
		".snapshot/daily.0/file": treetest.File(""), ".snapshot/hourly.9": treetest.File(""), "file": treetest.File(""),
	})
	for _, pattern := range []string{".snapshot/hourly.*", ".zfs/snapshot/*", ".snapshot/daily.*/missing", "file", "file/*", ".snapshot/hourly.9"} {
		_, err := s.source.Resolve(t.Context(), s.url(dir), pattern)
		if !errors.Is(err, backup.ErrNotFound) || !strings.Contains(err.Error(), pattern) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%q: error %v, want ErrNotFound, the pattern and %s", pattern, err, dir)
		}
	}
	if _, err := s.source.Resolve(t.Context(), s.url(dir+"/missing"), "*"); !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("in no tree: error %v, want ErrNotFound", err)
	}
}

// No component may be a symlink, neither of the pattern nor of a snapshot that is found (I10).
func (s *snapshots) testNothingOutside(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	treetest.Make(t, outside, treetest.Tree{"hourly.0/secret": treetest.File("")})
	treetest.Make(t, dir, treetest.Tree{
		"link":             treetest.Symlink(outside),
		"within":           treetest.Symlink("snap"),
		"snap/hourly.0":    treetest.Symlink(filepath.Join(outside, "hourly.0")),
		"snap/hourly.1/in": treetest.File(""),
	})
	for _, pattern := range []string{"link/hourly.*", "link/hourly.0", "within/hourly.*", "snap/hourly.0", "li*/hourly.0"} {
		if url, err := s.source.Resolve(t.Context(), s.url(dir), pattern); !errors.Is(err, backup.ErrNotFound) {
			t.Errorf("%q is %s, error %v; want ErrNotFound", pattern, url, err)
		}
	}
	wantFile(t, s.open(t, s.resolve(t, dir, "snap/hourly.*")), "in")
}

func (s *snapshots) testBadPatterns(t *testing.T) {
	for _, pattern := range []string{"", "/", "..", "../*", "a/../b", "a//b", "[", "a/[x"} {
		if _, err := s.source.Resolve(t.Context(), s.url(t.TempDir()), pattern); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%q: error %v, want ErrInvalid", pattern, err)
		}
	}
}

// A snapshot has no snapshots, and an incomplete URL is invalid.
func (s *snapshots) testBadURLs(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{"snap/a/b/file": treetest.File("")})
	url := s.resolve(t, dir, "snap/*")
	if _, err := s.source.Resolve(t.Context(), url, "*"); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("a snapshot's snapshot: error %v, want ErrInvalid", err)
	}
	for _, bad := range []string{url + "&a=b", url + "x", s.url(dir) + "?", s.url(dir) + "?a=b", url[:len(url)-len("snap%2Fa")] + "..", url[:len(url)-len("snap%2Fa")]} {
		tree, err := s.source.Open(t.Context(), bad)
		if err == nil {
			tree.Close()
		}
		if !errors.Is(err, backup.ErrInvalid) && !errors.Is(err, source.ErrExpired) {
			t.Errorf("%s: error %v, want ErrInvalid", bad, err)
		}
	}
}

// hourly.0 becomes hourly.1, and a new snapshot takes its place.
func (s *snapshots) testRotation(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{"hourly.0/first": treetest.File(""), "hourly.1/before": treetest.File("")})
	url := s.resolve(t, dir, "hourly.*")
	tree := s.open(t, url)
	for _, names := range [][2]string{{"hourly.1", "hourly.2"}, {"hourly.0", "hourly.1"}} {
		if err := os.Rename(filepath.Join(dir, names[0]), filepath.Join(dir, names[1])); err != nil {
			t.Fatal(err)
		}
	}
	s.wantExpired(t, tree, url) // while there is none
	treetest.Make(t, dir, treetest.Tree{"hourly.0/second": treetest.File("")})
	s.wantExpired(t, tree, url)
	wantFile(t, s.open(t, s.resolve(t, dir, "hourly.*")), "second")
}

func (s *snapshots) testRemoved(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{"snap/1/file": treetest.File("")})
	url := s.resolve(t, dir, "snap/*")
	tree := s.open(t, url)
	if err := os.RemoveAll(filepath.Join(dir, "snap/1")); err != nil {
		t.Fatal(err)
	}
	s.wantExpired(t, tree, url)
}

// If the whole tree is gone, nothing is known about the snapshot, except that it cannot be trusted.
func (s *snapshots) testRemovedWithTop(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "top")
	treetest.Make(t, dir, treetest.Tree{"snap/1/file": treetest.File("")})
	url := s.resolve(t, dir, "snap/*")
	tree := s.open(t, url)
	if err := os.Rename(dir, dir+"-moved"); err != nil {
		t.Fatal(err)
	}
	if err := tree.Check(t.Context()); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("Check: error %v, want ErrUnavailable", err)
	}
	if _, err := s.source.Open(t.Context(), url); !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("Open: error %v, want ErrNotFound", err)
	}
}

func (s *snapshots) testBecameSymlink(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{"snap/1/file": treetest.File("")})
	url := s.resolve(t, dir, "snap/*")
	tree := s.open(t, url)
	if err := os.Rename(filepath.Join(dir, "snap"), filepath.Join(dir, "other")); err != nil {
		t.Fatal(err)
	}
	treetest.Make(t, dir, treetest.Tree{"snap": treetest.Symlink("other")})
	s.wantExpired(t, tree, url)
}

// A directory with the same inode but changed attributes is another snapshot.
func (s *snapshots) testChangedInPlace(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{"snap/1/file": treetest.File("")})
	url := s.resolve(t, dir, "snap/*")
	tree := s.open(t, url)
	if err := os.Chmod(filepath.Join(dir, "snap/1"), 0o711); err != nil {
		t.Fatal(err)
	}
	s.wantExpired(t, tree, url)
}

// The device of a source snapshot is the one that it is mounted from, not that of the live tree.
func (s *snapshots) testDeviceOfItsOwn(t *testing.T) {
	if slices.Contains(s.lacks, Mounts) {
		t.Skip("the source does not notice mounts")
	}
	dir := t.TempDir()
	mounted := filepath.Join(dir, "snap/1")
	treetest.Make(t, dir, treetest.Tree{"snap/1": treetest.Dir()})
	if err := unix.Mount("bctl-test", mounted, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(mounted, unix.MNT_DETACH) })
	treetest.Make(t, mounted, treetest.Tree{"file": treetest.File("")})
	tree := s.open(t, s.resolve(t, dir, "snap/*"))
	root := openDirectory(t, tree, "")
	if tree.RootDevice() != root.Self().Device || tree.RootDevice() == s.open(t, s.url(dir)).RootDevice() {
		t.Errorf("the root's device is %#x, the tree's %#x", root.Self().Device, tree.RootDevice())
	}
	if err := unix.Unmount(mounted, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := tree.Check(t.Context()); !errors.Is(err, source.ErrExpired) {
		t.Errorf("unmounted: error %v, want ErrExpired", err)
	}
}

func (s *snapshots) testResolveCanceled(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{"snap/1/file": treetest.File("")})
	tree := s.open(t, s.resolve(t, dir, "snap/*"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.source.Resolve(ctx, s.url(dir), "snap/*"); !errors.Is(err, context.Canceled) {
		t.Errorf("Resolve: error %v, want Canceled", err)
	}
	if err := tree.Check(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Check: error %v, want Canceled", err)
	}
	if err := tree.Close(); err != nil {
		t.Fatal(err)
	}
	if err := tree.Check(t.Context()); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Check of a closed tree: error %v, want ErrClosed", err)
	}
}

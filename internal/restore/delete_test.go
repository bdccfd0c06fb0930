package restore

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore/target"
)

func TestDelete(t *testing.T) {
	f := newFixture(t)
	f.directory("", f.file("keep", "k"), subdirectory("dir"), subdirectory("unread"))
	f.directory("dir", f.file("in", "i"))
	outside := t.TempDir()
	write(t, filepath.Join(outside, "precious"), "p", testTime)
	prepare := func(t *testing.T) string {
		target := t.TempDir()
		check(t, os.MkdirAll(filepath.Join(target, "dir/extra/deep"), 0o755))
		check(t, os.MkdirAll(filepath.Join(target, "unread"), 0o755))
		for _, path := range []string{"extra", "cache", "dir/extra/deep/file", "unread/old"} {
			write(t, filepath.Join(target, path), "x", testTime)
		}
		check(t, os.Symlink(outside, filepath.Join(target, "dir/extra/out")))
		check(t, os.Symlink(outside, filepath.Join(target, "out")))
		return target
	}
	deleted := []string{"delete dir/extra", "delete dir/extra/deep", "delete dir/extra/deep/file", "delete dir/extra/out", "delete extra", "delete out"}

	t.Run("dry run", func(t *testing.T) {
		target := prepare(t)
		sum, obs := f.restore(Options{Target: target, Delete: true, DryRun: true, Exclude: patterns(t, "cache")})
		if got, want := obs.actions(), slices.Concat([]string{"attributes dir", "create dir/in", "create keep"}, deleted); !slices.Equal(got, want) || sum.Deleted != 6 || sum.Attributes != 1 || sum.Bytes != 2 {
			t.Errorf("%q, want %q; %+v", got, want, sum)
		}
		wantNames(t, target, "dir", "unread", "extra", "cache", "out")
	})
	t.Run("delete", func(t *testing.T) {
		target := prepare(t)
		sum, obs := f.restore(Options{Target: target, Delete: true, Exclude: patterns(t, "cache")})
		obs.wantProblems(t, "unread") // it has no page, so nothing about it is known
		if got := obs.deleted(); !slices.Equal(got, deleted) || sum.Deleted != 6 {
			t.Errorf("%q, want %q; %+v", got, deleted, sum)
		}
		wantNames(t, target, "dir", "unread", "keep", "cache")
		wantNames(t, filepath.Join(target, "dir"), "in")
		wantFile(t, filepath.Join(target, "unread/old"), "x")
	})
	wantFile(t, filepath.Join(outside, "precious"), "p")
}

// deleted returns the actions that delete.
func (o *observer) deleted() []string {
	return slices.DeleteFunc(o.actions(), func(a string) bool { return !strings.HasPrefix(a, "delete ") })
}

// A dry run reports exactly what a real run then does, and exactly that is then missing.
func TestDryRunReportsWhatGoes(t *testing.T) {
	for what, test := range map[string]struct {
		o       Options
		prepare func(t *testing.T, f *fixture, target string)
	}{
		"nothing there": {prepare: func(*testing.T, *fixture, string) {}},
		"a tree": {prepare: func(t *testing.T, _ *fixture, target string) {
			tree(t, target, "x/y/z/1", "x/y/2", "x/3", "4", "dir/5", "dir/x/6", "dir/sub/7")
		}},
		"excluded in what goes": {o: Options{Exclude: patterns(t, "cache")}, prepare: func(t *testing.T, _ *fixture, target string) {
			tree(t, target, "x/y/cache", "x/z/1", "dir/x/cache/2", "dir/x/3", "cache/4")
		}},
		"included alone": {o: Options{Include: patterns(t, "*.txt", "/dir/sub")}, prepare: func(t *testing.T, _ *fixture, target string) {
			tree(t, target, "1.txt", "2.bin", "x/3.txt", "dir/4.txt", "dir/5.bin", "dir/sub/6.bin", "dir/sub/x/7.bin")
		}},
		"directories in the way": {prepare: func(t *testing.T, _ *fixture, target string) {
			tree(t, target, "file/1/2", "empty/3", "link/4", "dir/a/5", "dir/b/6/7", "dir/in/8")
		}},
		"directories in the way of what is kept": {o: Options{Exclude: patterns(t, "cache")}, prepare: func(t *testing.T, _ *fixture, target string) {
			tree(t, target, "file/1/cache", "dir/b/cache", "dir/b/2")
		}},
		"directories in the way that stay": {o: Options{Overwrite: Never}, prepare: func(t *testing.T, _ *fixture, target string) {
			tree(t, target, "file/1/2", "dir/b/6/7")
		}},
		"files in the way": {prepare: func(t *testing.T, _ *fixture, target string) {
			tree(t, target, "dir", "x")
		}},
		"files in the way that stay": {o: Options{Overwrite: Never}, prepare: func(t *testing.T, _ *fixture, target string) {
			tree(t, target, "dir", "x")
		}},
		"symlinks": {prepare: func(t *testing.T, _ *fixture, target string) {
			outside := t.TempDir()
			tree(t, outside, "precious")
			for _, name := range []string{"out", "dir", "file"} {
				check(t, os.Symlink(outside, filepath.Join(target, name)))
			}
			t.Cleanup(func() { wantFile(t, filepath.Join(outside, "precious"), "precious") })
		}},
		"a mount": {prepare: func(t *testing.T, _ *fixture, target string) {
			tree(t, target, "x/mounted/1", "x/2", "x/z/3")
			mount(t, filepath.Join(target, "x/mounted"), "size=64k")
			tree(t, filepath.Join(target, "x/mounted"), "4")
		}},
		"what was not finished": {prepare: func(t *testing.T, f *fixture, target string) {
			tree(t, target, "dir/in", "x/1")
			unfinished(t, f.snapshot, target, "file", "another")
			unfinished(t, f.snapshot, filepath.Join(target, "dir"), "in", "another")
		}},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t)
			a, b := f.file("a", "linked"), f.file("b", "linked")
			a.Nlink, b.Nlink = 2, 2
			f.directory("", f.file("file", "f"), f.file("empty", ""), symlink("link", "x"), subdirectory("dir"))
			f.directory("dir", a, b, f.file("in", "i"), subdirectory("sub"))
			f.directory("dir/sub", f.file("in", "i"))
			target := t.TempDir()
			test.prepare(t, f, target)
			before := allNames(t, target)

			o := test.o
			o.Target, o.Delete, o.DryRun = target, true, true
			dry, dryObs, err := f.tryRestore(context.Background(), o)
			check(t, err)
			if got := allNames(t, target); !slices.Equal(got, before) {
				t.Fatalf("a dry run has left %q of %q", got, before)
			}
			o.DryRun = false
			wet, wetObs, err := f.tryRestore(context.Background(), o)
			check(t, err)
			if got, want := dryObs.actions(), wetObs.actions(); !slices.Equal(got, want) {
				t.Errorf("a dry run reports %q, the real one did %q", got, want)
			}
			if got, want := dryObs.problemPaths(), wetObs.problemPaths(); !slices.Equal(got, want) {
				t.Errorf("a dry run has problems at %q, the real one at %q: %v, %v", got, want, dryObs.problems, wetObs.problems)
			}
			if dry.Deleted != wet.Deleted || int(wet.Deleted) != len(wetObs.deleted()) {
				t.Errorf("%d, %d and %d are deleted", dry.Deleted, wet.Deleted, len(wetObs.deleted()))
			}
			after := allNames(t, target)
			for _, path := range before {
				gone := !slices.Contains(after, path) && !strings.HasPrefix(filepath.Base(path), ".bctl-")
				if gone && !slices.Contains(wetObs.deleted(), "delete "+path) {
					t.Errorf("%s is gone, and that was not reported", path)
				}
			}
			for _, action := range wetObs.deleted() {
				path := strings.TrimPrefix(action, "delete ")
				if !slices.Contains(before, path) {
					t.Errorf("%s was not there and is reported", path)
				}
			}
			for _, path := range after {
				if strings.HasPrefix(filepath.Base(path), ".bctl-") {
					t.Errorf("%s is left", path)
				}
			}
		})
	}
}

func (o *observer) problemPaths() (paths []string) {
	for _, p := range o.problems {
		paths = append(paths, p.Path)
	}
	slices.Sort(paths)
	return paths
}

// unfinished creates what an interrupted restore of a snapshot can leave.
func unfinished(t *testing.T, snapshot backup.SnapshotID, at string, names ...string) {
	t.Helper()
	root, err := target.Open(target.Options{Path: at, Salt: snapshot[:]})
	check(t, err)
	defer root.Close()
	dir, err := root.Dir("")
	check(t, err)
	defer dir.Release()
	for _, name := range names {
		out, err := dir.Create(&backup.Entry{Name: name}, target.CreateOptions{Temporary: true})
		check(t, err)
		check(t, out.Park())
	}
}

// tree creates files whose content is their own name.
func tree(t *testing.T, dir string, paths ...string) {
	t.Helper()
	for _, path := range paths {
		path = filepath.Join(dir, path)
		check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		write(t, path, filepath.Base(path), testTime)
	}
}

// mount mounts a new tmpfs, if the test has the rights.
func mount(t *testing.T, dir, options string) {
	t.Helper()
	needRoot(t)
	if err := unix.Mount("bctl-test", dir, "tmpfs", 0, options); err != nil {
		t.Skip("cannot mount: ", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
}

// Hard links whose names differ in case are two names if case is significant.
func TestDeleteLinkWithLettersOfOtherCase(t *testing.T) {
	f := newFixture(t)
	one, two := f.file("file", "f"), f.file("FILE", "f")
	one.Nlink, two.Nlink = 2, 2
	f.directory("", one, two)
	target := t.TempDir()
	f.restore(Options{Target: target})
	check(t, os.Link(filepath.Join(target, "file"), filepath.Join(target, "File")))
	_, obs := f.restore(Options{Target: target, Delete: true})
	obs.wantProblems(t)
	wantNames(t, target, "file", "FILE")
}

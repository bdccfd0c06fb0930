package restore

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// A file or directory with a protected inode is not deleted, overwritten or entered under any of
// its names, and that is reported.
func TestProtectedInodes(t *testing.T) {
	for _, o := range []Options{{Overwrite: Always}, {Overwrite: IfChanged}} {
		f := newFixture(t)
		a, b := f.file("a", "linked"), f.file("b", "linked")
		a.Nlink, b.Nlink = 2, 2
		f.directory("", a, b, f.file("dir", "f"), f.file("file", "f"), subdirectory("in"), subdirectory("sub"))
		f.directory("in", f.file("file", "f"))
		f.directory("sub", f.file("file", "f"))
		target := t.TempDir()
		tree(t, target, "b", "file", "dir/file", "in", "other/deep/file", "other/gone", "sub/file", "surplus")
		paths := []string{"b", "dir", "file", "in", "other/deep", "sub", "surplus"}
		o.Target, o.Delete, o.ProtectedInodes = target, true, make(map[Inode]struct{})
		for _, path := range paths {
			st := stat(t, filepath.Join(target, path))
			o.ProtectedInodes[Inode{st.Dev, st.Ino}] = struct{}{}
		}
		for _, o.DryRun = range []bool{true, false} {
			_, obs, err := f.tryRestore(context.Background(), o)
			check(t, err)
			if got := obs.problemPaths(); !slices.Equal(got, paths) {
				t.Errorf("%s, dry run %v: problems at %q, want %q: %v", o.Overwrite, o.DryRun, got, paths, obs.problems)
			}
		}
		for _, path := range []string{"b", "file", "dir/file", "in", "other/deep/file", "sub/file", "surplus"} {
			wantFile(t, filepath.Join(target, path), filepath.Base(path))
		}
		wantFile(t, filepath.Join(target, "a"), "linked")
		wantNothing(t, filepath.Join(target, "other/gone"))
	}
}

// A target that is protected itself is left alone with all its content.
func TestProtectedTarget(t *testing.T) {
	f := newFixture(t)
	f.directory("", f.file("file", "f"))
	dir := t.TempDir()
	tree(t, dir, "surplus")
	check(t, os.Chmod(dir, 0o750))
	st := stat(t, dir)
	_, obs, err := f.tryRestore(context.Background(), Options{
		Target: dir, Delete: true, TargetAttributes: true, ProtectedInodes: map[Inode]struct{}{{st.Dev, st.Ino}: {}},
	})
	check(t, err)
	obs.wantText(t, "", errProtected.Error())
	wantNames(t, dir, "surplus")
	if now := stat(t, dir); now.Mode != st.Mode || now.Mtim != st.Mtim {
		t.Errorf("the directory has mode %o and time %v, had %o and %v", now.Mode, backup.Time{Sec: now.Mtim.Sec}, st.Mode, backup.Time{Sec: st.Mtim.Sec})
	}
}

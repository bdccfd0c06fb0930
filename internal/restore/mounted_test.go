package restore

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/selection"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A file that is mounted at the target stays. It is named, unless the backup left out mounts. A dry
// run reports the same.
func TestDeleteOfAMountedFile(t *testing.T) {
	for _, oneFileSystem := range []bool{false, true} {
		f := newFixture(t)
		f.directory("", f.file("file", "f"), subdirectory("dir"))
		f.directory("dir", f.file("file", "f"))
		target := t.TempDir()
		tree(t, target, "file", "dir/file", "hosts", "dir/hosts", "other", "gone/hosts")
		for _, path := range []string{"hosts", "dir/hosts", "gone/hosts"} {
			treetest.Bind(t, filepath.Join(target, "file"), filepath.Join(target, path))
		}
		m, err := selection.Compile(backup.Selection{OneFileSystem: oneFileSystem})
		check(t, err)
		for _, dry := range []bool{true, false} {
			_, obs := f.restore(Options{Target: target, Delete: true, DryRun: dry, LeftOut: m})
			if oneFileSystem {
				obs.wantProblems(t)
			} else {
				obs.wantProblems(t, "hosts", "dir/hosts", "gone/hosts")
			}
			deletes := slices.DeleteFunc(obs.actions(), func(action string) bool { return !strings.HasPrefix(action, string(Delete)) })
			if !slices.Equal(deletes, []string{"delete other"}) {
				t.Errorf("dry %v: %q", dry, deletes)
			}
		}
		wantNames(t, target, "dir", "file", "gone", "hosts")
		wantNames(t, filepath.Join(target, "gone"), "hosts")
	}
}

// A file system that is mounted at the target, and was not when the snapshot was taken, loses
// nothing.
func TestDeleteOnAnotherFileSystem(t *testing.T) {
	for what, test := range map[string]struct {
		flags backup.Flags
		empty bool // in the snapshot
		keeps bool // names that the snapshot does not have
	}{
		"a directory that was empty":      {empty: true, keeps: true},
		"a directory that had something":  {keeps: true},
		"a mount point that was empty":    {flags: backup.Boundary, empty: true, keeps: true},
		"a mount point with what it held": {flags: backup.Boundary},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t)
			f.directory("", subdirectory("mnt"), f.file("file", "f"))
			self := entry("", backup.Directory)
			self.Mode, self.Flags = 0o755, test.flags
			page := backup.Page{Path: "mnt", Self: &self}
			if !test.empty {
				page.Entries = []backup.Entry{f.file("in", "i"), subdirectory("sub"), f.file("way", "w")}
			}
			f.page(page)
			if !test.empty {
				f.directory("mnt/sub", f.file("in", "i"))
			}
			target := t.TempDir()
			tree(t, target, "other", "mnt/below")
			mount(t, filepath.Join(target, "mnt"), "size=64k")
			tree(t, target, "mnt/precious", "mnt/excluded", "mnt/dir/precious", "mnt/sub/precious", "mnt/way/precious")

			for _, dry := range []bool{true, false} {
				_, obs := f.restore(Options{Target: target, Delete: true, DryRun: dry, Exclude: patterns(t, "excluded")})
				switch {
				case !test.keeps:
					obs.wantProblems(t)
				case test.empty:
					obs.wantProblems(t, "mnt")
					obs.wantText(t, "mnt", "another file system is mounted here; nothing on it was deleted")
				default:
					obs.wantProblems(t, "mnt", "mnt/sub", "mnt/way")
				}
			}
			wantNothing(t, filepath.Join(target, "other"))
			for _, path := range []string{"mnt/precious", "mnt/dir/precious", "mnt/sub/precious", "mnt/way/precious"} {
				if path = filepath.Join(target, path); test.keeps {
					wantFile(t, path, "precious")
				} else {
					wantNothing(t, path)
				}
			}

			// If everything there is excluded, nothing is kept that Delete would have removed.
			_, obs := f.restore(Options{Target: target, Delete: true, Exclude: patterns(t, "/mnt/*")})
			obs.wantProblems(t)
		})
	}
}

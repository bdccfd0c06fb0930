package restore

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/treetest"
)

// thinDisk mounts an ext4 of 40 MiB at dir whose disk has room for only 3 MiB. Writes beyond that
// fail when the kernel writes them back.
func thinDisk(t *testing.T, dir string) {
	t.Helper()
	below := t.TempDir()
	mount(t, below, "size=3m")
	image := filepath.Join(below, "image")
	check(t, os.WriteFile(image, nil, 0o600))
	check(t, os.Truncate(image, 40<<20))
	out, err := exec.Command("mkfs.ext4", "-q", "-E", "lazy_itable_init=1", "-O", "^has_journal", image).CombinedOutput()
	if err != nil {
		t.Skipf("mkfs.ext4: %v: %s", err, out)
	}
	treetest.Attach(t, image, dir)
}

// wide is a snapshot of a file at the top and, below a directory, more data than a thin disk holds.
func wide(t *testing.T) *fixture {
	f := newFixture(t)
	f.directory("", f.file("top", "t"), subdirectory("mnt"))
	var files []backup.Entry
	for n := range 8 {
		files = append(files, f.file(fmt.Sprint("file", n), strings.Repeat(fmt.Sprint(n), 1<<20)))
	}
	f.directory("mnt", files...)
	return f
}

// If the target's disk fails after the last write, the restore fails, wherever the disk is mounted.
func TestDiskThatFailsAtWriteBack(t *testing.T) {
	for _, mountedAt := range []string{"", "mnt"} {
		t.Run("mounted at "+mountedAt, func(t *testing.T) {
			f, target := wide(t), t.TempDir()
			disk := filepath.Join(target, mountedAt)
			check(t, os.MkdirAll(disk, 0o755))
			thinDisk(t, disk)
			_, obs, err := f.tryRestore(t.Context(), Options{Target: target})
			var failed *SyncError
			if !errors.As(err, &failed) || !strings.Contains(err.Error(), "the file system of "+disk+": ") {
				t.Errorf("the restore ends with %v", err)
			}
			obs.wantProblems(t)
		})
	}
}

// A restore that does not wait for the disk does not know what it lacks.
func TestRestoreWithoutSync(t *testing.T) {
	f, target := wide(t), t.TempDir()
	thinDisk(t, target)
	if _, _, err := f.tryRestore(t.Context(), Options{Target: target, NoSync: true}); err != nil {
		t.Errorf("the restore ends with %v", err)
	}
}

// A disk without errors causes none, whether there is something to write or not.
func TestDisksThatTakeEverything(t *testing.T) {
	f, target := wide(t), t.TempDir()
	check(t, os.Mkdir(filepath.Join(target, "mnt"), 0o755))
	mount(t, filepath.Join(target, "mnt"), "size=16m")
	for range 2 { // the second run has nothing to do
		_, obs := f.restore(Options{Target: target})
		obs.wantProblems(t)
	}
}

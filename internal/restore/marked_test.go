package restore

import (
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/selection"
)

// Entries that a marker kept out of the backup stay, wherever their directory is, and even if the
// marker has been removed since.
func TestDeleteLeavesMarkedDirectories(t *testing.T) {
	f := newFixture(t)
	f.directory("", subdirectory("marked"), subdirectory("unmarked"), subdirectory("full"), f.file("way", "w"))
	f.directory("marked")
	f.directory("unmarked")
	f.directory("full", f.file("in", "i"))
	leftOut, err := selection.Compile(backup.Selection{ExcludeIfPresent: []string{".nobackup"}})
	check(t, err)
	target := t.TempDir()
	kept := []string{
		"marked/.nobackup", "marked/data", "marked/sub/data", "unmarked/data", "unmarked/sub/data",
		"full/new/cache/.nobackup", "full/new/cache/data", "full/new/cache/sub/data", "way/cache/.nobackup", "way/cache/data",
	}
	gone := []string{"full/extra", "full/new/data", "full/new/sub/data", "way/data"}
	tree(t, target, kept...)
	tree(t, target, gone...)
	for _, dry := range []bool{true, false} {
		_, obs := f.restore(Options{Target: target, Delete: true, DryRun: dry, LeftOut: leftOut})
		obs.wantProblems(t, "unmarked", "way")
		obs.wantText(t, "unmarked", "it is empty in the snapshot, perhaps because it then had a marker file")
		obs.wantText(t, "way", "not all of it can be deleted")
	}
	for _, path := range kept {
		wantFile(t, filepath.Join(target, path), filepath.Base(path))
	}
	for _, path := range gone {
		wantNothing(t, filepath.Join(target, path))
	}

	// Without markers, an empty directory was empty.
	f.restore(Options{Target: target, Delete: true})
	wantNames(t, filepath.Join(target, "unmarked"))
}

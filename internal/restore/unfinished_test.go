package restore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore/target"
)

// What an interrupted instant restore has left is not touched, whatever is restored there and how.
func TestUnfinishedInstantRestore(t *testing.T) {
	f := destinationTree(t)
	f.newPack()
	for what, o := range map[string]Options{
		"all": {}, "a directory": {Path: "d"}, "a file": {Path: "d/in"}, "delete": {Delete: true}, "dry": {Delete: true, DryRun: true},
		"never": {Overwrite: Never}, "always": {Overwrite: Always}, "in place": {InPlace: true}, "verify": {Verify: true},
		"selected": {Include: patterns(t, "file")}, "space": {IgnoreSpace: true}, "attributes": {TargetAttributes: true},
	} {
		o.Target = t.TempDir()
		theirs := filepath.Join(o.Target, InstantName, "upper", "theirs")
		check(t, os.MkdirAll(filepath.Dir(theirs), 0o700))
		check(t, os.WriteFile(theirs, []byte("theirs"), 0o600))
		_, err := Restore(t.Context(), f.deps(), o, &observer{})
		if unfinished := (*UnfinishedError)(nil); !errors.As(err, &unfinished) {
			t.Errorf("%s: %v", what, err)
		}
		if list, err := os.ReadDir(o.Target); err != nil || len(list) != 1 {
			t.Errorf("%s: %v, %v", what, list, err)
		}
		if data, err := os.ReadFile(theirs); string(data) != "theirs" {
			t.Errorf("%s: %q, %v", what, data, err)
		}
	}
}

// A directory of that name that the snapshot has is restored, and restored again.
func TestSnapshotOfAnUnfinishedInstantRestore(t *testing.T) {
	f := newFixture(t)
	self := entry("", backup.Directory)
	f.page(backup.Page{Self: &self, Entries: []backup.Entry{subdirectory(InstantName)}})
	f.page(backup.Page{Path: InstantName, Self: &self, Entries: []backup.Entry{f.file("in", "i")}})
	f.newPack()
	dir := t.TempDir()
	for range 2 {
		_, obs := f.restore(Options{Target: dir, space: func(string) (target.Space, error) { return target.Space{}, nil }})
		obs.wantProblems(t)
	}
}

// Delete keeps it, however deep it is, and in directories that the snapshot does not have.
func TestDeleteKeepsUnfinishedInstantRestores(t *testing.T) {
	f := destinationTree(t)
	f.newPack()
	dir := t.TempDir()
	kept := []string{"d/" + InstantName, "other/deep/" + InstantName, "file/" + InstantName}
	for _, path := range kept {
		check(t, os.MkdirAll(filepath.Join(dir, path, "upper"), 0o700))
		check(t, os.WriteFile(filepath.Join(dir, path, "upper", "theirs"), []byte("theirs"), 0o600))
	}
	check(t, os.WriteFile(filepath.Join(dir, "other", InstantName), []byte("a file of that name is deleted"), 0o600))
	for _, dry := range []bool{true, false} {
		_, obs := f.restore(Options{Target: dir, Delete: true, DryRun: dry})
		reported := 0
		for _, p := range obs.problems {
			if p.Err == errUnfinished.Error() {
				reported++
			}
		}
		if reported != len(kept) {
			t.Errorf("dry run %v: %v", dry, obs.problems)
		}
		for _, path := range kept {
			if data, err := os.ReadFile(filepath.Join(dir, path, "upper", "theirs")); string(data) != "theirs" {
				t.Errorf("%s: %q, %v", path, data, err)
			}
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "other", InstantName)); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

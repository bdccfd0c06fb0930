package restore

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore/target"
)

// With IfNewer, entries that are newer than the snapshot's stay whatever their type, and others
// are replaced.
func TestIfNewerComparesTypes(t *testing.T) {
	f := newFixture(t)
	f.directory("", f.file("file", "f"), f.file("stale", "s"), symlink("link", "new"), subdirectory("made"), subdirectory("blocked"))
	f.directory("blocked", f.file("below", "b"))
	f.directory("made", f.file("below", "b"))
	target := t.TempDir()
	earlier, later := backup.Time{Sec: testTime.Sec - 1}, backup.Time{Sec: testTime.Sec + 1}
	check(t, os.Mkdir(filepath.Join(target, "file"), 0o755)) // now
	check(t, os.Symlink("old", filepath.Join(target, "link")))
	write(t, filepath.Join(target, "stale"), "S", earlier)
	write(t, filepath.Join(target, "made"), "in the way", earlier)
	write(t, filepath.Join(target, "blocked"), "stays", later)
	for _, dry := range []bool{true, false} {
		_, obs := f.restore(Options{Target: target, Overwrite: IfNewer, DryRun: dry})
		want := []string{"create made/below", "keep file", "keep link", "replace made", "replace stale"}
		if got := obs.actions(); !slices.Equal(got, want) {
			t.Errorf("dry run %v: %q, want %q", dry, got, want)
		}
		if len(obs.problems) != 1 || obs.problems[0].Path != "blocked" {
			t.Errorf("dry run %v: problems %v", dry, obs.problems)
		}
	}
	wantFile(t, filepath.Join(target, "blocked"), "stays")
	wantFile(t, filepath.Join(target, "made/below"), "b")
	if to, err := os.Readlink(filepath.Join(target, "link")); to != "old" {
		t.Errorf("link to %q (%v)", to, err)
	}
}

// A name of a hardlinked file that is newer at the target stays, and does not become the other
// names.
func TestIfNewerKeepsNamesOfLinks(t *testing.T) {
	f := newFixture(t)
	var entries []backup.Entry
	for _, name := range []string{"a", "b", "c"} {
		e := f.file(name, "content")
		e.Nlink = 3
		entries = append(entries, e)
	}
	f.directory("", entries...)
	target := t.TempDir()
	write(t, filepath.Join(target, "a"), "newer", backup.Time{Sec: testTime.Sec + 1})
	write(t, filepath.Join(target, "c"), "older", backup.Time{Sec: testTime.Sec - 1})
	_, obs := f.restore(Options{Target: target, Overwrite: IfNewer})
	obs.wantProblems(t)
	wantFile(t, filepath.Join(target, "a"), "newer")
	wantFile(t, filepath.Join(target, "b"), "content")
	wantFile(t, filepath.Join(target, "c"), "content")
	if got, want := obs.actions(), []string{"create b", "keep a", "link c"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// No name of the target has an unfinished file, which would be newer than the snapshot's: a run
// that is killed can be repeated.
func TestIfNewerWritesUnderTemporaryNames(t *testing.T) {
	f := newFixture(t)
	f.directory("", f.file("a", "one"))
	dir := t.TempDir()
	_, obs := f.restore(Options{Target: dir, Overwrite: IfNewer, fault: func(c target.Call, name string, _ bool) error {
		if c == target.CallCreate && name == "a" {
			t.Errorf("%v: %q", c, name)
		}
		return nil
	}})
	obs.wantProblems(t)
	wantFile(t, filepath.Join(dir, "a"), "one")
}

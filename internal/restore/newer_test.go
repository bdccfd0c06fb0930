package restore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// Newer restores what was modified later, in its directories, and makes no others.
func TestNewer(t *testing.T) {
	f := newFixture(t)
	at := func(e backup.Entry, nsec uint32) backup.Entry {
		e.Mtime.Nsec = nsec
		return e
	}
	f.directory("", at(f.file("old", "o"), 100), at(f.file("new", "n"), 101), subdirectory("mixed"), subdirectory("stale"))
	f.directory("mixed", at(f.file("old", "o"), 99), at(symlink("link", "x"), 102), subdirectory("empty"))
	f.directory("mixed/empty")
	f.directory("stale", at(f.file("old", "o"), 1))
	newer := backup.Time{Sec: testTime.Sec, Nsec: 100}
	target := filepath.Join(t.TempDir(), "target")
	if sum, _ := f.restore(Options{Target: target, Newer: newer}); sum.Files != 2 || sum.Problems != 0 {
		t.Errorf("%+v", sum)
	}
	wantFile(t, filepath.Join(target, "new"), "n")
	for path, want := range map[string]bool{"old": false, "mixed/link": true, "mixed/old": false, "mixed/empty": false, "stale": false} {
		if _, err := os.Lstat(filepath.Join(target, path)); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	if sum, _ := f.restore(Options{Target: filepath.Join(t.TempDir(), "single"), Path: "old", Newer: newer}); sum.Files != 0 || sum.Problems != 0 {
		t.Errorf("one old file: %+v", sum)
	}
	existing := t.TempDir()
	if err := os.WriteFile(filepath.Join(existing, "old"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.restore(Options{Target: existing, Newer: newer, Overwrite: Always})
	wantFile(t, filepath.Join(existing, "old"), "mine")
}

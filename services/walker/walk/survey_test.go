package walk

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A survey finds what the walk of a snapshot finds, also if it takes many slices, and leaves
// nothing in the index.
func TestSurvey(t *testing.T) {
	f := newFixture(t, treetest.Tree{
		"a": treetest.File("1"), "b/c": treetest.File("22"), "b/d/e": treetest.File("333"), "b/d/f/g": treetest.File("4444"), "h/i": treetest.File("5"),
	})
	f.svc.budgets = []budget{{1, 1 << 30, 1 << 30, unlimited}}
	send := f.svc.send
	survey := func(base backup.Snapshot) (all Surveyed, parts int) {
		t.Helper()
		all, err := f.svc.survey(t.Context(), backup.Job{
			Shard: f.shard.ID, Number: base.Number + 1, Base: base.Number, Root: base.Root, Source: posix.URL(f.dir), Compare: backup.Compare(0).OrAll(),
		}, func(*backup.SliceWalked) { parts++ })
		f.svc.send = send
		must(t, err)
		return all, parts
	}
	want := func(got Surveyed, w walked, files, bytes int64) {
		t.Helper()
		got.Counts.WalkSeconds, w.counts.WalkSeconds = 0, 0
		if got.Counts != w.counts {
			t.Errorf("counts %+v, want %+v", got.Counts, w.counts)
		}
		if got.Failed != "" || got.ReadFiles != files || got.ReadBytes != bytes {
			t.Errorf("%+v, want %d files of %d bytes to read", got, files, bytes)
		}
	}

	first, parts := survey(backup.Snapshot{})
	if parts != 5 {
		t.Errorf("%d parts, want one per directory", parts)
	}
	w := f.snapshot()
	want(first, w, 5, 11)

	must(t, os.WriteFile(filepath.Join(f.dir, "b/d/e"), []byte("changed"), 0o600))
	must(t, os.WriteFile(filepath.Join(f.dir, "h/new"), []byte("n"), 0o600))
	must(t, os.RemoveAll(filepath.Join(f.dir, "b/d/f")))
	base, err := f.index.Snapshot(t.Context(), w.id)
	must(t, err)
	second, _ := survey(base)
	again, _ := survey(base)
	if second.Counts.FilesNew != 1 || second.Counts.FilesChanged != 1 || second.Counts.FilesUnchanged != 3 {
		t.Errorf("%+v", second.Counts)
	}
	w = f.snapshot()
	want(second, w, 2, 8)
	want(again, w, 2, 8)

	must(t, os.Rename(f.dir, f.dir+".away"))
	if gone, err := f.svc.survey(t.Context(), backup.Job{Shard: f.shard.ID, Source: posix.URL(f.dir)}, nil); err == nil && gone.Failed == "" {
		t.Errorf("without the tree: %+v", gone)
	}
}

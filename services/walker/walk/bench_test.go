package walk

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/treetest"
)

const maxAllocsPerEntry = 0.3

// unchanged returns a task whose tree has not changed since the last snapshot.
func unchanged(t testing.TB, directories, filesEach int) (f *fixture, task *backup.WalkTask, entries int64) {
	t.Helper()
	tree := treetest.Tree{}
	for i := range directories {
		for j := range filesEach {
			tree[fmt.Sprintf("part-%02d/dir-%04d/some-file-%04d.dat", i%10, i, j)] = treetest.File("")
		}
	}
	f = newFixture(t, tree)
	f.svc.opts.Alone = true
	f.snapshot()
	files, all := f.entries()
	return f, f.rootTask(), files + all
}

// walkUnchanged walks the task, which must have an empty result.
func (f *fixture) walkUnchanged(task *backup.WalkTask) {
	f.Helper()
	must(f, f.walk(f.Context(), task))
	if sent := f.take(); len(sent) != 1 || len(sent[0].Pages)+len(sent[0].Batches)+len(sent[0].Children) > 0 {
		f.Fatalf("an unchanged tree gives %+v", sent)
	}
}

func BenchmarkWalkUnchanged(b *testing.B) {
	f, task, entries := unchanged(b, 200, 100)
	b.ReportAllocs()
	for b.Loop() {
		f.walkUnchanged(task)
	}
	b.ReportMetric(float64(entries)*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
}

// Entries of an unchanged tree take less than one allocation each.
func TestUnchangedAllocations(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes pools forget")
	}
	f, task, entries := unchanged(t, 20, 200)
	f.walkUnchanged(task) // fills the pools
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f.walkUnchanged(task)
	runtime.ReadMemStats(&after)
	perEntry := float64(after.Mallocs-before.Mallocs) / float64(entries)
	t.Logf("%.2f allocations an entry", perEntry)
	if perEntry > maxAllocsPerEntry {
		t.Errorf("%.2f allocations an entry, want at most %v", perEntry, maxAllocsPerEntry)
	}
}

package e2e_test

import (
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
)

// A snapshot that is cancelled at a site without workers leaves nothing: its messages leave the
// queue, it is counted as cancelled and not as failed, and workers that come later have nothing of
// it to do.
func TestCancelledWhereNobodyWorks(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: -1, Readers: -1, Committers: -1})
	_, metrics := watchedCommitter(t, f)
	js := connect(t, f)
	awaitQueues(t, js)
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 43, shape{directories: 10, files: 3, meanBytes: 1000})
	settle(t)
	queued := func() uint64 {
		stream, err := js.Stream(t.Context(), "BCTL_WALK")
		if err != nil {
			t.Fatal(err)
		}
		return stream.CachedInfo().State.Msgs
	}
	running, id := f.StartBackup(tree)
	fleet.Await(t, "work to be queued", func() bool { return queued() > 0 })
	f.Must("cancel", id)
	if out := running.Wait(); out.Status == 0 {
		t.Errorf("%s", out)
	}
	fleet.Await(t, "the queue to be empty", func() bool { return queued() == 0 })
	ended := func(state string) float64 {
		return count(t, metrics, "bctl_snapshots_ended_total", `state="`+state+`"`)
	}
	fleet.Await(t, "the end to be counted", func() bool { return ended("cancelled") == 1 })
	if n := ended("failed"); n != 0 {
		t.Errorf("%v snapshots are counted as failed", n)
	}
	f.Service("walker")
	f.Service("reader")
	running, _ = f.StartBackup(tree)
	check(t, f, running.Wait(), tree)
	if n := ended("committed"); n != 1 {
		t.Errorf("%v snapshots are counted as committed", n)
	}
}

// A snapshot of a fleet that finds nothing changed has no segment in the store, however many
// workers have walked it, and one that finds a change has one.
func TestUnchangedSnapshotHasNoSegment(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{})
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 44, spread)
	settle(t)
	for round, want := range []int{1, 0, 0, 1, 0} {
		if round == 3 {
			generate(t, filepath.Join(tree, "more"), 45, shape{directories: 3, files: 3, meanBytes: 1000})
			settle(t)
		}
		running, id := f.StartBackup(tree)
		check(t, f, running.Wait(), tree)
		segments, err := filepath.Glob(filepath.Join(f.StoreDir(), "segments", id, "*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(segments) != want {
			t.Errorf("snapshot %d has %d segments, want %d", round+1, len(segments), want)
		}
	}
}

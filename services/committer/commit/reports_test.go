package commit

import (
	"cmp"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/telemetry"
)

// Leases of work that is new, has moved or has stalled are written at once, the others every third
// of the lease.
func TestReportsThatAreDue(t *testing.T) {
	const lease = 60 * time.Second
	r := newReported(lease)
	now := time.Unix(1000, 0)
	report := func(p backup.Progress) {
		p.Worker = cmp.Or(p.Worker, "w")
		r.hear(&p, now)
	}
	due := func(want ...index.Held) {
		t.Helper()
		r.forget(now)
		got := r.due(now, true)
		slices.SortFunc(got, func(a, b index.Held) int {
			return cmp.Compare(a.Task+1000*backup.TaskID(a.Batch), b.Task+1000*backup.TaskID(b.Batch))
		})
		if !slices.Equal(got, want) {
			t.Errorf("at %v: due %+v, want %+v", now.Unix(), got, want)
		}
		r.written(got, now)
	}
	report(backup.Progress{Tasks: []backup.TaskID{1, 2}, Batches: []backup.BatchID{2}, Path: "a"})
	due(index.Held{Task: 1, Worker: "w", Path: "a"}, index.Held{Task: 2, Worker: "w", Path: "a"}, index.Held{Batch: 2, Worker: "w", Path: "a"})
	now = now.Add(time.Second)
	report(backup.Progress{Tasks: []backup.TaskID{1, 2}, Batches: []backup.BatchID{2}, StalledTasks: []backup.TaskID{2}, Path: "b"})
	due(index.Held{Task: 2, Worker: "w", Path: "b", Stalled: true})
	now = now.Add(time.Second)
	report(backup.Progress{Tasks: []backup.TaskID{1, 2}, Batches: []backup.BatchID{2}})
	due(index.Held{Task: 2, Worker: "w", Path: "b"}) // it continues
	now = now.Add(time.Second)
	report(backup.Progress{Worker: "v", Tasks: []backup.TaskID{1}, Path: "c"})
	report(backup.Progress{Batches: []backup.BatchID{2}, StalledBatches: []backup.BatchID{2}})
	due(index.Held{Task: 1, Worker: "v", Path: "c"}, index.Held{Batch: 2, Worker: "w", Path: "b", Stalled: true})
	for range int(lease/3/time.Second) - 1 {
		now = now.Add(time.Second)
		report(backup.Progress{Worker: "v", Tasks: []backup.TaskID{1}})
		due()
	}
	now = now.Add(time.Second)
	report(backup.Progress{Worker: "v", Tasks: []backup.TaskID{1}})
	due(index.Held{Task: 1, Worker: "v", Path: "c"}) // the others were not reported
	if len(r.work) != 1 {
		t.Errorf("%d are remembered", len(r.work))
	}
	r.unwritten() // another committer led meanwhile
	due(index.Held{Task: 1, Worker: "v", Path: "c"})
}

// One process renews long leases only, and writes nothing for others.
func TestReportsOfOneProcess(t *testing.T) {
	r := newReported(3 * time.Minute)
	now := time.Unix(1000, 0)
	for range 59 {
		r.hear(&backup.Progress{Worker: "w", Tasks: []backup.TaskID{1}}, now)
		if got := r.due(now, false); len(got) > 0 {
			t.Fatalf("at %v: due %+v", now.Unix(), got)
		}
		now = now.Add(time.Second)
	}
	now = now.Add(time.Second)
	if got := r.due(now, false); len(got) != 1 {
		t.Errorf("due %+v after a third of the lease", got)
	}
}

// A worker that claims all work does not fill the committer's memory, nor block the reports of
// others once it is silent.
func TestReportsOfALiarAreBounded(t *testing.T) {
	r := newReported(time.Minute)
	now := time.Unix(1000, 0)
	liar := backup.Progress{Worker: "liar", Tasks: make([]backup.TaskID, 2*maxReported)}
	for i := range liar.Tasks {
		liar.Tasks[i] = backup.TaskID(1000 + i)
	}
	r.hear(&liar, now)
	if len(r.work) != maxReported {
		t.Errorf("%d reports are kept", len(r.work))
	}
	now = now.Add(r.quietFor() + time.Second)
	r.forget(now)
	r.hear(&backup.Progress{Worker: "honest", Tasks: []backup.TaskID{1}}, now)
	if len(r.work) != 1 {
		t.Errorf("%d reports are kept, and one is of now", len(r.work))
	}
}

// A worker that guesses the number of work, but not its snapshot, does not interfere with the
// worker that has it.
func TestReportsOfAnotherSnapshot(t *testing.T) {
	r := newReported(time.Minute)
	now := time.Unix(1000, 0)
	mine, guessed := backup.SnapshotID{1}, backup.SnapshotID{2}
	r.hear(&backup.Progress{Snapshot: mine, Worker: "honest", Tasks: []backup.TaskID{7}}, now)
	r.hear(&backup.Progress{Snapshot: guessed, Worker: "liar", Tasks: []backup.TaskID{7}, StalledTasks: []backup.TaskID{7}}, now)
	held := r.due(now, true)
	if len(held) != 2 || !slices.Contains(held, index.Held{Snapshot: mine, Task: 7, Worker: "honest"}) {
		t.Errorf("%+v", held)
	}
}

// Metrics count the workers' work in progress per filer, stalled or not, without the work that
// waits in a queue.
func TestHeldByFiler(t *testing.T) {
	r := newReported(time.Minute)
	now := time.Unix(1000, 0)
	r.hear(&backup.Progress{
		Worker: "w", Filer: 1, Tasks: []backup.TaskID{1, 2}, Batches: []backup.BatchID{2, 3}, StalledTasks: []backup.TaskID{2}, StalledBatches: []backup.BatchID{3},
	}, now)
	r.hear(&backup.Progress{Worker: "v", Filer: 2, Batches: []backup.BatchID{7}}, now)
	want := map[backup.FilerID]telemetry.Held{1: {Tasks: 2, Batches: 2, StalledTasks: 1, StalledBatches: 1}, 2: {Batches: 1}}
	if got := r.heldByFiler(); !maps.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

package indextest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// beginRestore begins a restore of a snapshot with some parts.
func (f *fixture) beginRestore(s backup.Snapshot, target string, parts int) index.Restore {
	f.Helper()
	r := index.Restore{ID: index.NewRestoreID(), Snapshot: s.ID, Site: "here", Target: target, Request: []byte("{}")}
	tasks := []index.RestoreTask{{Kind: index.RestoreBegin}}
	for n := range parts {
		tasks = append(tasks, index.RestoreTask{Kind: index.RestorePart, From: fmt.Appendf(nil, "%d\x00", n), To: fmt.Appendf(nil, "%d\x00", n+1)})
	}
	f.must(f.x.BeginRestore(f.ctx, r, append(tasks, index.RestoreTask{Kind: index.RestoreLast})))
	return r
}

// claimRestore claims a task, which must be of a kind.
func (f *fixture) claimRestore(worker string, lease time.Duration, kind index.RestoreTaskKind) index.RestoreTask {
	f.Helper()
	var task index.RestoreTask
	ok := false
	for began := time.Now(); !ok && time.Since(began) < 10*time.Second; { // a lease may end within a tick of the clock
		var err error
		_, task, ok, err = f.x.ClaimRestoreTask(f.ctx, "here", worker, "age1"+worker, lease)
		f.must(err)
	}
	if !ok || task.Kind != kind || task.Worker != worker {
		f.Fatalf("%s has claimed %+v, %v, want kind %d", worker, task, ok, kind)
	}
	return task
}

func (f *fixture) claimsNoRestore(site, worker string) {
	f.Helper()
	if _, task, ok, err := f.x.ClaimRestoreTask(f.ctx, site, worker, "age1", time.Minute); ok || err != nil {
		f.Fatalf("%s has claimed %+v, %v", worker, task, err)
	}
}

// The target is made first, and the last task comes after all others. Each task is settled once.
func testRestores(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.commitPages(pageOf("", "root"), pageOf("a", "in a"), pageOf("a/b", "in b"), pageOf("c", "in c"))
	var paths []string
	for v, err := range f.x.PagesIn(f.ctx, s.ID, backup.PathKey("a"), backup.PathKey("c")) {
		f.must(err)
		paths = append(paths, v.Path)
	}
	if !slices.Equal(paths, []string{"a", "a/b"}) {
		t.Fatalf("pages of %q", paths)
	}

	r := f.beginRestore(s, "/srv/data", 2)
	f.wants(f.x.BeginRestore(f.ctx, index.Restore{ID: index.NewRestoreID(), Snapshot: s.ID, Site: "here", Target: "/srv/data", Request: []byte("x")}, []index.RestoreTask{{}}), backup.ErrExists)
	f.claimsNoRestore("elsewhere", "one")
	begin := f.claimRestore("one", time.Minute, index.RestoreBegin)
	f.claimsNoRestore("here", "two")
	f.must(f.x.SettleRestoreTask(f.ctx, &begin, []byte("begun")))
	f.wants(f.x.SettleRestoreTask(f.ctx, &begin, nil), index.ErrTakenOver)

	first, second := f.claimRestore("one", time.Minute, index.RestorePart), f.claimRestore("two", time.Minute, index.RestorePart)
	if string(first.From) != "0\x00" || string(first.To) != "1\x00" || string(second.From) != "1\x00" {
		t.Fatalf("%+v, %+v", first, second)
	}
	f.claimsNoRestore("here", "three")
	wanted, err := f.x.TasksWithoutKeys(f.ctx, r.ID, 9)
	f.must(err)
	if len(wanted) != 2 || wanted[0].Row != first.Row || wanted[0].Recipient != "age1one" {
		t.Fatalf("%+v", wanted)
	}
	f.must(f.x.GiveKeys(f.ctx, first.Row, first.Attempt+1, []byte("of another attempt")))
	f.must(f.x.GiveKeys(f.ctx, first.Row, first.Attempt, []byte("keys")))
	keys, err := f.x.RenewRestoreTask(f.ctx, &first, time.Minute, 3, 30)
	f.must(err)
	if string(keys) != "keys" {
		t.Fatalf("keys %q", keys)
	}
	all, err := f.x.Restores(f.ctx)
	f.must(err)
	if got := all[0]; len(all) != 1 || got.Tasks != 4 || got.Open != 3 || got.Working != 2 || got.Waiting != 1 || got.Restorers != 2 || got.Files != 3 || got.Bytes != 30 || got.Ended() {
		t.Fatalf("%+v", all)
	}
	f.must(f.x.SettleRestoreTask(f.ctx, &second, []byte("second")))
	f.claimsNoRestore("here", "two")
	f.must(f.x.SettleRestoreTask(f.ctx, &first, []byte("first")))
	last := f.claimRestore("two", time.Minute, index.RestoreLast)
	f.must(f.x.SettleRestoreTask(f.ctx, &last, []byte("last")))
	f.claimsNoRestore("here", "two")
	tasks, err := f.x.RestoreTasks(f.ctx, r.ID, begin.Row, 2)
	f.must(err)
	if len(tasks) != 2 || string(tasks[0].Result) != "first" || string(tasks[1].Result) != "second" || !tasks[0].Settled {
		t.Fatalf("%+v", tasks)
	}
	again := f.beginRestore(s, "/srv/data", 1) // that one has ended
	f.must(f.x.EndRestore(f.ctx, again.ID))
	f.must(f.x.EndRestore(f.ctx, again.ID))
	all, err = f.x.Restores(f.ctx)
	f.must(err)
	if len(all) != 0 {
		t.Fatalf("%+v", all)
	}
}

// A task whose lease has expired goes to another worker, and the first one's results are void. A
// worker that sees another target gets no more tasks. After some failures, the restore has failed.
func testRestoresFail(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.commitPages(pageOf("", "root"))
	r := f.beginRestore(s, "/srv/data", 1)
	begin := f.claimRestore("one", time.Minute, index.RestoreBegin)
	f.must(f.x.SettleRestoreTask(f.ctx, &begin, nil))

	late := f.claimRestore("one", time.Microsecond, index.RestorePart)
	part := f.claimRestore("two", time.Minute, index.RestorePart)
	if part.Row != late.Row || part.Attempt != late.Attempt+1 {
		t.Fatalf("%+v after %+v", part, late)
	}
	f.wants(f.x.SettleRestoreTask(f.ctx, &late, nil), index.ErrTakenOver)
	f.wants(f.x.FailRestoreTask(f.ctx, &late, 0, true, "late"), index.ErrTakenOver)
	f.wants(f.x.RefuseRestore(f.ctx, &late, time.Minute, "late"), index.ErrTakenOver)
	_, err := f.x.RenewRestoreTask(f.ctx, &late, time.Minute, 0, 0)
	f.wants(err, index.ErrTakenOver)
	f.must(f.x.GiveKeys(f.ctx, late.Row, late.Attempt, []byte("keys of the late one")))
	if keys, err := f.x.RenewRestoreTask(f.ctx, &part, time.Minute, 0, 0); keys != nil || err != nil {
		t.Fatalf("keys %q, %v", keys, err)
	}

	f.must(f.x.RefuseRestore(f.ctx, &part, time.Minute, "not mounted"))
	f.claimsNoRestore("here", "two")
	refused, err := f.x.Refusals(f.ctx, r.ID)
	f.must(err)
	if !slices.Equal(refused, []index.Refusal{{Worker: "two", Reason: "not mounted"}}) {
		t.Fatalf("%+v", refused)
	}
	for range index.MaxRestoreFailures + 1 {
		task := f.claimRestore("one", time.Minute, index.RestorePart)
		f.must(f.x.FailRestoreTask(f.ctx, &task, 0, false, "the store is away"))
	}
	for n := range index.MaxRestoreFailures {
		task := f.claimRestore("one", time.Minute, index.RestorePart)
		f.must(f.x.FailRestoreTask(f.ctx, &task, 0, true, fmt.Sprint("failure ", n)))
	}
	f.claimsNoRestore("here", "one")
	all, err := f.x.Restores(f.ctx)
	f.must(err)
	if !all[0].Ended() || all[0].Failed != "failure 4" {
		t.Fatalf("%+v", all)
	}
}

// Each task is claimed once, however many workers claim at once.
func testRestoreClaims(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	s := f.commitPages(pageOf("", "root"))
	f.beginRestore(s, "/srv/data", 20)
	begin := f.claimRestore("one", time.Minute, index.RestoreBegin)
	f.must(f.x.SettleRestoreTask(f.ctx, &begin, nil))
	var mu sync.Mutex
	claimed := map[int64]int{}
	var workers sync.WaitGroup
	for n := range 4 {
		workers.Go(func() {
			for {
				_, task, ok, err := f.x.ClaimRestoreTask(f.ctx, "here", fmt.Sprint("worker", n), "age1", time.Minute)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				done := len(claimed) == 20
				if ok {
					claimed[task.Row]++
				}
				mu.Unlock()
				if !ok && (err != nil || done) {
					return
				}
			}
		})
	}
	workers.Wait()
	for row, n := range claimed {
		if n != 1 {
			t.Errorf("task %d was claimed %d times", row, n)
		}
	}
}

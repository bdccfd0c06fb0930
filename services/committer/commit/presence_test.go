package commit

import (
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A search looks for workers as the keeper does, on the test's clock.
type search struct {
	*reported
	t      *testing.T
	now    time.Time
	absent map[string]bool // at NATS
	work   map[string][]backup.TaskID
	keeper bool
}

func newSearch(t *testing.T) *search {
	return &search{
		reported: newReported(time.Minute), t: t, now: time.Unix(1000, 0),
		absent: map[string]bool{}, work: map[string][]backup.TaskID{}, keeper: true,
	}
}

func (s *search) report(instance string, tasks ...backup.TaskID) {
	s.hear(&backup.Progress{Worker: "w-" + instance, Instance: instance, Snapshot: backup.SnapshotID{1}, Tasks: tasks}, s.now)
}

// pass lets time pass, while the instances of work report every second. It returns the tasks of
// those found to be gone, and after how long.
func (s *search) pass(d time.Duration) (found []backup.TaskID, after time.Duration) {
	s.t.Helper()
	for passed := time.Duration(0); passed < d; passed += lookEvery {
		s.now = s.now.Add(lookEvery)
		if passed%time.Second == 0 {
			for instance, tasks := range s.work {
				s.report(instance, tasks...)
			}
			s.forget(s.now)
		}
		names := s.toLook(s.now, s.keeper)
		for _, name := range s.looked(names, s.absent, s.now) {
			for _, h := range s.heldBy(name) {
				found = append(found, h.Task)
			}
			s.bury(name)
			after = passed + lookEvery
		}
	}
	slices.Sort(found)
	return found, after
}

// die ends the reports of an instance, and its connection.
func (s *search) die(instance string) {
	delete(s.work, instance)
	s.absent[instance] = true
}

func (s *search) wantNone(what string, d time.Duration) {
	s.t.Helper()
	if got, _ := s.pass(d); len(got) > 0 {
		s.t.Errorf("%s: %v is handed out again", what, got)
	}
}

func TestDeadWorkerIsFound(t *testing.T) {
	s := newSearch(t)
	s.work["a"], s.work["b"] = []backup.TaskID{1, 2}, []backup.TaskID{3}
	s.wantNone("all are there", 10*time.Second)
	s.work["a"] = []backup.TaskID{2, 4} // 1 is done
	s.wantNone("all are there", 10*time.Second)
	s.die("a")
	got, after := s.pass(10 * time.Second)
	if !slices.Equal(got, []backup.TaskID{2, 4}) || after > 5*time.Second {
		t.Errorf("%v after %v, want what it had in hand within 5 s", got, after)
	}
	s.wantNone("it was found", time.Hour)
	if len(s.instances) != 1 || len(s.reported.work) != 1 {
		t.Errorf("%d instances and %d pieces of work are remembered", len(s.instances), len(s.reported.work))
	}
}

// If there are only signs that a worker is dead, its work is left to the lease.
func TestWorkerThatIsNotProvenDead(t *testing.T) {
	s := newSearch(t)
	s.work["a"] = []backup.TaskID{1}
	s.wantNone("it is there", 3*time.Second)
	delete(s.work, "a")
	s.wantNone("it is paused, and connected", 50*time.Second)

	s = newSearch(t)
	s.work["a"], s.absent["a"] = []backup.TaskID{1}, true
	s.wantNone("it reports, and may not be present", 10*time.Second)
	delete(s.work, "a")
	s.wantNone("it was never present", time.Hour)

	s = newSearch(t)
	s.work["a"] = []backup.TaskID{1}
	s.wantNone("it is there", 3*time.Second)
	for range 5 { // its connection is lost, and restored each time
		s.die("a")
		s.wantNone("its connection is lost for a moment", 2*time.Second)
		delete(s.absent, "a")
		s.work["a"] = []backup.TaskID{1}
		s.wantNone("it is back", 2*time.Second)
	}

	s.die("a")
	s.wantNone("its connection is lost", 2*time.Second)
	for range 20 { // the keeper's own connection is lost
		s.unseen()
		s.wantNone("nobody knows who is connected", time.Second)
	}

	s = newSearch(t)
	s.work["a"] = []backup.TaskID{1}
	s.wantNone("it is there", 3*time.Second)
	s.work["b"] = []backup.TaskID{1} // its message was delivered again, to another
	s.wantNone("two have it", 1*time.Second)
	s.die("a")
	s.wantNone("the other has it", 20*time.Second)

	s = newSearch(t)
	s.work["a"] = []backup.TaskID{1}
	s.wantNone("it is there", 3*time.Second)
	s.report("a") // the last report of one that was stopped
	s.die("a")
	s.wantNone("it had nothing in hand", 20*time.Second)
}

// The committer that leads after the keeper died knows the work of workers that died with it.
func TestNextKeeperFindsTheDead(t *testing.T) {
	s := newSearch(t)
	s.keeper = false
	s.work["a"] = []backup.TaskID{1}
	s.wantNone("it is there", 3*time.Second)
	s.die("a")
	s.wantNone("another looks for it", keeperTimes.term)
	s.keeper = true
	if got, after := s.pass(10 * time.Second); len(got) != 1 || after > 5*time.Second {
		t.Errorf("%v after %v", got, after)
	}
}

package installation

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// recovered returns snapshot n of the shard as a rebuild stores it.
func (f *forgetting) recovered(n int, change func(*index.RecoveredSnapshot)) index.RecoveredSnapshot {
	for len(f.snapshots) < n {
		f.snapshots = append(f.snapshots, backup.NewSnapshotID())
	}
	at := time.Now().Add(time.Duration(n) * time.Second)
	s := index.RecoveredSnapshot{
		Snapshot: backup.Snapshot{ID: f.snapshots[n-1], Number: backup.SnapshotNumber(n), State: backup.Committed, Started: at, Ended: at},
		By:       "anna", Problems: func(func(backup.Problem, error) bool) {},
	}
	s.Shard.ID = f.shard.ID
	change(&s)
	return s
}

// logged returns the actions that the log has since a number of entries.
func (f *forgetting) logged(t *testing.T, since int) (actions []string) {
	t.Helper()
	for e, err := range f.Log(t.Context(), time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		if since--; since < 0 {
			actions = append(actions, strings.Join([]string{e.Action, e.By, e.Subject}, " "))
		}
	}
	return actions
}

// The admin of a fleet recovers everything that a store may have: the database refuses none of it.
// What decides about what is kept is in the log afterwards, once, also if the admin runs the
// rebuild again. Without an entry, the database refuses the admin, too.
func TestAdminRecovers(t *testing.T) {
	f := withSnapshots(t)
	ctx := t.Context()
	known, taken := f.snapshots[1], f.snapshots[2] // a snapshot of the dump, and one that the store has no more
	snapshots := []index.RecoveredSnapshot{
		f.recovered(1, func(s *index.RecoveredSnapshot) { s.Forgotten = true }),
		f.recovered(2, func(s *index.RecoveredSnapshot) { s.Bad = "half of it is missing" }),
		f.recovered(4, func(s *index.RecoveredSnapshot) { s.Forgotten, s.Bad = true, "empty" }),
		f.recovered(5, func(s *index.RecoveredSnapshot) { s.State, s.Reason, s.Forgotten = backup.Failed, "cancelled", true }),
		f.recovered(6, func(s *index.RecoveredSnapshot) { s.State, s.Reason = backup.Failed, "cancelled" }),
		f.recovered(7, func(s *index.RecoveredSnapshot) { s.Tags, s.Amendment, s.AmendedBase = []string{"monthly"}, 2, known }), // purged
		f.recovered(8, func(s *index.RecoveredSnapshot) { s.Tags = []string{"newest"} }),
	}
	holds := []index.Hold{
		{ID: 3, Snapshot: f.snapshots[7], By: "ben", Login: "operator", Reason: "audit", Since: time.UnixMicro(7)},
		{ID: 4, Shard: f.shard.ID, By: "ben", Reason: "audit", Since: time.UnixMicro(8)},
		{ID: 9, Shard: f.shard.ID, Path: "letters/urgent", By: "ben", Reason: "case 7", Since: time.UnixMicro(9)},
	}
	released, err := f.AddHold(ctx, index.Hold{Snapshot: known, By: "ben", Reason: "released after the dump"})
	if err != nil {
		t.Fatal(err)
	}
	before := len(f.logged(t, 0))
	recoverAll := func() {
		t.Helper()
		for _, step := range []struct {
			what string
			do   func(context.Context) error
		}{
			{"a retired filer", func(ctx context.Context) error {
				_, err := f.RecoverFiler(ctx, backup.Filer{Name: "filer", Retired: true, Labels: map[string]string{"a": "b"}})
				return err
			}},
			{"a retired shard", func(ctx context.Context) error {
				retired := f.shard
				retired.Retired = true
				_, err := f.RecoverShard(ctx, retired)
				return err
			}},
			{"a policy", func(ctx context.Context) error {
				_, err := f.SetPolicy(ctx, backup.Policy{Name: "nightly", Schedule: "@daily", Retention: backup.Retention{Daily: 30}}, "anna")
				return err
			}},
			{"snapshots", func(ctx context.Context) error {
				for i := range snapshots {
					if err := f.RecoverSnapshot(ctx, snapshots[i]); err != nil {
						return fmt.Errorf("number %d: %w", snapshots[i].Number, err)
					}
				}
				return nil
			}},
			{"a snapshot that was removed", func(ctx context.Context) error {
				return f.ForgetRemoved(ctx, taken, "anna", "the store has none of it")
			}},
			{"holds", func(ctx context.Context) error {
				without, err := f.RecoverHolds(ctx, holds, "anna")
				if len(without) > 0 {
					t.Errorf("left out: %+v", without)
				}
				return err
			}},
		} {
			if err := step.do(ctx); err != nil {
				t.Fatalf("%s: %v", step.what, err)
			}
		}
	}
	want := []string{
		"policy anna policy nightly",
		"forget anna " + f.snapshots[0].String(), "forget anna " + f.snapshots[3].String(), "forget anna " + f.snapshots[4].String(), "forget anna " + taken.String(),
		fmt.Sprintf("release anna hold %d snapshot %s", released.ID, known), fmt.Sprint("hold anna hold 3 snapshot ", f.snapshots[7]),
		fmt.Sprint("hold anna hold 4 shard ", f.shard.ID), fmt.Sprint("hold anna hold 9 shard ", f.shard.ID),
	}
	for range 2 {
		recoverAll()
		if got := f.logged(t, before); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if got, err := f.Holds(ctx); err != nil || fmt.Sprint(got) != fmt.Sprint(holds) {
			t.Errorf("holds %v, %v, want %v", got, err, holds)
		}
	}
	f.testLaterCatalog(t, snapshots, holds)
	for _, statement := range []string{
		fmt.Sprintf("UPDATE snapshots SET forgotten = now() WHERE id = '%s'", f.snapshots[7]),
		"DELETE FROM holds", fmt.Sprintf("INSERT INTO holds (shard, reason, by, since) VALUES (%d, '', 'me', 0)", f.shard.ID),
	} {
		f.refused(t, Admin, statement)
	}
}

// testLaterCatalog recovers what a later catalog has changed.
func (f *forgetting) testLaterCatalog(t *testing.T, snapshots []index.RecoveredSnapshot, holds []index.Hold) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	snapshots[1].Bad = ""
	must(f.RecoverSnapshot(ctx, snapshots[1]))
	_, err := f.RecoverFiler(ctx, backup.Filer{Name: "filer"})
	must(err)
	_, err = f.RecoverShard(ctx, f.shard)
	must(err)
	must(f.RemovePolicy(ctx, "nightly", "anna"))
	for _, bytes := range []int{60, 70} { // the second one is loosened where two must confirm
		must(f.SetBrake(ctx, index.Brake{Snapshots: 40, MinSnapshots: 5, Bytes: bytes, MinBytes: 1 << 40, Operators: 2}, "admin"))
	}
	// A pruner removed it from the index that this one was.
	must(f.Remove(ctx, snapshots[0].ID))
	must(f.RecoverSnapshot(ctx, snapshots[0]))
	without, err := f.RecoverHolds(ctx, append(holds[:1:1], index.Hold{ID: 12, Snapshot: backup.NewSnapshotID(), By: "ben", Reason: "it is lost"}), "anna")
	must(err)
	if len(without) != 1 || without[0].ID != 12 {
		t.Errorf("left out: %+v", without)
	}
}

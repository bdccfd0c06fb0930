package commit

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
)

// A running snapshot that no worker of its site sees fails, with the reason.
func TestUnseenSnapshotFails(t *testing.T) {
	for name, test := range map[string]struct {
		site, why string
		role      flow.Role
		workers   int
		want      string // empty: it goes on
	}{
		"one reader": {"default", "is it mounted here?", flow.RoleReader, 1,
			"cannot read %s: the only reader of site default that is ready does not see it: mount it there, and back it up again (is it mounted here?)"},
		"walkers":      {"default", "", flow.RoleWalker, 3, "cannot walk %s: none of the 3 walkers of site default sees it: mount it there, and back it up again"},
		"another site": {"oslo", "", flow.RoleReader, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			snap := f.begin()
			s := f.service(f.idx, Options{})
			u := flow.Unseen{Snapshot: snap.ID, Role: test.role, Site: test.site, Workers: test.workers, Why: test.why}
			done := s.failUnseen(f.ctx, &u)
			now := f.snapshot(snap.ID)
			want := test.want
			if want != "" {
				want = fmt.Sprintf(want, snap.Source)
			}
			if now.Reason != want || (now.State == backup.Failed) != (want != "") || done != (want == "") {
				t.Errorf("%v: %q, done %v; want %q", now.State, now.Reason, done, want)
			}
			if want != "" && !s.failUnseen(f.ctx, &u) {
				t.Error("a snapshot that has ended is not done with")
			}
			u.Snapshot[0]++
			if !s.failUnseen(f.ctx, &u) {
				t.Error("a snapshot that does not exist is not done with")
			}
		})
	}
}

// If the index does not answer, the next report of the roster fails the snapshot.
func TestUnseenWhileTheIndexIsAway(t *testing.T) {
	f := newFixture(t)
	snap := f.begin()
	ctx, stop := context.WithCancel(f.ctx)
	defer stop()
	fails := 0
	idx := &stepIndex{Index: f.idx, before: func(step string) error {
		if step == "fail" {
			if fails++; fails == 1 {
				return errors.New("away")
			}
		}
		return nil
	}}
	reports := make(chan []flow.Unseen)
	s := f.service(idx, Options{Unseen: reports})
	ended := make(chan struct{})
	go func() { defer close(ended); s.unseenLoop(ctx) }()
	for range 4 {
		reports <- []flow.Unseen{{Snapshot: snap.ID, Role: flow.RoleReader, Site: "default", Workers: 1}}
	}
	stop()
	<-ended
	if now := f.snapshot(snap.ID); now.State != backup.Failed || fails != 2 {
		t.Errorf("%v after %d attempts", now.State, fails)
	}
}

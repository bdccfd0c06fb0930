package commit

import (
	"errors"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// A committer dies before or after it notes an alarm, or after the commit has raised it. The next
// one raises it, and the shard has it once.
func TestAlarmOfACommitterThatDies(t *testing.T) {
	type hook = func(step string) error
	for name, idx := range map[string]func(hook) *stepIndex{
		"before it":        func(h hook) *stepIndex { return &stepIndex{before: dieAt("set churn", h)} },
		"after it":         func(h hook) *stepIndex { return &stepIndex{after: dieAt("set churn", h)} },
		"after the commit": func(h hook) *stepIndex { return &stepIndex{after: dieAt("commit", h)} },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			snap := f.walked(func(s *backup.SliceWalked) {
				s.Counts.Files, s.Counts.FilesOpaque, s.Counts.FilesJudged = 100, 50, 50
				s.Pages = []backup.PageVersion{pageOf("", "root")}
			})
			died := 0
			x := idx(func(string) error { died++; return errPower })
			x.Index = f.idx
			if err := f.service(x, Options{}).finish(f.ctx, snap.ID); !errors.Is(err, errPower) || died != 1 {
				t.Fatalf("error %v, died %d times", err, died)
			}
			holds := len(value(f.idx.Holds(f.ctx))(f))
			if committed := f.snapshot(snap.ID).State == backup.Committed; committed != (holds == 1) {
				t.Errorf("committed: %t, with %d alarms", committed, holds)
			}
			f.must(f.service(f.idx, Options{}).finishAll(f.ctx, f.ctx))
			got, alarms := f.snapshot(snap.ID), value(f.idx.Holds(f.ctx))(f)
			if got.State != backup.Committed || got.Counts.FilesOpaque != 50 || len(alarms) != 1 || alarms[0].Alarm != snap.ID || alarms[0].Reason != got.Alarm {
				t.Errorf("snapshot %+v, alarms %+v", got, alarms)
			}
		})
	}
}

// dieAt returns a hook that calls die at a step.
func dieAt(at string, die func(string) error) func(string) error {
	return func(step string) error {
		if step == at {
			return die(step)
		}
		return nil
	}
}

package telemetry

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bctl/bctl/internal/store"
)

// A full store has room for small objects at times: a worker is ready again, and then not. The
// last of the two lines is true at any time, or is about to be: that it is ready waits until the
// outage is over.
func TestPairEndsWithTheTruth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := logged(t)
		state := Pair(l)
		full := &store.Error{Store: "s3://b", Op: "put", Name: "packs/1", Kind: store.ErrFull, Err: errors.New("507")}
		said := func() (of []string) {
			for _, m := range lines() {
				of = append(of, fmt.Sprint(m["msg"]))
			}
			return of
		}
		for n := range 10 {
			l.Warn("refuses writes", "error", full)
			after(time.Second)
			state.Warn("not ready", "error", full)
			after(5 * time.Second)
			if last := said(); n > 0 && last[len(last)-1] == "ready again" {
				t.Fatalf("it is not ready: %q", last)
			}
			state.Info("ready again")
			after(5 * time.Second)
		}
		if got, want := said(), []string{"refuses writes", "ready again", "not ready", "refuses writes"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		after(2 * overAfter)
		if got := said(); got[len(got)-1] != "ready again" {
			t.Errorf("it is ready: %q", got)
		}
		before := len(said())
		state.Warn("not ready", "error", full)
		state.Info("ready again")
		if got := said()[before:]; !slices.Equal(got, []string{"not ready", "ready again"}) {
			t.Errorf("after the outage: %q", got)
		}
		after(2 * overAfter)
	})
}

// The line that waits is taken back by a warning with another cause.
func TestPairWithTwoCauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := logged(t)
		state := Pair(l).With("service", "reader")
		full, refused := fmt.Errorf("%w", store.ErrFull), fmt.Errorf("%w", fs.ErrPermission)
		for range 2 {
			state.Warn("not ready", "error", &store.Error{Op: "put", Kind: full, Err: full})
			after(time.Second)
			state.Info("ready again")
			after(time.Second)
		}
		for range 100 {
			state.Warn("not ready", "error", &store.Error{Op: "put", Kind: refused, Err: refused})
			after(time.Second)
		}
		got := lines()
		if last := got[len(got)-1]; last["msg"] == "ready again" {
			t.Errorf("it is not ready: %v", got)
		}
		state.Info("ready again") // which is the first time in this outage
		if last := lines()[len(lines())-1]; last["msg"] != "ready again" || last["service"] != "reader" {
			t.Errorf("it is ready: %v", last)
		}
		after(2 * overAfter)
	})
}

// A log that limits nothing has both lines.
func TestPairOfAnotherLog(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	if Pair(log) != log {
		t.Error("it is another log")
	}
}

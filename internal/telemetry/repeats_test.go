package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/testenv"
)

// logged returns a JSON log, and a function that returns its lines.
func logged(t *testing.T) (*slog.Logger, func() []map[string]any) {
	t.Helper()
	var out testenv.Buffer
	l, err := NewLogger(&out, false, "debug", "json")
	if err != nil {
		t.Fatal(err)
	}
	return l, func() (all []map[string]any) {
		for line := range strings.Lines(out.String()) {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatalf("%v: %q", err, line)
			}
			all = append(all, m)
		}
		return all
	}
}

// after lets time pass in a test's bubble.
func after(d time.Duration) { <-time.After(d) }

// All failures caused by an unavailable index count as one: it is logged at once, after one, two
// and four minutes with the number of occurrences, and when it is over.
func TestOutageIsLoggedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := logged(t)
		away := fmt.Errorf("index at db1: %w: connection refused", backup.IndexAway)
		for range 5 * 60 {
			l.Warn("applying results failed, will retry", "results", 3, "error", away)
			l.With("snapshot", "0102").Error("committing snapshots failed, will retry", "error", fmt.Errorf("snapshot: %w", away))
			after(time.Second)
		}
		after(2 * overAfter)
		got := lines()
		var said []string
		for _, m := range got {
			said = append(said, fmt.Sprint(m["level"], " ", m["msg"], " ", m["failures"]))
		}
		want := "WARN applying results failed, will retry <nil>|WARN applying results failed, will retry 121|WARN applying results failed, will retry 361|INFO no failure of this dependency for a minute 600"
		if strings.Join(said, "|") != want {
			t.Errorf("%q", said)
		}
		if last := got[len(got)-1]; last["event"] != "applying results failed, will retry" || last["dependency"] != "index" || last["seconds"] != 299.0 {
			t.Errorf("%v", last)
		}
		l.Warn("applying results failed, will retry", "error", away)
		if len(lines()) != len(got)+1 {
			t.Error("what fails again after it was over is not logged at once")
		}
	})
}

// A failure that goes on with another error is not over. When it is over, the log says so once.
func TestFailureGoesOnWithAnotherError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := logged(t)
		said := func() (of []string) {
			for _, m := range lines() {
				of = append(of, fmt.Sprint(m["level"], " ", m["msg"], " ", m["service"]))
			}
			return of
		}
		fails := func(l *slog.Logger, times int, text string) {
			for range times {
				l.Warn("connecting failed, will retry", "error", errors.New(text))
				after(time.Second)
			}
		}
		one, other := l.With("snapshot", "a"), l.With("snapshot", "b")
		fails(other, 2, "refused")
		fails(one, 2, "refused")
		fails(one, 90, "end of file")
		if got := strings.Join(said(), "|"); strings.Count(got, "no failure") != 1 {
			t.Errorf("only the failure of snapshot b is over: %s", got)
		}
		after(2 * overAfter)
		if got := strings.Join(said(), "|"); strings.Count(got, "no failure") != 2 {
			t.Errorf("both are over: %s", got)
		}
	})
}

// The outage of Postgres ends while NATS is away. Each outage has its own line, which names what
// was away, and comes only when that can be used again: not when nobody has tried to use it.
func TestOutagesAreToldApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := logged(t)
		away := map[string]*atomic.Bool{"index": {}, "nats": {}}
		away["index"].Store(true)
		CheckOutages(l, func(_ context.Context, dependency string) error {
			if away[dependency].Load() {
				return errors.New("away")
			}
			return nil
		})
		l = l.With("service", "committer")
		fails := func(cause error) {
			of := l.With("snapshot", "5f0e", "batch", 1) // what happens to fail
			for range 10 {
				of.Warn("applying results failed, will retry", "error", fmt.Errorf("%w", cause))
				after(time.Second)
			}
		}
		ends := func() (of []string) {
			for _, m := range lines() {
				if m["level"] == "INFO" {
					of = append(of, fmt.Sprint(m["msg"], ": ", m["dependency"], " ", m["failures"], " ", m["seconds"]))
					keys := slices.Sorted(maps.Keys(m))
					if want := []string{"dependency", "event", "failures", "level", "msg", "seconds", "service", "time"}; !slices.Equal(keys, want) {
						t.Errorf("the end of an outage has the keys %q, want %q", keys, want)
					}
				}
			}
			return of
		}
		fails(backup.IndexAway)
		away["nats"].Store(true)
		fails(backup.NATSAway) // and so nothing is written to the index
		after(5 * overAfter)
		if got := ends(); len(got) != 0 {
			t.Fatalf("both are away; logged %q", got)
		}
		index := "outage over: the dependency is usable again: index 10 9"
		away["index"].Store(false)
		after(2 * overAfter)
		if got := ends(); len(got) != 1 || got[0] != index {
			t.Errorf("the index is back; logged %q", got)
		}
		away["nats"].Store(false)
		after(2 * overAfter)
		if got := ends(); len(got) != 2 || got[1] != "outage over: the dependency is usable again: nats 10 9" {
			t.Errorf("NATS is back; logged %q", got)
		}
	})
}

// A full store is one outage, although different operations fail because of it. A store that does
// not answer is another, and one that refuses the credentials a third.
func TestFullStoreIsOneOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := logged(t)
		var usable atomic.Bool
		CheckOutages(l, func(_ context.Context, dependency string) error {
			if dependency != "store" || !usable.Load() {
				return fmt.Errorf("%s: %w", dependency, store.ErrFull)
			}
			return nil
		})
		fails := func(cause error) {
			err := &store.Error{Store: "s3://b", Op: "put", Name: "packs/1", Kind: cause, Err: errors.New("507")}
			l.Warn("the store refuses writes", "error", err)
			l.Warn("the store is full, will retry", "error", err, "attempt", 1)
			l.Warn("not ready", "error", errors.Join(fmt.Errorf("store: %w", err)))
			after(10 * time.Second)
		}
		for range 9 {
			fails(store.ErrFull)
		}
		fails(backup.StoreAway)
		for range 2 {
			fails(fs.ErrPermission)
		}
		after(2 * overAfter)
		usable.Store(true)
		after(2 * overAfter)
		var said []string
		for _, m := range lines() {
			said = append(said, fmt.Sprint(m["level"], " ", m["msg"], " ", m["dependency"], " ", m["failures"]))
		}
		slices.Sort(said[2:]) // they end at the same time
		want := []string{
			"WARN the store refuses writes <nil> <nil>", "WARN the store refuses writes <nil> 19",
			"INFO outage over: the dependency is usable again store 27", "INFO outage over: the dependency is usable again store 3",
			"INFO outage over: the dependency is usable again store 6", "WARN the store refuses writes <nil> <nil>", "WARN the store refuses writes <nil> <nil>",
		}
		if !slices.Equal(said, want) {
			t.Errorf("%q\nwant %q", said, want)
		}
	})
}

// Failures of different things are distinguished, and those of different attempts at one thing are
// not.
func TestOtherFailuresAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := logged(t)
		err := errors.New("permission denied")
		for n := range 10 {
			l.Warn("read batch will be tried again", "source", "posix:///a", "batch", n, "error", err)
			l.Warn("read batch will be tried again", "source", "posix:///b", "batch", n, "error", err)
			l.Error("snapshot failed", "snapshot", fmt.Sprint(n), "reason", "no such directory")
			l.Info("snapshot committed", "snapshot", "same")
			l.Warn("updating the limits of filers failed, will retry", "error", fmt.Errorf("%w", backup.NATSAway))
			l.Warn("updating the limits of filers failed, will retry", "error", fmt.Errorf("%w", backup.StoreAway))
		}
		count := map[any]int{}
		for _, m := range lines() {
			count[m["msg"]]++
		}
		for msg, want := range map[string]int{"read batch will be tried again": 2, "snapshot failed": 10, "snapshot committed": 10, "updating the limits of filers failed, will retry": 2} {
			if count[msg] != want {
				t.Errorf("%s: %d times, want %d", msg, count[msg], want)
			}
		}
		after(2 * overAfter)
	})
}

// The end of a failure that did not repeat is not logged.
func TestOneFailureHasNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, lines := logged(t)
		l.Warn("registering a pack failed, will retry", "error", errors.New("x"))
		after(2 * overAfter)
		if got := lines(); len(got) != 1 {
			t.Errorf("%v", got)
		}
	})
}

// Durations are seconds, with the unit in the key, and ids are text.
func TestValuesAreReadable(t *testing.T) {
	l, lines := logged(t)
	id := backup.SnapshotID{1, 2, 3}
	l.Info("x", "pause", 1500*time.Millisecond, "seconds", time.Second, "walk_seconds", time.Minute, "id", id, "pack", backup.PackID{4}, "error", errors.New("why"), "when", time.Unix(0, 0).UTC())
	m := lines()[0]
	for key, want := range map[string]any{
		"pause_seconds": 1.5, "seconds": 1.0, "walk_seconds": 60.0, "id": id.String(), "pack": backup.PackID{4}.String(), "error": "why", "when": "1970-01-01T00:00:00Z", "level": "INFO",
	} {
		if m[key] != want {
			t.Errorf("%s is %v, want %v", key, m[key], want)
		}
	}
}

// Output of libraries goes to the log.
func TestLibrariesUseTheLog(t *testing.T) {
	before, flags, to := slog.Default(), log.Flags(), log.Writer()
	t.Cleanup(func() { slog.SetDefault(before); log.SetFlags(flags); log.SetOutput(to) })
	l, lines := logged(t)
	TakeOver(l)
	log.Print("http: a library says something")
	got := lines()
	if len(got) != 1 || got[0]["msg"] != "http: a library says something" {
		t.Errorf("%v", got)
	}
}

package serve

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// A moody store returns the configured errors.
type moody struct {
	store.Store
	put, stat error
	puts      int
}

func (m *moody) Put(context.Context, string, []byte) error          { m.puts++; return m.put }
func (m *moody) Stat(context.Context, string) (size int64, e error) { return 1, m.stat }

// A committer that is not ready leaves commits to others only if it does not reach the store. It
// tries to commit to a store that refuses writes, because nothing else finds out that this is over.
func TestMayCommit(t *testing.T) {
	s := &moody{}
	g := &guard{Store: s, log: slog.New(slog.DiscardHandler)}
	r := newReadiness(g.log, false)
	want := func(want error) {
		t.Helper()
		if err := g.mayCommit(t.Context(), r); !errors.Is(err, want) {
			t.Errorf("may commit: %v, want %v", err, want)
		}
	}
	s.stat = backup.StoreAway
	want(nil) // it has not been found to be away
	why := error(backup.StoreAway)
	r.why.Store(&why)
	want(backup.StoreAway)
	s.stat = nil
	want(nil)
	s.put = store.ErrFull
	if err := g.Put(t.Context(), "a", nil); !errors.Is(err, store.ErrFull) || g.ready(t.Context()) == nil {
		t.Errorf("%v, and it is ready", err)
	}
	want(nil)
}

// A store that refuses writes is not ready, although it responds, until a write succeeds. Meanwhile
// one piece of work per ten seconds is admitted as a test.
func TestGuardOfAStoreThatTakesNoWrites(t *testing.T) {
	for name, why := range map[string]error{"full": store.ErrFull, "credentials": fs.ErrPermission, "no bucket": backup.ErrNoRepository} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &moody{}
				g := &guard{Store: s, log: slog.New(slog.DiscardHandler)}
				put := func(result, want error) {
					t.Helper()
					s.put = result
					if err := g.Put(t.Context(), "a", nil); !errors.Is(err, result) {
						t.Errorf("put: %v, want %v", err, result)
					}
					if err := g.ready(t.Context()); !errors.Is(err, want) {
						t.Errorf("after %v it is ready: %v", result, err)
					}
					if err := g.refused(); !errors.Is(err, want) {
						t.Errorf("after %v it is refused: %v", result, err)
					}
				}
				admits := func(trial bool, want error) {
					t.Helper()
					if got, err := g.admits(t.Context()); got != trial || !errors.Is(err, want) {
						t.Errorf("admits: %t, %v; want %t, %v", got, err, trial, want)
					}
				}
				put(nil, nil)
				put(backup.ErrUnavailable, nil) // after the store's client has retried for long
				admits(false, nil)
				put(why, why)
				put(backup.ErrUnavailable, why)
				admits(false, why)
				time.Sleep(trialEvery) //nolint:forbidigo // the bubble's clock
				admits(true, nil)
				if err := g.refused(); err != nil {
					t.Errorf("in a trial, what is in hand is handed back: %v", err)
				}
				if err := g.ready(t.Context()); !errors.Is(err, why) {
					t.Errorf("in a trial it is ready: %v", err)
				}
				admits(false, why) // one is enough
				put(why, why)
				time.Sleep(trialEvery) //nolint:forbidigo // the bubble's clock
				s.stat = backup.ErrUnavailable
				admits(false, backup.ErrUnavailable)
				s.stat = nil
				time.Sleep(trialEvery) //nolint:forbidigo // the bubble's clock
				admits(true, nil)
				time.Sleep(trialEvery) //nolint:forbidigo // the bubble's clock
				admits(true, nil)      // the last one had nothing to write
				put(nil, nil)
				admits(false, nil)
			})
		})
	}
}

// A write that is retried counts from its first refusal, and not from its final failure.
func TestGuardHearsOfRetries(t *testing.T) {
	g := &guard{Store: &moody{}, log: slog.New(slog.DiscardHandler)}
	g.retries(&store.Error{Op: "put", Kind: backup.ErrUnavailable, Err: errors.New("503")})
	g.retries(&store.Error{Op: "stat", Kind: store.ErrFull})
	if err := g.ready(t.Context()); err != nil {
		t.Errorf("not ready: %v", err)
	}
	g.retries(&store.Error{Op: "put", Name: "packs/1", Kind: store.ErrFull, Err: errors.New("507")})
	if err := g.ready(t.Context()); !errors.Is(err, store.ErrFull) {
		t.Errorf("ready with a full store: %v", err)
	}
}

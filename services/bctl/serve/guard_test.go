package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/store"
)

// A moody store returns the configured errors.
type moody struct {
	store.Store
	put, stat error
	names     []string // of puts
	stats     int
}

func (m *moody) Put(_ context.Context, name string, _ []byte) error {
	m.names = append(m.names, name)
	return m.put
}

func (m *moody) Stat(context.Context, string) (size int64, e error) { m.stats++; return 1, m.stat }
func (m *moody) Close() error                                       { return nil }

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

// refusals are the reasons for which a store accepts no writes.
var refusals = map[string]error{"full": store.ErrFull, "credentials": fs.ErrPermission, "no bucket": backup.ErrNoRepository}

// A store that refuses writes is not ready, although it responds, until a write succeeds.
func TestGuardOfAStoreThatTakesNoWrites(t *testing.T) {
	for name, why := range refusals {
		t.Run(name, func(t *testing.T) {
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
			put(nil, nil)
			put(backup.ErrUnavailable, nil) // after the store's client has retried for long
			put(why, why)
			put(backup.ErrUnavailable, why)
			put(nil, nil)
		})
	}
}

// While the store refuses writes, and only then, the guard tests whether it still does, with
// objects of no snapshot that the role may put. A role that may put nothing asks for the
// configuration.
func TestGuardTestsWhetherWritesAreAccepted(t *testing.T) {
	for role, prefix := range map[flow.Role]string{
		flow.RoleReader: store.PacksPrefix, flow.RolePruner: store.PacksPrefix, flow.RoleCommitter: store.SegmentsPrefix, flow.RoleScrubber: "",
	} {
		for name, why := range refusals {
			t.Run(string(role)+" "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &moody{}
					g := &guard{Store: s, log: slog.New(slog.DiscardHandler), role: role}
					g.start()
					defer g.Close()
					after := func(what string, d time.Duration, accepted bool, puts int) {
						t.Helper()
						time.Sleep(d) //nolint:forbidigo // the bubble's clock
						synctest.Wait()
						if err := g.refused(); (err == nil) != accepted {
							t.Errorf("%s: refused: %v", what, err)
						}
						if prefix == "" {
							puts = 0
						}
						if len(s.names) != puts {
							t.Errorf("%s: %d test objects, want %d: %q", what, len(s.names), puts, s.names)
						}
						s.names = nil
					}
					after("accepted", time.Hour, true, 0)
					if s.stats > 0 {
						t.Error("a store that accepts writes is tested")
					}
					s.put = why
					g.wrote(why)
					if prefix != "" {
						after("refused", 4*testEvery+time.Second, false, 4)
					}
					s.put, s.stat = nil, backup.ErrUnavailable
					g.wrote(why)
					after("away", 4*testEvery, false, 0)
					s.stat = nil
					g.wrote(why)
					time.Sleep(testEvery) //nolint:forbidigo // the bubble's clock
					synctest.Wait()
					for _, name := range s.names {
						if !strings.HasPrefix(name, prefix+backup.SnapshotID{}.String()+"/") || store.Lockable(name) || store.CheckName(name) != nil {
							t.Errorf("test object %s", name)
						}
					}
					after("accepted again", 0, true, 1)
					after("ready", time.Hour, true, 0)
				})
			})
		}
	}
}

// A stubborn store repeats a write until its request ends, as the client of an S3 store does for
// minutes.
type stubborn struct {
	moody
	g *guard
}

func (s *stubborn) Put(ctx context.Context, name string, _ []byte) error {
	s.names = append(s.names, name)
	for ctx.Err() == nil {
		s.g.retries(&store.Error{Op: "put", Name: name, Kind: store.ErrFull})
		loop.Pause(ctx, time.Second)
	}
	return ctx.Err()
}

// A test is over when the store has refused it once.
func TestGuardDoesNotRepeatATest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubborn{}
		s.g = &guard{Store: s, log: slog.New(slog.DiscardHandler), role: flow.RoleReader}
		s.g.wrote(store.ErrFull)
		begun := time.Now()
		s.g.test(t.Context())
		if took := time.Since(begun); took > 0 || len(s.names) != 1 || s.g.refused() == nil {
			t.Errorf("it took %v: %q; refused: %v", took, s.names, s.g.refused())
		}
	})
}

// Credentials with which the configuration cannot be seen are refused for all requests.
func TestGuardOfRefusedCredentials(t *testing.T) {
	s := &moody{stat: fmt.Errorf("access denied: %w", fs.ErrPermission)}
	g := &guard{Store: s, log: slog.New(slog.DiscardHandler)}
	if _, err := g.Stat(t.Context(), "packs/1"); !errors.Is(err, fs.ErrPermission) || g.refused() != nil {
		t.Errorf("a pack: %v, refused: %v", err, g.refused())
	}
	if _, err := g.Stat(t.Context(), store.ConfigName); !errors.Is(err, fs.ErrPermission) || !errors.Is(g.refused(), fs.ErrPermission) {
		t.Errorf("the configuration: %v, refused: %v", err, g.refused())
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

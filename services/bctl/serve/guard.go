package serve

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/store"
)

const (
	// testEvery is the interval at which a service tests whether a store that refuses writes
	// accepts them again. Nothing else finds out in time: such a store answers all other requests,
	// and the next piece of work may go to another service, or come a day later.
	testEvery = 5 * time.Second
	// testWithin is how long a test may take.
	testWithin = 10 * time.Second
	// testBytes is the size of a test object. Some file systems store a smaller one without using
	// space.
	testBytes = 16 << 10
	// answerWithin is how long the store may take to answer at all.
	answerWithin = 3 * time.Second
)

// testName returns a new name for a test object: a full store accepts an object that it already
// has. The role may put it, and nothing mistakes it for data (store.IsTest). "": the role writes
// nothing.
func testName(role flow.Role) string {
	var noSnapshot backup.SnapshotID
	switch role {
	case flow.RoleReader, flow.RolePruner:
		return store.PackName(noSnapshot, backup.NewPackID())
	case flow.RoleCommitter:
		return store.SegmentName(noSnapshot, backup.NewPackID(), 0)
	}
	return ""
}

// A guard is a store that records whether it accepts writes. A store that is full, or that refuses
// this service's credentials, counts as refusing until a write succeeds. Meanwhile the guard makes
// test writes, from start to Close.
type guard struct {
	store.Store
	log  *slog.Logger
	role flow.Role
	stop func() // ends the tests

	mu     sync.Mutex
	why    error  // why writes are refused; nil: they are accepted
	giveUp func() // ends the test that is being made; nil: none is
}

// start begins the tests.
func (g *guard) start() {
	ctx, cancel := context.WithCancel(context.Background())
	var testing sync.WaitGroup
	testing.Go(func() {
		loop.Every(ctx, testEvery, func() { g.test(ctx) })
	})
	g.stop = func() { cancel(); testing.Wait() }
}

// Close implements store.Store.
func (g *guard) Close() error {
	g.stop()
	return g.Store.Close()
}

// Stat implements store.Store. Credentials with which even the configuration cannot be seen, which
// every role may read, are refused for writes too.
func (g *guard) Stat(ctx context.Context, name string) (int64, error) {
	sizeBytes, err := g.Store.Stat(ctx, name)
	if name == store.ConfigName && errors.Is(err, fs.ErrPermission) {
		g.wrote(err)
	}
	return sizeBytes, err
}

// Put implements store.Store.
func (g *guard) Put(ctx context.Context, name string, data []byte) error {
	err := g.Store.Put(ctx, name, data)
	g.wrote(err)
	return err
}

// PutNew implements store.Store.
func (g *guard) PutNew(ctx context.Context, name string, data []byte) error {
	err := g.Store.PutNew(ctx, name, data)
	g.wrote(err)
	return err
}

// retries records a failed request that will be retried. Credentials that are refused for a while,
// such as an expired token, are refused for writes too.
func (g *guard) retries(err *store.Error) {
	if err.Op == "put" && refuses(err.Kind) || errors.Is(err.Kind, fs.ErrPermission) {
		g.wrote(err)
	}
}

// refuses reports whether a write failed for a reason that applies to all writes.
func refuses(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, store.ErrFull) || errors.Is(err, backup.ErrNoRepository)
}

// wrote records the result of a write.
func (g *guard) wrote(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case refuses(err):
		if g.why == nil {
			g.log.Warn("the store refuses writes: this service takes no new work", "error", err)
		}
		g.why = err
		if g.giveUp != nil {
			g.giveUp() // the store's client would repeat the write
		}
	case (err == nil || errors.Is(err, backup.ErrExists)) && g.why != nil:
		if errors.Is(g.why, backup.ErrNoRepository) { // otherwise the log reports the end of the outage
			g.log.Info("the store accepts writes again")
		}
		g.why = nil
	}
}

func (g *guard) onRefusal(giveUp func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.giveUp = giveUp
}

// refused returns the reason why the store accepts no writes; nil if it does.
func (g *guard) refused() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why
}

// test finds out, while the store refuses writes, whether it still does. It writes nothing unless
// the store has the repository's configuration: it may not be mounted. A service that never writes
// needs no more than that.
func (g *guard) test(ctx context.Context) {
	if g.refused() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, testWithin)
	defer cancel()
	g.onRefusal(cancel)
	defer g.onRefusal(nil)
	if _, err := g.Stat(ctx, store.ConfigName); err != nil {
		return
	}
	name := testName(g.role)
	if name == "" {
		g.wrote(nil)
		return
	}
	data := make([]byte, testBytes)
	_, _ = rand.Read(data)     // never fails, by its documentation; other data could be stored without space
	_ = g.Put(ctx, name, data) // which records the result
}

// ready returns the reason why the store cannot be used now. It requests the repository's
// configuration, the only object that every role may read.
func (g *guard) ready(ctx context.Context) error {
	why := g.refused()
	if of, ok := errors.AsType[*store.Error](why); ok {
		all := *of
		all.Name = "" // it is the same for all objects, and for all readers
		return &all
	}
	if why != nil {
		return why
	}
	_, err := g.Stat(ctx, store.ConfigName)
	return err
}

// mayCommit returns why a committer that is not ready cannot reach its store. A store that refuses
// writes is reached: a commit may succeed before the next test does.
func (g *guard) mayCommit(ctx context.Context, r *readiness) error {
	if r.mayTake() == nil {
		return nil
	}
	return g.answers(ctx)
}

// answers returns nil if the store responds in time.
func (g *guard) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	_, err := g.Stat(ctx, store.ConfigName)
	return err
}

package serve

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// trialEvery is the interval at which a service tests, with one piece of work, whether a store
// accepts writes again. There is no other way to find out: a store that is full, or that refuses
// only writes, answers all other requests.
const trialEvery = 10 * time.Second

// answerWithin is how long the store may take to answer before such a test.
const answerWithin = 3 * time.Second

// A guard is a store that records whether it accepts writes. A store that is full, or that refuses
// this service's credentials, counts as refusing until a write succeeds.
type guard struct {
	store.Store
	log *slog.Logger

	mu    sync.Mutex
	why   error // why writes are refused; nil: they are accepted
	trial bool  // work was admitted as a test, and has not failed yet
	next  time.Time
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
		g.why, g.trial, g.next = err, false, time.Now().Add(trialEvery)
	case (err == nil || errors.Is(err, backup.ErrExists)) && g.why != nil:
		if errors.Is(g.why, backup.ErrNoRepository) { // otherwise the log reports the end of the outage
			g.log.Info("the store accepts writes again")
		}
		g.why, g.trial = nil, false
	}
}

// refused returns the reason why the store accepts no writes; nil if it does, or if the work in
// progress is testing that.
func (g *guard) refused() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.trial {
		return nil
	}
	return g.why
}

// ready returns the reason why the store cannot be used now. It requests the repository's
// configuration, the only object that every role may read.
func (g *guard) ready(ctx context.Context) error {
	g.mu.Lock()
	why := g.why
	g.mu.Unlock()
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
// writes is reached: only the next commit finds out whether it still does.
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

// admits returns nil if work that writes may be taken. While the store refuses writes, it admits
// one piece of work per trialEvery, provided that the store responds at all; trial is then true.
func (g *guard) admits(ctx context.Context) (trial bool, err error) {
	g.mu.Lock()
	why, due := g.why, !time.Now().Before(g.next)
	if why != nil && due {
		g.next = time.Now().Add(trialEvery)
	}
	g.mu.Unlock()
	if why == nil || !due {
		return false, why
	}
	if err := g.answers(ctx); err != nil {
		return false, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trial = g.why != nil
	return g.trial, nil
}

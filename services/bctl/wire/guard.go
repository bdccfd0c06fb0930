package wire

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/s3store"
)

// trialEvery is how often a service tries whether a store takes writes again, with one piece of work. Nothing else can tell: a
// store that is full, or that refuses only writes, answers all other questions.
const trialEvery = 10 * time.Second

// A guard is a store that remembers whether it takes writes. One that is full, or that refuses this service's
// credentials, takes none until a write has succeeded.
type guard struct {
	store.Store
	log *slog.Logger

	mu    sync.Mutex
	why   error // nil: writes are taken
	trial bool  // work was let in to find out, and has not failed yet
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

// retries notes a write that failed and is tried again.
func (g *guard) retries(r s3store.Retry) {
	if r.Op == "put" && refuses(r.Kind) {
		g.wrote(&store.Error{Store: r.Store, Op: r.Op, Name: r.Name, Kind: r.Kind, Err: r.Err})
	}
}

// refuses reports whether a write failed for a reason that is not this write's.
func refuses(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, store.ErrFull) || errors.Is(err, backup.ErrNoRepository)
}

// wrote notes how a write ended.
func (g *guard) wrote(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case refuses(err):
		if g.why == nil {
			g.log.Warn("the store refuses writes; no work is taken that needs them", "error", err)
		}
		g.why, g.trial, g.next = err, false, time.Now().Add(trialEvery)
	case (err == nil || errors.Is(err, backup.ErrExists)) && g.why != nil:
		g.log.Info("the store takes writes again")
		g.why, g.trial = nil, false
	}
}

// refused returns why the store takes no writes, and nil where it does, or where that is being tried with what is in hand.
func (g *guard) refused() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.trial {
		return nil
	}
	return g.why
}

// ready returns why the store is of no use now. The name of the repository's
// configuration is all that every role may look at.
func (g *guard) ready(ctx context.Context) error {
	g.mu.Lock()
	why := g.why
	g.mu.Unlock()
	if why != nil {
		return why
	}
	_, err := g.Stat(ctx, store.ConfigName)
	return err
}

// admits returns nil where work may be taken that writes. While the store takes no writes
// that is one piece of work in trialEvery, if the store answers at all; trial says that it is this one.
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
	if _, err := g.Stat(ctx, store.ConfigName); err != nil {
		return false, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trial = g.why != nil
	return g.trial, nil
}

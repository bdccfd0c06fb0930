package cli

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/rewrap"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/open"
)

// An access is the purpose for which a command opens the index.
type access int

const (
	toRead  access = iota // also on a disk that is full, or mounted read-only
	toWrite               // and to read
)

const (
	// patience is how long the index may take to answer before a warning is logged.
	patience = 3 * time.Second
	// giveUpAfter is how long a server may take: a local index may be recovering.
	giveUpAfter = time.Minute
)

// openIndex opens the index. It fails if the server does not answer.
func (a *app) openIndex(ctx context.Context, to access) (i index.Index, err error) {
	err = a.answered(ctx, giveUpAfter, func(ctx context.Context) error {
		i, err = a.openIndexNow(ctx, to)
		return err
	})
	return i, err
}

// answered is the function of this name, for a server. A local index has no limit.
func (a *app) answered(ctx context.Context, within time.Duration, do func(context.Context) error) error {
	if _, local := a.cfg.IndexPath(); local {
		return do(ctx)
	}
	return answered(ctx, within, do)
}

// indexPlace names the index without a password.
func (a *app) indexPlace() string {
	u, err := url.Parse(a.cfg.Index.URL)
	if err != nil {
		return "index.url"
	}
	u.RawQuery = ""
	return u.Redacted()
}

// answered calls do with a context that ends after a time, and reports as unavailable that do has
// failed because of that.
func answered(ctx context.Context, within time.Duration, do func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err := do(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("the index has not answered for %s: %w", within, backup.IndexAway)
	}
	return err
}

func (a *app) openIndexNow(ctx context.Context, to access) (i index.Index, err error) {
	late := time.AfterFunc(patience, func() {
		a.log.Warn("the index has not answered yet, waiting", "seconds", patience.Seconds(), "index", a.indexPlace(), "until_seconds", giveUpAfter.Seconds())
	})
	defer late.Stop()
	logged := a.indexLogged()
	if to == toRead {
		i, err = open.IndexReadOnly(ctx, a.cfg)
	} else {
		i, err = open.Index(ctx, a.cfg, false)
	}
	if err != nil {
		return nil, wrongSetting(a.noIndex(ctx, err))
	}
	err = i.CheckSchema(ctx)
	if err == nil { // an empty index is not that of a repository without snapshots
		var r backup.Repository
		r, err = i.Repository(ctx)
		switch {
		case errors.Is(err, backup.ErrNoRepository):
			err = fmt.Errorf("%w (create it, or finish creating it, with bctl init)", err)
		case err == nil:
			err = repo.CheckVersion(&r)
		}
	}
	if err != nil {
		return nil, errors.Join(a.noIndex(ctx, err), i.Close())
	}
	if to == toWrite {
		if err := a.holdIndex(ctx, i, logged); err != nil {
			return nil, errors.Join(err, i.Close())
		}
	}
	return i, nil
}

// noIndex returns err. If err reports that there is no repository, but the store holds one with
// backups, it returns an error with advice on the lost index.
func (a *app) noIndex(ctx context.Context, err error) error {
	if !errors.Is(err, backup.ErrNoRepository) || a.cfg.Store.URL == "" {
		return err
	}
	if a.cfg.Index.URL == "" { // as on the machine of a mirror: nothing is lost
		return fmt.Errorf("%w. These settings name a store, and no index (index.url)", err)
	}
	s, storeErr := open.Store(ctx, a.cfg, false, a.log)
	if storeErr != nil {
		return err
	}
	defer s.Close()
	lost := repo.LostIndex(ctx, s)
	if !errors.Is(lost, repo.ErrIndexLost) {
		return err
	}
	if path, local := a.cfg.IndexPath(); local {
		return fmt.Errorf("%w. There is none in %s: if the location is wrong, correct it (--repo, --index); otherwise rebuild the index from the store with bctl index rebuild", lost, path)
	}
	return fmt.Errorf("%w: correct index.url, restore the database from its last dump, or rebuild the index from the store with bctl index rebuild", lost)
}

// withIndex calls do, for commands that need only the index.
func (a *app) withIndex(ctx context.Context, to access, do func(index.Index) error) error {
	i, err := a.openIndex(ctx, to)
	if err != nil {
		return err
	}
	defer i.Close()
	if to == toWrite { // settings may be changed while the store is unavailable
		if _, err := a.lookCurrent(ctx, i); errors.Is(err, repo.ErrIndexOld) {
			return err
		}
	}
	return do(i)
}

// storeGone returns an error if err, from opening the store, reports that there is none although
// the index names one: that store is missing. Otherwise it returns nil.
func (a *app) storeGone(ctx context.Context, i index.Index, err error) error {
	path, local := a.cfg.StorePath()
	if !local || !errors.Is(err, backup.ErrNoRepository) {
		return nil
	}
	if r, unknown := i.Repository(ctx); unknown == nil {
		return repo.StoreGone("directory "+path, r.ID)
	}
	return nil
}

// A repository is an index and its store.
type repository struct {
	index  index.Index
	store  store.Store // nil: it did not respond, and is not needed
	object repo.Object
	old    error // wraps repo.ErrIndexOld; only of a repository that was opened to read
}

// close closes both. Data to be stored was already stored, or an error was reported, so errors of
// closing add nothing.
func (r *repository) close() {
	if r.store != nil {
		_ = r.store.Close()
	}
	_ = r.index.Close()
}

// openRepository opens index and store, and checks that they belong to the same repository.
func (a *app) openRepository(ctx context.Context, to access) (*repository, error) {
	i, err := a.openIndex(ctx, to)
	if err != nil {
		return nil, err
	}
	s, err := a.openStore(ctx, to)
	if err != nil {
		if gone := a.storeGone(ctx, i, err); gone != nil {
			err = gone
		}
		i.Close()
		return nil, wrongSetting(err)
	}
	r := &repository{index: i, store: s}
	r.object, err = repo.Check(ctx, s, i)
	if err == nil {
		err = r.object.LoadRecipients(ctx, s)
	}
	if err == nil {
		err = checkCurrent(ctx, i, s)
		if to == toRead && err != nil {
			a.note("%v", err)
			if errors.Is(err, repo.ErrIndexOld) {
				r.old = err
			}
			err = nil
		}
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// openStore opens the store.
func (a *app) openStore(ctx context.Context, to access) (store.Store, error) {
	if to == toWrite {
		return open.WriteStore(ctx, a.cfg, a.log)
	}
	return open.Store(ctx, a.cfg, false, a.log)
}

// openToRegister is openRepository for a command that only registers work for services. It does not
// wait for a store that does not respond: the services do.
func (a *app) openToRegister(ctx context.Context) (*repository, error) {
	i, err := a.openIndex(ctx, toWrite)
	if err != nil {
		return nil, err
	}
	r := &repository{index: i}
	if err := a.lookAtStore(ctx, r); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// lookAtStore tries once whether the store has the repository of the index, and is as new. If the
// store does not respond, a note reports it.
func (a *app) lookAtStore(ctx context.Context, r *repository) error {
	asking, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	once := *a.cfg
	once.Store.Retry = -1
	s, err := open.WriteStore(asking, &once, a.log)
	if err == nil {
		r.store = s
		if r.object, err = repo.Check(asking, s, r.index); err == nil {
			err = r.object.LoadRecipients(asking, s)
		}
		if err == nil {
			err = checkCurrent(asking, r.index, s)
		}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case asking.Err() == nil && !errors.Is(err, backup.ErrUnavailable):
		return wrongSetting(err)
	}
	a.note("%v; the services may wait for the store, too, and make the snapshots when it answers (bctl doctor tests the store)", err)
	r.object.Repository, err = r.index.Repository(ctx)
	return err
}

// openSealed returns the Opener for packs, and the key of the chunks' hashes.
func (a *app) openSealed(ctx context.Context, r *repository) (*seal.Opener, seal.DedupKey, error) {
	identity, err := repo.FindIdentity(a.cfg.Identity, r.object.ID, a.ask(ctx))
	if err != nil {
		return nil, seal.DedupKey{}, err
	}
	if err := identity.Check(&r.object); err != nil {
		return nil, seal.DedupKey{}, err
	}
	key, err := r.object.WorkerKey(identity.Opener)
	switch {
	case errors.Is(err, backup.ErrWrongKey):
		return nil, seal.DedupKey{}, fmt.Errorf("identity %s does not open the backups of repository %v (--identity or BCTL_IDENTITY names another file): %w",
			identity.Path, r.object.ID, backup.ErrWrongKey)
	case err != nil:
		return nil, seal.DedupKey{}, fmt.Errorf("identity %s: %w", identity.Path, err)
	}
	return rewrap.Opener(ctx, r.store, &r.object, identity.Opener), key.Dedup, nil
}

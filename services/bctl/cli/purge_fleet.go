package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/open"
)

// No role of a fleet may do all that a purge does. The admin owns the index, a committer puts
// segments and records, the pruner puts packs and deletes. So the admin's machine, which has the
// whole installation, lends a purge the access of all three.

// openStores opens the stores of the other roles, if their settings are given.
func (c *purgeCommand) openStores(ctx context.Context) (closeAll func(), err error) {
	var opened []store.Store
	closeAll = func() {
		for _, s := range opened {
			_ = s.Close() // what was to be stored was stored, or an error was reported
		}
	}
	if c.local && c.committer+c.pruner != "" {
		return closeAll, usage("--committer and --pruner are for a fleet: this repository is on one machine")
	}
	as := func(flag, path string) (*config.Config, store.Store, error) {
		settings, err := config.Load(config.Sources{File: path, Env: func(string) (string, bool) { return "", false }})
		if err != nil {
			return nil, nil, usage("--%s: %v", flag, err)
		}
		s, err := open.Store(ctx, settings, false, c.app.log)
		if err != nil {
			return nil, nil, fmt.Errorf("--%s %s: %w", flag, path, err)
		}
		opened = append(opened, s)
		if s.String() != c.repository.store.String() {
			return nil, nil, usage("--%s %s names %v, and the repository is in %v", flag, path, s, c.repository.store)
		}
		return settings, s, nil
	}
	all := byRole{Store: c.repository.store, committer: c.repository.store, pruner: c.repository.store}
	if c.committer != "" {
		c.committerSettings, all.committer, err = as("committer", c.committer)
	}
	if err == nil && c.pruner != "" {
		_, all.pruner, err = as("pruner", c.pruner)
	}
	if err != nil {
		closeAll()
		return func() {}, err
	}
	if !c.local {
		c.store = all
	}
	return closeAll, nil
}

// A byRole is a store with the access of several roles. The embedded one reads.
type byRole struct {
	store.Store
	committer, pruner store.Store
}

// puts returns the store of the role that puts an object.
func (s byRole) puts(name string) store.Store {
	if strings.HasPrefix(name, store.PacksPrefix) || strings.HasPrefix(name, store.ParityPrefix) {
		return s.pruner
	}
	return s.committer
}

// Put implements store.Store.
func (s byRole) Put(ctx context.Context, name string, data []byte) error {
	return s.puts(name).Put(ctx, name, data)
}

// PutNew implements store.Store.
func (s byRole) PutNew(ctx context.Context, name string, data []byte) error {
	return s.puts(name).PutNew(ctx, name, data)
}

// Delete implements store.Store.
func (s byRole) Delete(ctx context.Context, names ...string) error {
	return s.pruner.Delete(ctx, names...)
}

// Lock implements store.Store.
func (s byRole) Lock(ctx context.Context, name string, until time.Time) error {
	return s.pruner.Lock(ctx, name, until)
}

// Close implements store.Store: who opened the stores closes them.
func (s byRole) Close() error { return nil }

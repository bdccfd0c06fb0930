package cli

import (
	"context"
	"errors"
	"time"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/services/bctl/embedded"
	"github.com/bctl/bctl/services/bctl/open"
)

// copyHolds puts a copy of the index into the store after a hold has changed, in a repository on
// one machine: a hold must not be lost with the index, and the next backup may be a day away. In a
// fleet, committers put a catalog. The hold itself is durable, so a copy that cannot be written is
// no error: the next backup writes it.
func (a *app) copyHolds(ctx context.Context, i index.Index) error {
	idx, local := i.(*sqliteindex.Index)
	if !local || a.cfg.Fleet() || a.cfg.Store.URL == "" {
		return nil
	}
	if err := a.copyChanged(ctx, idx); err != nil {
		if errors.Is(err, sqliteindex.ErrDamaged) {
			return err
		}
		a.note("the index was not copied to the store; the next backup copies it, with this change: %v", err)
	}
	return nil
}

// copyChanged puts a copy of the index into the store if the last copy lacks the last change. It
// does not wait for a store that does not respond.
func (a *app) copyChanged(ctx context.Context, idx *sqliteindex.Index) error {
	once := *a.cfg
	once.Store.Retry = -1
	s, err := open.Store(ctx, &once, false, a.log)
	if err != nil {
		return err
	}
	defer s.Close()
	object, err := repo.Check(ctx, s, idx)
	if err != nil {
		return err
	}
	key, err := object.ReadCommitterKey(a.cfg.CommitterKey)
	if err != nil {
		return err
	}
	keys, err := open.JournalKeys(&object, key)
	if err != nil {
		return err
	}
	if err := embedded.WriteRecords(ctx, idx, s, keys); err != nil {
		return err
	}
	changed, err := lastChange(ctx, idx)
	if err != nil {
		return err
	}
	return embedded.CopyIndex(ctx, idx, s, keys, changed, time.Now())
}

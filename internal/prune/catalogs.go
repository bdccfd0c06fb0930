package prune

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/bctl/bctl/internal/store"
)

// keptCatalogs is how many of the newest catalogs stay in the store. One is valid; the others show
// what was changed last.
const keptCatalogs = 3

// catalogs deletes the catalogs that newer ones have replaced, and then their rows. The newest has
// the greatest sequence, which no clock and no old index can change: committers number catalogs
// above all that the index and the store have, and use no number twice.
func (p *pass) catalogs(ctx context.Context) error {
	sequences, err := p.Index.Catalogs(ctx)
	if err != nil || len(sequences) <= keptCatalogs {
		return err
	}
	oldest := sequences[len(sequences)-keptCatalogs]
	for group := range slices.Chunk(sequences[:len(sequences)-keptCatalogs], objectsAtOnce) {
		p.step("deleting old catalogs")
		names := make([]string, len(group))
		for i, sequence := range group {
			names[i] = store.CatalogName(sequence)
		}
		err := p.Store.Delete(ctx, names...)
		if errors.Is(err, fs.ErrPermission) { // they were given by an earlier version of bctl
			p.incomplete = true
			p.Log.Warn("old catalogs stay, because the store does not let them be deleted (renew the permissions of the pruner)", "error", err)
			return nil
		}
		if locked, ok := errors.AsType[*store.LockedError](err); ok { // the next pass tries again
			p.result.Locked += len(locked.Names)
			return nil
		}
		if err != nil {
			return err
		}
		p.result.Catalogs += len(group)
	}
	return p.Index.DropCatalogs(ctx, oldest)
}

// catalogs deletes the old catalogs of which the index has no row: a committer that was killed, or
// was paused for long, has put them.
func (s *section) catalogs(ctx context.Context) error {
	sequences, err := s.Index.Catalogs(ctx)
	if err != nil || len(sequences) < keptCatalogs {
		return err
	}
	oldest := sequences[len(sequences)-keptCatalogs]
	s.step("looking for old catalogs")
	for page, err := range pages(s.Store.List(ctx, store.CatalogPrefix)) {
		if err != nil {
			return err
		}
		s.Objects += int64(len(page))
		var old []stored
		for _, o := range page {
			switch sequence, ok := store.ParseCatalogName(o.Name); {
			case !ok:
				s.leave(o.Name)
			case sequence < oldest:
				old = append(old, stored{Object: o})
			}
		}
		err := s.remove(ctx, old)
		if errors.Is(err, fs.ErrPermission) {
			return nil // the next pass reports it, if the index has rows of some
		}
		if err != nil {
			return err
		}
	}
	return nil
}

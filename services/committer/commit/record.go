package commit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/store"
)

// Information that reaches the store after the index: how each snapshot ended, and the operators'
// settings. The leader writes what another process has not written.

// recordsAtOnce bounds the snapshots that are held in memory at a time.
const recordsAtOnce = 100

// recordLoop writes records and catalogs until ctx is done.
func (s *Service) recordLoop(ctx context.Context) {
	loop.Every(ctx, s.times.record, func() {
		if err := s.Record(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("writing records of snapshots to the store failed, will retry", "error", err)
			s.retry(err)
		}
	})
}

// Record writes the commit records that are missing in the store, and the catalog if it has
// changed.
func (s *Service) Record(ctx context.Context) error {
	_, err := s.writeRecords(ctx)
	return errors.Join(err, s.writeCatalog(ctx))
}

// announceLoop writes a catalog when a pruner has announced a deletion, until ctx is done. The
// pruner waits for it.
func (s *Service) announceLoop(ctx context.Context) {
	loop.Every(ctx, s.times.renew, func() {
		announced, err := s.Index.AnnouncedDeletion(ctx)
		var written index.WrittenCatalog
		if err == nil {
			written, err = s.Index.WrittenCatalog(ctx)
		}
		if err == nil && announced > written.Deletions {
			err = s.writeCatalog(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("writing a catalog for a pruner failed, will retry", "error", err)
			s.retry(err)
		}
	})
}

// WriteRecords writes all commit records that are missing in the store, those of snapshots whose
// processes died before they could, and the catalog if it has changed. Another process may write
// them at the same time.
func WriteRecords(ctx context.Context, p Parts) error {
	s := New(p, Options{})
	for {
		n, err := s.writeRecords(ctx)
		if err != nil {
			return err
		}
		if n == 0 {
			return s.writeCatalog(ctx)
		}
	}
}

// writeRecords writes some of the missing records, and returns their number.
func (s *Service) writeRecords(ctx context.Context) (int, error) {
	missing, err := s.Index.Unrecorded(ctx, nil, recordsAtOnce)
	for i := range missing {
		err = errors.Join(err, s.writeRecord(ctx, &missing[i]))
	}
	return len(missing), err
}

// writeRecord writes the record of a snapshot that has ended.
func (s *Service) writeRecord(ctx context.Context, snap *backup.Snapshot) error {
	record := journal.NewCommit(snap, snap.Ended)
	data, err := journal.EncodeCommit(s.Keys, snap.ID, record, s.Index.Problems(ctx, snap.ID))
	if err != nil {
		return fmt.Errorf("commit record of snapshot %s: %w", snap.ID.Short(), err)
	}
	name := store.CommitName(snap.ID)
	err = s.Store.PutNew(ctx, name, data)
	if errors.Is(err, backup.ErrExists) {
		err = s.verify(ctx, name) // another committer was first, and has written the same
	}
	if err != nil {
		return err
	}
	return s.Index.Recorded(ctx, snap.ID)
}

// verify fails unless an object in the store was signed by a committer.
func (s *Service) verify(ctx context.Context, name string) error {
	data, err := s.Store.Get(ctx, name, pack.MaxBytes)
	if err != nil {
		return err
	}
	return pack.Verify(data, name, s.Keys.Repository, s.Keys.Signing.Signer())
}

// writeCatalog writes the catalog if it differs from the one in the store, or if a pruner has
// announced a deletion since: an index that lacks the number of this catalog is then older than the
// store (I16).
func (s *Service) writeCatalog(ctx context.Context) error {
	announced, err := s.Index.AnnouncedDeletion(ctx)
	if err != nil {
		return err
	}
	catalog, err := s.catalog(ctx)
	if err != nil {
		return err
	}
	lines, err := catalog.Lines()
	if err != nil {
		return err
	}
	written, err := s.Index.WrittenCatalog(ctx)
	if err != nil {
		return err
	}
	next := index.WrittenCatalog{Sequence: written.Sequence, Digest: sha256.Sum256(lines), Deletions: announced}
	if next.Digest == written.Digest && announced <= written.Deletions {
		return nil
	}
	now, err := s.Index.Clock(ctx)
	if err != nil {
		return err
	}
	// The index may be older than the store, and old catalogs are deleted: a number that is free
	// may have been used.
	newest, err := repo.NewestCatalog(ctx, s.Store, nil)
	if err != nil {
		return err
	}
	newest = max(newest, written.Sequence)
	err = backup.ErrExists
	for errors.Is(err, backup.ErrExists) { // written at this moment, by an index that was older
		if next.Sequence, err = s.Index.NextCatalog(ctx, newest); err != nil {
			return err
		}
		data, encodeErr := journal.EncodeCatalog(s.Keys, next.Sequence, now, catalog)
		if encodeErr != nil {
			return encodeErr
		}
		err = s.Store.PutNew(ctx, store.CatalogName(next.Sequence), data)
	}
	if err != nil {
		return err
	}
	return s.Index.CatalogWritten(ctx, next)
}

// catalog returns the operators' settings, and the snapshots that are forgotten.
func (s *Service) catalog(ctx context.Context) (*journal.Catalog, error) {
	c := &journal.Catalog{}
	filers, err := s.Index.ListFilers(ctx, index.FilerFilter{Retired: true})
	if err != nil {
		return nil, err
	}
	for i := range filers {
		c.Filers = append(c.Filers, journal.FilerOf(&filers[i].Filer))
	}
	shards, err := s.Index.ListShards(ctx, index.ShardFilter{Retired: true})
	if err != nil {
		return nil, err
	}
	for i := range shards {
		c.Shards = append(c.Shards, journal.ShardOf(&shards[i].Shard, shards[i].Filer.Name))
	}
	policies, err := s.Index.ListPolicies(ctx)
	if err != nil {
		return nil, err
	}
	for i := range policies {
		c.Policies = append(c.Policies, journal.PolicyOf(&policies[i]))
	}
	// Also those without a needed record: until it is deleted, it would bring the snapshot back,
	// whose packs may be gone.
	if c.Forgotten, err = s.Index.ForgottenIDs(ctx); err != nil {
		return nil, err
	}
	if err := s.addMarks(ctx, c); err != nil {
		return nil, err
	}
	holds, err := s.Index.Holds(ctx)
	if err != nil {
		return nil, err
	}
	for i := range holds {
		n := slices.IndexFunc(shards, func(s index.ShardStatus) bool { return s.ID == holds[i].Shard })
		switch {
		case holds[i].Shard == 0:
			c.Holds = append(c.Holds, holdOf(&holds[i], nil))
		case n >= 0: // otherwise it was added since the shards were read: the next catalog has it
			c.Holds = append(c.Holds, holdOf(&holds[i], &shards[n].Shard))
		}
	}
	return c, nil
}

// addMarks adds the snapshots that are marked as bad, the brake, and the limits of scrubs.
func (s *Service) addMarks(ctx context.Context, c *journal.Catalog) error {
	bad, err := s.Index.BadSnapshots(ctx)
	if err != nil {
		return err
	}
	for _, id := range slices.SortedFunc(maps.Keys(bad), func(a, b backup.SnapshotID) int { return bytes.Compare(a[:], b[:]) }) {
		c.Bad = append(c.Bad, journal.CatalogBad{Snapshot: id.String(), Reason: bad[id]})
	}
	brake, err := s.Index.Brake(ctx)
	if err != nil {
		return err
	}
	c.Brake = &journal.CatalogBrake{
		Snapshots: brake.Snapshots, MinSnapshots: brake.MinSnapshots, Bytes: brake.Bytes, MinBytes: brake.MinBytes, Operators: brake.Operators,
	}
	scrub, err := s.Index.ScrubSettings(ctx)
	c.Scrub = &journal.CatalogScrub{
		WithinSeconds: int64(scrub.Within / time.Second), Bytes: scrub.PerDay.Bytes, Requests: scrub.PerDay.Requests,
		PriceRequests: int64(scrub.Prices.Requests), PriceBytes: int64(scrub.Prices.Bytes), Spend: int64(scrub.Spend),
	}
	return err
}

// holdOf converts a hold to its form in the catalog. The shard is nil for a hold on a snapshot.
func holdOf(h *index.Hold, shard *backup.Shard) journal.CatalogHold {
	c := journal.CatalogHold{ID: h.ID, Reason: h.Reason, By: h.By, Login: h.Login, Since: h.Since}
	c.SetPath(h.Path)
	if shard != nil {
		c.Shard = shard.Key.String()
	} else {
		c.Snapshot = h.Snapshot.String()
	}
	if h.Alarm != (backup.SnapshotID{}) {
		c.Alarm = h.Alarm.String()
	}
	return c
}

package entindex

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// A snapshot that was removed is known by its tombstone, and one that was accepted as lost, too.
const (
	selectEnded   = `SELECT id FROM snapshots WHERE state <> 'running' AND {id in $1}`
	selectLost    = `SELECT id FROM lost_snapshots WHERE {id in $1}`
	selectGone    = `SELECT id FROM removed_snapshots WHERE {id in $1}`
	unendedAtOnce = 1000
)

// Unended implements index.Comparing. Tombstones come after the snapshots that they replace.
func (x *Index) Unended(ctx context.Context, ids []backup.SnapshotID) (unended []backup.SnapshotID, err error) {
	for group := range slices.Chunk(ids, unendedAtOnce) {
		ended := make(map[backup.SnapshotID]bool, len(group))
		for _, query := range []string{selectEnded, selectLost, selectGone} {
			err := x.queryOf(ctx, query, uuids(group), func(scan func(...any) error) error {
				var id uuid.UUID
				err := scan(&id)
				ended[backup.SnapshotID(id)] = true
				return err
			})
			if err != nil {
				return nil, err
			}
		}
		for _, id := range group {
			if !ended[id] {
				unended = append(unended, id)
			}
		}
	}
	return unended, nil
}

// LastCatalog implements index.Comparing.
func (x *Index) LastCatalog(ctx context.Context) (last int64, err error) {
	err = x.query(ctx, selectLastCatalog, nil, func(scan func(...any) error) error { return scan(&last) })
	return last, err
}

// Incarnation implements index.Comparing.
func (x *Index) Incarnation(ctx context.Context) (text string, err error) {
	query := x.Backend.Dialect().Incarnation
	if query == "" {
		return "", nil
	}
	err = x.query(ctx, query, nil, func(scan func(...any) error) error { return scan(&text) })
	return text, err
}

// AnnounceDeletion implements index.Comparing. It is durable, because objects are deleted after it.
func (x *Index) AnnounceDeletion(ctx context.Context) (number int64, err error) {
	err = x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		return tx.Each(ctx, `UPDATE catalog_numbers SET deletions = deletions + 1 RETURNING deletions`, nil,
			func(scan func(...any) error) error { return scan(&number) })
	})
	return number, err
}

// AnnouncedDeletion implements index.Comparing.
func (x *Index) AnnouncedDeletion(ctx context.Context) (number int64, err error) {
	err = x.query(ctx, `SELECT deletions FROM catalog_numbers`, nil, func(scan func(...any) error) error { return scan(&number) })
	return number, err
}

const (
	insertLost   = `INSERT INTO lost_snapshots (id) VALUES ($1) ON CONFLICT DO NOTHING`
	raiseNumber  = `UPDATE shards SET last_number = $1 WHERE shard_key = $2 AND last_number < $1`
	raiseCatalog = `UPDATE catalog_numbers SET last = $1 WHERE last < $1`
	lowerCatalog = `UPDATE catalog_numbers SET last = $1 - 1 WHERE last >= $1`
	markNew      = `UPDATE catalog_numbers SET last = -1 WHERE last = 0`
	dropCatalog  = `DELETE FROM catalogs WHERE sequence >= $1`

	// Committers that were built before schema version 15 take the number after that of the newest
	// catalog, and do not change catalog_numbers.
	selectLastCatalog = `SELECT max(number) FROM (SELECT last AS number FROM catalog_numbers UNION ALL SELECT max(sequence) FROM catalogs) AS numbers`
)

// MarkOld implements index.Comparing. NextCatalog gives no number twice because of it: no catalog
// in the store has a greater number than the one that it begins with.
func (x *Index) MarkOld(ctx context.Context, catalog int64) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if catalog < 1 {
			return tx.exec(ctx, markNew)
		}
		if err := tx.exec(ctx, lowerCatalog, catalog); err != nil {
			return err
		}
		return tx.exec(ctx, dropCatalog, catalog)
	})
}

// AcceptLoss implements index.Comparing.
func (x *Index) AcceptLoss(ctx context.Context, lost []index.LostSnapshot, catalog int64, by, reason string) error {
	if err := checkReason(by, reason); err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		for _, s := range lost {
			if err := tx.exec(ctx, insertLost, uuid.UUID(s.ID)); err != nil {
				return err
			}
			if err := tx.exec(ctx, raiseNumber, int64(s.Number), uuid.UUID(s.Shard)); err != nil {
				return err
			}
		}
		if err := tx.exec(ctx, raiseCatalog, catalog); err != nil {
			return err
		}
		return tx.writeLog(ctx, by, "accept", "index", reason)
	})
}

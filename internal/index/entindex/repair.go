package entindex

import (
	"context"
	"iter"
	"slices"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
	"github.com/bctl/bctl/internal/listing"
)

const (
	// A running snapshot may have walked the page already.
	putReread = `
INSERT INTO reread_pages (shard, directory, page, until) VALUES ($1, $2, $3, (SELECT last_number FROM shards WHERE id = $1))
ON CONFLICT (shard, directory, page) DO UPDATE SET until = excluded.until`
	dropReread   = `DELETE FROM reread_pages WHERE shard = $1 AND until < $2`
	anyReread    = `SELECT count(*) FROM (SELECT 1 FROM reread_pages WHERE shard = $1 AND until >= $2 LIMIT 1) one`
	selectReread = `SELECT directory, page FROM reread_pages WHERE shard = $2 AND until >= $3 AND {directory in $1}`

	selectAllReread = `SELECT shard, directory, page FROM reread_pages`

	loseLists         = `UPDATE chunk_lists SET lost = true WHERE list IN (SELECT id FROM chunks WHERE {pack in $1})`
	requireCheckpoint = `UPDATE shards SET segment_bytes = checkpoint_bytes + 1048577 WHERE id = $1` // commit.needsCheckpoint
)

// Reread implements index.Repairing.
func (x *Index) Reread(ctx context.Context, pages []index.PageID) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		for i := range pages {
			p := &pages[i]
			if err := tx.exec(ctx, putReread, int64(p.Shard), uuid.UUID(p.Directory), int64(p.Key)); err != nil {
				return err
			}
		}
		return nil
	})
}

// ToReread implements index.Repairing.
func (x *Index) ToReread(ctx context.Context) iter.Seq2[index.PageID, error] {
	return sequence(func(yield func(index.PageID) error) error {
		return x.query(ctx, selectAllReread, nil, func(scan func(...any) error) error {
			var shard, key int64
			var directory uuid.UUID
			if err := scan(&shard, &directory, &key); err != nil {
				return err
			}
			return yield(index.PageID{Shard: backup.ShardID(shard), Directory: backup.DirectoryID(directory), Key: backup.PageKey(key)})
		})
	})
}

// rereadPages returns which pages of some directories are to be read again by a snapshot that is
// compared with base.
func (x *Index) rereadPages(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, directories func(yield func(backup.DirectoryID) bool)) (map[index.PageID]bool, error) {
	n := 0
	if err := x.query(ctx, anyReread, []any{int64(shard), int64(base)}, func(scan func(...any) error) error { return scan(&n) }); err != nil || n == 0 {
		return nil, err
	}
	var ids []uuid.UUID
	seen := map[backup.DirectoryID]bool{}
	for d := range directories {
		if !seen[d] {
			seen[d] = true
			ids = append(ids, uuid.UUID(d))
		}
	}
	d := x.Backend.Dialect()
	args := []any{d.List(ids), int64(shard), int64(base)}
	if d.PlanAnew != nil {
		args = append([]any{d.PlanAnew}, args...)
	}
	found := map[index.PageID]bool{}
	err := x.query(ctx, d.sql(selectReread), args, func(scan func(...any) error) error {
		var directory uuid.UUID
		p := index.PageID{Shard: shard}
		err := scan(&directory, &p.Key)
		p.Directory = backup.DirectoryID(directory)
		found[p] = true
		return err
	})
	return found, err
}

// rereadMarks takes the fingerprints of pages that are to be read again, so that no page equals
// them.
func (x *Index) rereadMarks(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, marks []index.PageMark) error {
	again, err := x.rereadPages(ctx, shard, base, func(yield func(backup.DirectoryID) bool) {
		for i := range marks {
			if !yield(marks[i].Directory) {
				return
			}
		}
	})
	for i := range marks {
		if again[index.PageID{Shard: shard, Directory: marks[i].Directory, Key: marks[i].Key}] {
			marks[i].Fingerprint = backup.Fingerprint{}
		}
	}
	return err
}

// rereadListings flags the entries of pages that are to be read again, so that no entry counts as
// unchanged. The flags are those of entries that could not be read well.
func (x *Index) rereadListings(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, pages []backup.PageName, listings [][]byte) error {
	again, err := x.rereadPages(ctx, shard, base, func(yield func(backup.DirectoryID) bool) {
		for i := range pages {
			if !yield(listing.DirectoryID(pages[i].Path)) {
				return
			}
		}
	})
	var encode listing.Encoder
	for i := range pages {
		if err != nil || len(listings[i]) == 0 || !again[index.PageID{Shard: shard, Directory: listing.DirectoryID(pages[i].Path), Key: pages[i].Key}] {
			continue
		}
		page, damaged := listing.Decode(listings[i])
		if damaged != nil {
			continue // the walker reads all of it again
		}
		if page.Self != nil {
			page.Self.Flags |= backup.XattrsUnreadable
		}
		for n := range page.Entries {
			if page.Entries[n].Kind != backup.Directory {
				page.Entries[n].Flags |= backup.ChangedWhileRead
			}
		}
		listings[i], err = encode.Encode(nil, &page)
	}
	return err
}

// LoseLists implements index.Repairing.
func (x *Index) LoseLists(ctx context.Context, t index.Term, rows []int64) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if err := tx.checkTerm(ctx, t); err != nil {
			return err
		}
		return tx.execList(ctx, loseLists, rows)
	})
}

// Unrecord implements index.Repairing.
func (x *Index) Unrecord(ctx context.Context, id backup.SnapshotID) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		return tx.Snapshot.Update().Where(snapshot.ID(uuid.UUID(id)), snapshot.StateNEQ(string(backup.Running))).SetRecorded(false).Exec(ctx)
	})
}

// RequireCheckpoint implements index.Repairing.
func (x *Index) RequireCheckpoint(ctx context.Context, shard backup.ShardID) error {
	return x.exec(ctx, Durable, requireCheckpoint, int64(shard))
}

// LoseCatalog implements index.Repairing. No catalog has the digest zero.
func (x *Index) LoseCatalog(ctx context.Context) error {
	written, err := x.WrittenCatalog(ctx)
	if err != nil {
		return err
	}
	next, err := x.NextCatalog(ctx, written.Sequence)
	if err != nil {
		return err
	}
	now, err := x.Backend.Clock(ctx)
	if err != nil {
		return err
	}
	return x.CatalogWritten(ctx, index.WrittenCatalog{Sequence: next, Written: now})
}

// ForgetAdopted implements index.Repairing.
func (x *Index) ForgetAdopted(ctx context.Context, rows []int64) error {
	for group := range slices.Chunk(slices.Sorted(slices.Values(rows)), listLength) {
		err := x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error { return tx.execList(ctx, forgetAdopted, group, []byte{}) })
		if err != nil {
			return err
		}
	}
	return nil
}

// NoteRepair implements index.Repairing.
func (x *Index) NoteRepair(ctx context.Context, by, subject, reason string) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		return tx.writeLog(ctx, by, actionRepair, subject, text(reason, maxErrorBytes))
	})
}

package entindex

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
	"github.com/bctl/bctl/internal/listing"
)

const (
	selectPurges = `SELECT id, shard, path, since, through, by, reason, started, snapshots, files, directories, bytes FROM purges ORDER BY started, id`
	hidePurge    = `UPDATE purges SET path = $2 WHERE id = $1`
	deletePurge  = `DELETE FROM purges WHERE id = $1`
)

// Purges implements index.Purging.
func (x *Index) Purges(ctx context.Context) ([]index.Purge, error) {
	return listOf(ctx, x.query, selectPurges, nil, func(scan func(...any) error) (p index.Purge, err error) {
		var id uuid.UUID
		var path []byte
		var started int64
		t := &p.Total
		err = scan(&id, &p.Shard, &path, &p.From, &p.Through, &p.By, &p.Reason, &started, &t.Snapshots, &t.Files, &t.Directories, &t.Bytes)
		p.ID, p.Path, p.Started = backup.PackID(id), string(path), fromMicros(started)
		return p, err
	})
}

const (
	countStale   = `SELECT count(*) FROM amendments a JOIN snapshots s ON s.id = a.snapshot WHERE a.stale AND s.shard_id = $1`
	countChunks  = `SELECT count(*) FROM purge_chunks WHERE purge = $1`
	countObjects = `SELECT count(*) FROM purge_objects WHERE purge = $1`
)

// PurgeStates implements index.Purging.
func (x *Index) PurgeStates(ctx context.Context) ([]index.PurgeState, error) {
	purges, err := x.Purges(ctx)
	states := make([]index.PurgeState, len(purges))
	for n, p := range purges {
		states[n].Purge = p
		for _, count := range []struct {
			query string
			of    any
			to    *int64
		}{{countStale, int64(p.Shard), &states[n].Stale}, {countChunks, uuid.UUID(p.ID), &states[n].Chunks}, {countObjects, uuid.UUID(p.ID), &states[n].Objects}} {
			if err == nil {
				err = x.query(ctx, count.query, []any{count.of}, func(scan func(...any) error) error { return scan(count.to) })
			}
		}
	}
	return states, err
}

// HidePurge implements index.Purging.
func (x *Index) HidePurge(ctx context.Context, id backup.PackID) error {
	return x.exec(ctx, Durable, hidePurge, uuid.UUID(id), []byte{})
}

// EndPurge implements index.Purging.
func (x *Index) EndPurge(ctx context.Context, id backup.PackID, outcome string) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		var by string
		var shard int64
		err := tx.Each(ctx, `SELECT by, shard FROM purges WHERE id = $1`, []any{uuid.UUID(id)}, func(scan func(...any) error) error { return scan(&by, &shard) })
		if err != nil || by == "" {
			return err // another process has ended it
		}
		for _, statement := range []string{deletePurge, `DELETE FROM purge_chunks WHERE purge = $1`, `DELETE FROM purge_objects WHERE purge = $1`} {
			if err := tx.exec(ctx, statement, uuid.UUID(id)); err != nil {
				return err
			}
		}
		return tx.writeLog(ctx, by, actionPurged, fmt.Sprintf("shard %d", shard), text(fmt.Sprintf("purge %s: %s", id, outcome), maxErrorBytes))
	})
}

// NotePurge implements index.Purging.
func (x *Index) NotePurge(ctx context.Context, by, what string, ended bool) error {
	action := actionPurge
	if ended {
		action = actionPurged
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		return tx.writeLog(ctx, by, action, "repository", text(what, maxErrorBytes))
	})
}

// PurgeRemains implements index.Purging. It is a transaction only because it reads as one does.
func (x *Index) PurgeRemains(ctx context.Context, id backup.PackID) (remains int64, err error) {
	err = x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		remains = 0
		g := &purging{tx: tx}
		var path []byte
		var through int64
		err := tx.Each(ctx, `SELECT shard, path, since, through FROM purges WHERE id = $1`, []any{uuid.UUID(id)}, func(scan func(...any) error) error {
			return scan(&g.p.Shard, &path, &g.from, &through)
		})
		if err != nil || len(path) == 0 {
			return err
		}
		g.p.Path = string(path)
		dir, name := backup.Split(g.p.Path)
		tree := Range{backup.PathKey(g.p.Path), backup.PathKeyEnd(g.p.Path)}
		err = tx.eachVersion(ctx, g.p.Shard, tree, g.from, func(v *Version) error {
			if int64(v.First) <= through {
				remains++
			}
			return nil
		})
		if err != nil {
			return err
		}
		err = tx.eachVersion(ctx, g.p.Shard, onlyOf(dir), g.from, func(v *Version) error {
			if int64(v.First) > through {
				return nil
			}
			page, err := listing.Decode(v.Listing)
			if _, found := position(page.Entries, name); err != nil || found { // a damaged one may have it
				remains++
			}
			return nil
		})
		if err != nil {
			return err
		}
		return tx.Each(ctx, problemsSince, []any{int64(g.p.Shard), int64(g.from)}, func(scan func(...any) error) error {
			var row, number int64
			var of []byte
			err := scan(&row, &of, &number)
			if err == nil && number <= through && backup.IsAtOrBelow(string(of), g.p.Path) {
				remains++
			}
			return err
		})
	})
	return remains, err
}

// PurgeChunks implements index.Purging.
func (x *Index) PurgeChunks(ctx context.Context, id backup.PackID, after backup.ChunkID, limit int) ([]backup.ChunkID, error) {
	const query = `SELECT chunk FROM purge_chunks WHERE purge = $1 AND chunk > $2 ORDER BY chunk LIMIT $3`
	return listOf(ctx, x.query, query, []any{uuid.UUID(id), after[:], limit}, func(scan func(...any) error) (c backup.ChunkID, err error) {
		var chunk []byte
		err = scan(&chunk)
		copy(c[:], chunk)
		return c, err
	})
}

// NotePurgeObjects implements index.Purging. It is durable, because the objects are deleted after
// it.
func (x *Index) NotePurgeObjects(ctx context.Context, id backup.PackID, objects []index.StoredObject) error {
	const insert = `INSERT INTO purge_objects (purge, snapshot, object) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		for _, o := range objects {
			if err := tx.exec(ctx, insert, uuid.UUID(id), uuid.UUID(o.Snapshot), uuid.UUID(o.ID)); err != nil {
				return err
			}
		}
		return nil
	})
}

// PurgeObjects implements index.Purging.
func (x *Index) PurgeObjects(ctx context.Context, id backup.PackID) ([]index.StoredObject, error) {
	const query = `SELECT snapshot, object FROM purge_objects WHERE purge = $1 ORDER BY object`
	return listOf(ctx, x.query, query, []any{uuid.UUID(id)}, func(scan func(...any) error) (o index.StoredObject, err error) {
		var of, object uuid.UUID
		err = scan(&of, &object)
		o.Snapshot, o.ID = backup.SnapshotID(of), backup.PackID(object)
		return o, err
	})
}

// A journalBase is what the index knows of an amended record.
type journalBase struct {
	sequence int
	base     uuid.NullUUID
	stale    bool
}

const selectJournalBases = `
SELECT a.snapshot, a.sequence, a.base, a.stale FROM amendments a JOIN snapshots s ON s.id = a.snapshot WHERE s.shard_id = $1`

// journalBases returns the amendments of a shard's snapshots.
func (x *Index) journalBases(ctx context.Context, shard backup.ShardID) (map[uuid.UUID]journalBase, error) {
	found := map[uuid.UUID]journalBase{}
	err := x.query(ctx, selectJournalBases, []any{int64(shard)}, func(scan func(...any) error) error {
		var id uuid.UUID
		var b journalBase
		err := scan(&id, &b.sequence, &b.base, &b.stale)
		found[id] = b
		return err
	})
	return found, err
}

// Journals implements index.Purging.
func (x *Index) Journals(ctx context.Context, shard backup.ShardID) ([]index.SnapshotJournal, error) {
	amended, err := x.journalBases(ctx, shard)
	if err != nil {
		return nil, err
	}
	rows, err := x.Backend.Client().Snapshot.Query().Where(snapshot.ShardID(int64(shard))).Order(snapshot.ByNumber()).
		Select(snapshot.FieldID, snapshot.FieldNumber, snapshot.FieldState, snapshot.FieldBaseID, snapshot.FieldForgotten, snapshot.FieldSegment,
			snapshot.FieldSegmentParts, snapshot.FieldCheckpoint, snapshot.FieldPages, snapshot.FieldPagesSum).All(ctx)
	if err != nil {
		return nil, x.Backend.Wrap(err)
	}
	newest := uuid.UUID{}
	for _, row := range rows {
		if row.State == string(backup.Committed) {
			newest = row.ID
		}
	}
	journals := make([]index.SnapshotJournal, 0, len(rows))
	for _, row := range rows {
		state := backup.State(row.State)
		if row.Forgotten != nil && row.ID != newest || state != backup.Committed && state != backup.Failed {
			continue
		}
		j := index.SnapshotJournal{
			ID: backup.SnapshotID(row.ID), Number: backup.SnapshotNumber(row.Number), State: state,
			Segment: backup.Segment{Parts: row.SegmentParts, Checkpoint: row.Checkpoint}, Pages: backup.PageSet{Pages: row.Pages},
		}
		copy(j.Pages.Sum[:], row.PagesSum)
		if row.Segment != nil {
			j.Segment.Attempt = backup.PackID(*row.Segment)
		}
		if row.BaseID != nil {
			j.Base = backup.SnapshotID(*row.BaseID)
		}
		if a, ok := amended[row.ID]; ok {
			j.Sequence, j.Stale = a.sequence, a.stale
			if a.sequence > 0 {
				j.Base = backup.SnapshotID(a.base.UUID)
			}
		}
		journals = append(journals, j)
	}
	return journals, nil
}

// MarkStale implements index.Purging.
func (x *Index) MarkStale(ctx context.Context, shard backup.ShardID) error {
	return x.markStale(ctx, shard, func(*index.SnapshotJournal, backup.SnapshotID) bool { return true })
}

// MarkUnchained implements index.Purging.
func (x *Index) MarkUnchained(ctx context.Context, shard backup.ShardID) error {
	return x.markStale(ctx, shard, func(j *index.SnapshotJournal, before backup.SnapshotID) bool {
		whole := j.Segment.Checkpoint && j.Segment.Parts > 0 || j.Base == backup.SnapshotID{}
		return !whole && j.Base != before
	})
}

// markStale makes the records of the committed snapshots stale for which is returns true. before is
// the committed snapshot before.
func (x *Index) markStale(ctx context.Context, shard backup.ShardID, is func(j *index.SnapshotJournal, before backup.SnapshotID) bool) error {
	journals, err := x.Journals(ctx, shard)
	if err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		before := backup.SnapshotID{}
		for i := range journals {
			j := &journals[i]
			if j.State != backup.Committed {
				continue
			}
			if is(j, before) {
				if err := tx.exec(ctx, markStale, uuid.UUID(j.ID)); err != nil {
					return err
				}
			}
			before = j.ID
		}
		return nil
	})
}

const putAmendment = `
INSERT INTO amendments (snapshot, sequence, base, stale) VALUES ($1, $2, $3, false)
ON CONFLICT (snapshot) DO UPDATE SET sequence = excluded.sequence, base = excluded.base, stale = false`

// Amend implements index.Purging. It is durable, because what the record replaces is deleted after
// it.
func (x *Index) Amend(ctx context.Context, t index.Term, a index.Amendment) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if t != (index.Term{}) {
			if err := tx.checkTerm(ctx, t); err != nil {
				return err
			}
		}
		base := uuid.NullUUID{UUID: uuid.UUID(a.Base), Valid: a.Base != backup.SnapshotID{}}
		if err := tx.exec(ctx, putAmendment, uuid.UUID(a.ID), a.Sequence, base); err != nil {
			return err
		}
		// The noted locks are those of the record and the segment that are replaced.
		if err := tx.dropLocks(ctx, a.ID); err != nil {
			return err
		}
		update := tx.Snapshot.Update().Where(snapshot.ID(uuid.UUID(a.ID)), snapshot.State(string(backup.Committed))).
			SetSegmentParts(a.Segment.Parts).SetCheckpoint(a.Segment.Checkpoint)
		if a.Segment.Parts > 0 {
			update.SetSegment(uuid.UUID(a.Segment.Attempt))
		} else {
			update.ClearSegment()
		}
		if n, err := update.Save(ctx); err != nil || n == 0 {
			return err
		}
		// A checkpoint is written once the segments have become larger than the last one.
		row, err := tx.Snapshot.Query().Where(snapshot.ID(uuid.UUID(a.ID))).Select(snapshot.FieldShardID).Only(ctx)
		if err != nil {
			return err
		}
		shard := tx.Shard.UpdateOneID(row.ShardID)
		if a.Segment.Checkpoint {
			return shard.SetCheckpointBytes(a.Segment.Bytes).SetSegmentBytes(0).Exec(ctx)
		}
		return shard.AddSegmentBytes(a.Segment.Bytes).Exec(ctx)
	})
}

// Amendments implements index.Purging.
func (x *Index) Amendments(ctx context.Context) (map[backup.SnapshotID]int, error) {
	found := map[backup.SnapshotID]int{}
	err := x.query(ctx, `SELECT snapshot, sequence, stale FROM amendments`, nil, func(scan func(...any) error) error {
		var id uuid.UUID
		var sequence int
		var stale bool
		err := scan(&id, &sequence, &stale)
		if stale {
			sequence = -1
		}
		found[backup.SnapshotID(id)] = sequence
		return err
	})
	return found, err
}

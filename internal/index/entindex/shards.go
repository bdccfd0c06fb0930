package entindex

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/filer"
	"github.com/bctl/bctl/internal/index/ent/shard"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
	"github.com/bctl/bctl/internal/settings"
)

func toShard(row *ent.Shard) backup.Shard {
	return backup.Shard{
		ID: backup.ShardID(row.ID), Key: backup.ShardKey(row.ShardKey), Filer: backup.FilerID(row.FilerID), Name: row.Name, Source: row.Source,
		Snapshots: row.Pattern, Selection: row.Selection, Retired: row.Retired,
	}
}

// EnsureShard implements index.Catalog.
func (x *Index) EnsureShard(ctx context.Context, of backup.FilerID, name, source string) (backup.Shard, error) {
	if err := settings.ShardName(name); err != nil {
		return backup.Shard{}, err
	}
	if !settings.IsText(source) {
		return backup.Shard{}, invalid("source %q", source)
	}
	if found, err := x.Backend.Client().Filer.Query().Where(filer.ID(int64(of)), filer.Retired(false)).Exist(ctx); err != nil || !found {
		if err == nil {
			err = fmt.Errorf("filer %d: %w", of, backup.ErrNotFound)
		}
		return backup.Shard{}, x.Backend.Wrap(err)
	}
	query := x.Backend.Client().Shard.Query().Where(shard.FilerID(int64(of)), shard.Name(name))
	row, err := query.Clone().Only(ctx)
	if ent.IsNotFound(err) || err == nil && (row.Source != source || row.Retired) {
		err = x.exec(ctx, Durable, "INSERT INTO shards (shard_key, filer_id, name, source) VALUES ($1,$2,$3,$4) "+
			"ON CONFLICT (filer_id, name) DO UPDATE SET source = excluded.source, retired = false", uuid.UUID(backup.NewShardKey()), int64(of), name, source)
		if err == nil {
			row, err = query.Only(ctx)
		}
	}
	if err != nil {
		return backup.Shard{}, x.Backend.Wrap(err)
	}
	return toShard(row), nil
}

// AddShard implements index.Filers.
func (x *Index) AddShard(ctx context.Context, s backup.Shard) (backup.Shard, error) {
	if err := checkShard(s); err != nil {
		return backup.Shard{}, err
	}
	var row *ent.Shard
	err := x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		of, err := tx.lockFiler(ctx, s.Filer, false)
		if err != nil {
			return err
		}
		if of.Retired {
			return fmt.Errorf("filer %q is retired: %w", of.Name, backup.ErrNotFound)
		}
		found, err := locked(tx, tx.Shard.Query().Where(shard.FilerID(of.ID), shard.Name(s.Name)), true).Only(ctx)
		switch {
		case ent.IsNotFound(err):
			row, err = tx.Shard.Create().SetShardKey(uuid.UUID(backup.NewShardKey())).SetFilerID(of.ID).SetName(s.Name).
				SetSource(s.Source).SetPattern(s.Snapshots).SetSelection(s.Selection).Save(ctx)
			return err
		case err != nil:
			return err
		case !found.Retired:
			return fmt.Errorf("shard %q of filer %q: %w", s.Name, of.Name, backup.ErrExists)
		}
		row, err = tx.Shard.UpdateOneID(found.ID).SetRetired(false).
			SetSource(s.Source).SetPattern(s.Snapshots).SetSelection(s.Selection).Save(ctx)
		return err
	})
	if ent.IsConstraintError(err) { // another process has just added it
		err = fmt.Errorf("shard %q: %w", s.Name, backup.ErrExists)
	}
	if err != nil {
		return backup.Shard{}, err
	}
	return toShard(row), nil
}

// checkShard checks the name and the settings of a shard.
func checkShard(s backup.Shard) error {
	if err := settings.ShardName(s.Name); err != nil {
		return err
	}
	return settings.Shard(s)
}

// SetShard implements index.Filers.
func (x *Index) SetShard(ctx context.Context, s backup.Shard) error {
	if err := settings.Shard(s); err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		err := tx.Shard.UpdateOneID(int64(s.ID)).SetSource(s.Source).SetPattern(s.Snapshots).SetSelection(s.Selection).Exec(ctx)
		return orNotFound(err, "shard %d", s.ID)
	})
}

// RetireShard implements index.Filers.
func (x *Index) RetireShard(ctx context.Context, id backup.ShardID, by string) error {
	if err := checkReason(by, ""); err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		row, err := tx.lockShard(ctx, id)
		if err != nil {
			return err
		}
		runs, err := tx.Snapshot.Query().Where(running(), snapshot.ShardID(row.ID)).Exist(ctx)
		switch {
		case err != nil:
			return err
		case runs:
			return fmt.Errorf("shard %q: %w", row.Name, backup.ErrRunning)
		case row.LastNumber == 0:
			held, err := tx.count(ctx, `SELECT count(*) FROM holds WHERE shard = $1`, row.ID)
			if err != nil {
				return err
			}
			if held == 0 {
				return tx.Shard.DeleteOneID(row.ID).Exec(ctx)
			}
		}
		if err := tx.Shard.UpdateOneID(row.ID).SetRetired(true).Exec(ctx); err != nil {
			return err
		}
		return tx.writeLog(ctx, by, actionRetire, fmt.Sprintf("shard %d", id), "")
	})
}

// lockShard returns a shard with its filer. The shard does not change until the end of the
// transaction.
func (tx *Tx) lockShard(ctx context.Context, id backup.ShardID) (*ent.Shard, error) {
	row, err := locked(tx, tx.Shard.Query().Where(shard.ID(int64(id))).WithFiler(), true).Only(ctx)
	return row, orNotFound(err, "shard %d", id)
}

// ListShards implements index.Filers.
func (x *Index) ListShards(ctx context.Context, f index.ShardFilter) ([]index.ShardStatus, error) {
	rows, err := x.filersThat(ctx, index.FilerFilter{Name: f.Filer, Labels: f.Labels, Retired: f.Retired})
	if err != nil {
		return nil, err
	}
	filers := make(map[int64]backup.Filer, len(rows))
	ids := make([]int64, len(rows))
	for i, row := range rows {
		filers[row.ID], ids[i] = toFiler(row), row.ID
	}
	query := x.Backend.Client().Shard.Query()
	if f.Name != "" {
		query.Where(shard.Name(f.Name))
	}
	if !f.Retired {
		query.Where(shard.Retired(false))
	}
	if f.Filer != "" { // otherwise nearly all shards are wanted
		query.Where(shard.FilerIDIn(ids...))
	}
	found, err := query.All(ctx)
	if err != nil {
		return nil, x.Backend.Wrap(err)
	}
	runs, err := x.runningByShard(ctx)
	if err != nil {
		return nil, err
	}
	ended, err := x.endedNotGood(ctx, newestFailed)
	if err != nil {
		return nil, err
	}
	policies, err := x.policyNames(ctx)
	if err != nil {
		return nil, err
	}
	drills, err := x.shardDrills(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]index.ShardStatus, 0, len(found))
	for _, row := range found {
		of, ok := filers[row.FilerID]
		if !ok {
			continue
		}
		s := index.ShardStatus{
			Shard: toShard(row), Filer: of, Number: backup.SnapshotNumber(row.LastGoodNumber),
			Files: row.LastGoodFiles, Bytes: row.LastGoodBytes, Running: backup.SnapshotID(runs[row.ID]),
			Bad: ended.bad[row.ID], Failed: ended.failed[row.ID].UTC(),
			Policy: policies[backup.PolicyID(row.PolicyID)].Name, Plan: toPlan(row), Drills: drills[row.ID],
		}
		s.Drills.Every = policies[backup.PolicyID(row.PolicyID)].Drill
		if row.LastGood != nil && row.LastGoodStarted != nil {
			s.LastGood, s.Time = backup.SnapshotID(*row.LastGood), row.LastGoodStarted.UTC()
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b index.ShardStatus) int {
		return cmp.Or(cmp.Compare(a.Filer.Name, b.Filer.Name), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// runningByShard returns the running snapshots, of which there are at most as many as shards.
func (x *Index) runningByShard(ctx context.Context) (map[int64]uuid.UUID, error) {
	return mapOf[int64, uuid.UUID](ctx, x.query, "SELECT shard_id, id FROM snapshots WHERE "+isRunning)
}

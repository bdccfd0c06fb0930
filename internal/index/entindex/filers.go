package entindex

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/filer"
	"github.com/bctl/bctl/internal/index/ent/shard"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
	"github.com/bctl/bctl/internal/settings"
)

func toFiler(row *ent.Filer) backup.Filer {
	return backup.Filer{
		ID: backup.FilerID(row.ID), Name: row.Name, Site: row.Site,
		Limits:  backup.Limits{WalkTasks: row.WalkTasks, ReadBatches: row.ReadBatches, ReadBytesPerSecond: row.ReadBytes, Floor: row.Floor},
		Compare: backup.Compare(row.Compare), Selection: row.Selection, Labels: row.Labels, Retired: row.Retired,
	}
}

func toLoad(row *ent.Filer) backup.Load {
	const unit = time.Microsecond
	return backup.Load{
		WalkSlots: row.WalkSlots, ReadSlots: row.ReadSlots,
		WalkLatency: time.Duration(row.WalkLatency) * unit, WalkIdle: time.Duration(row.WalkIdle) * unit,
		ReadLatency: time.Duration(row.ReadLatency) * unit, ReadIdle: time.Duration(row.ReadIdle) * unit,
	}
}

// setSettings sets the settings of a filer that operators control.
func setSettings(m *ent.FilerMutation, f backup.Filer) {
	m.SetSite(f.Site)
	m.SetWalkTasks(f.Limits.WalkTasks)
	m.SetReadBatches(f.Limits.ReadBatches)
	m.SetReadBytes(f.Limits.ReadBytesPerSecond)
	m.SetFloor(f.Limits.Floor)
	m.SetCompare(uint8(f.Compare))
	m.SetSelection(f.Selection)
	if len(f.Labels) == 0 {
		m.ClearLabels()
	} else {
		m.SetLabels(f.Labels)
	}
}

// EnsureFiler implements index.Catalog.
func (x *Index) EnsureFiler(ctx context.Context, name string) (backup.Filer, error) {
	if err := settings.FilerName(name); err != nil {
		return backup.Filer{}, err
	}
	query := x.Backend.Client().Filer.Query().Where(filer.Name(name))
	row, err := query.Clone().Only(ctx)
	if ent.IsNotFound(err) || err == nil && row.Retired {
		err = x.exec(ctx, Durable, "INSERT INTO filers (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET retired = false", name)
		if err == nil {
			row, err = query.Only(ctx)
		}
	}
	if err != nil {
		return backup.Filer{}, x.Backend.Wrap(err)
	}
	return toFiler(row), nil
}

// AddFiler implements index.Filers.
func (x *Index) AddFiler(ctx context.Context, f backup.Filer) (backup.Filer, error) {
	f.Site = backup.SiteName(f.Site)
	if err := checkFiler(f); err != nil {
		return backup.Filer{}, err
	}
	var row *ent.Filer
	err := x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		found, err := locked(tx, tx.Filer.Query().Where(filer.Name(f.Name)), true).Only(ctx)
		switch {
		case ent.IsNotFound(err):
			create := tx.Filer.Create().SetName(f.Name)
			setSettings(create.Mutation(), f)
			row, err = create.Save(ctx)
			return err
		case err != nil:
			return err
		case !found.Retired:
			return fmt.Errorf("filer %q: %w", f.Name, backup.ErrExists)
		}
		update := tx.Filer.UpdateOneID(found.ID).SetRetired(false).SetWalkSlots(0).SetReadSlots(0)
		setSettings(update.Mutation(), f)
		row, err = update.Save(ctx)
		return err
	})
	if ent.IsConstraintError(err) { // another process has just added it
		err = fmt.Errorf("filer %q: %w", f.Name, backup.ErrExists)
	}
	if err != nil {
		return backup.Filer{}, err
	}
	return toFiler(row), nil
}

// checkFiler checks the name and the settings of a filer.
func checkFiler(f backup.Filer) error {
	if err := settings.FilerName(f.Name); err != nil {
		return err
	}
	return settings.Filer(f)
}

// SetFiler implements index.Filers.
func (x *Index) SetFiler(ctx context.Context, f backup.Filer) error {
	f.Site = backup.SiteName(f.Site)
	if err := settings.Filer(f); err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		update := tx.Filer.UpdateOneID(int64(f.ID))
		setSettings(update.Mutation(), f)
		return orNotFound(update.Exec(ctx), "filer %d", f.ID)
	})
}

// RetireFiler implements index.Filers. Beginning a snapshot locks the shard first. So either the
// snapshot has begun and is visible here, or its beginning finds the shard retired.
func (x *Index) RetireFiler(ctx context.Context, id backup.FilerID, by string) error {
	if err := checkReason(by, ""); err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		row, err := tx.lockFiler(ctx, id, true)
		if err != nil {
			return err
		}
		rows, err := locked(tx, tx.Shard.Query().Where(shard.FilerID(int64(id))).Order(shard.ByID()), true).All(ctx)
		if err != nil {
			return err
		}
		runs, err := tx.Snapshot.Query().Where(running(), snapshot.FilerID(int64(id))).Exist(ctx)
		if err != nil {
			return err
		}
		if runs {
			return fmt.Errorf("filer %d: %w", id, backup.ErrRunning)
		}
		if _, err := tx.Shard.Delete().Where(shard.FilerID(int64(id)), shard.LastNumber(0)).Exec(ctx); err != nil {
			return err
		}
		if !slices.ContainsFunc(rows, func(row *ent.Shard) bool { return row.LastNumber > 0 }) {
			return tx.Filer.DeleteOneID(int64(id)).Exec(ctx)
		}
		if err := tx.Shard.Update().Where(shard.FilerID(int64(id))).SetRetired(true).Exec(ctx); err != nil {
			return err
		}
		if err := tx.Filer.UpdateOneID(int64(id)).SetRetired(true).Exec(ctx); err != nil {
			return err
		}
		return tx.writeLog(ctx, by, actionRetire, "filer "+row.Name, "")
	})
}

// lockFiler returns a filer, which does not change until the end of the transaction.
func (tx *Tx) lockFiler(ctx context.Context, id backup.FilerID, exclusive bool) (*ent.Filer, error) {
	row, err := locked(tx, tx.Filer.Query().Where(filer.ID(int64(id))), exclusive).Only(ctx)
	return row, orNotFound(err, "filer %d", id)
}

// filersThat returns the filers that match.
func (x *Index) filersThat(ctx context.Context, f index.FilerFilter) ([]*ent.Filer, error) {
	query := x.Backend.Client().Filer.Query().Order(filer.ByName())
	if f.Name != "" {
		query.Where(filer.Name(f.Name))
	}
	if !f.Retired {
		query.Where(filer.Retired(false))
	}
	rows, err := query.All(ctx)
	if err != nil {
		return nil, x.Backend.Wrap(err)
	}
	return slices.DeleteFunc(rows, func(row *ent.Filer) bool {
		for key, want := range f.Labels {
			if got, ok := row.Labels[key]; !ok || got != want {
				return true
			}
		}
		return false
	}), nil
}

// ListFilers implements index.Filers. It runs one statement per group of columns, for any number of
// filers.
func (x *Index) ListFilers(ctx context.Context, f index.FilerFilter) ([]index.FilerStatus, error) {
	rows, err := x.filersThat(ctx, f)
	if err != nil {
		return nil, err
	}
	list := make([]index.FilerStatus, len(rows))
	of := make(map[int64]*index.FilerStatus, len(rows))
	for i, row := range rows {
		list[i] = index.FilerStatus{Filer: toFiler(row), Load: toLoad(row)}
		of[row.ID] = &list[i]
	}
	now, err := x.at(ctx, time.Time{})
	if err != nil {
		return nil, err
	}
	if err := x.addShards(ctx, of, now); err != nil {
		return nil, err
	}
	for _, count := range []struct {
		query string
		args  []any
		field func(*index.FilerStatus) *int
	}{
		{"SELECT filer_id, count(*) FROM snapshots WHERE " + isRunning + " GROUP BY filer_id", nil, func(s *index.FilerStatus) *int { return &s.Running }},
		{countHeld(walkTasks), []any{now}, func(s *index.FilerStatus) *int { return &s.Tasks }},
		{countHeld(readBatches), []any{now}, func(s *index.FilerStatus) *int { return &s.Batches }},
	} {
		counts, err := mapOf[int64, int](ctx, x.query, count.query, count.args...)
		if err != nil {
			return nil, err
		}
		for id, status := range of {
			*count.field(status) = counts[id]
		}
	}
	return list, nil
}

func countHeld(table string) string {
	return "SELECT filer_id, count(*) FROM " + table + " WHERE lease_until > $1 GROUP BY filer_id"
}

// addShards counts the shards of filers, and finds the oldest and newest of their last good
// snapshots and their first deadlines.
func (x *Index) addShards(ctx context.Context, of map[int64]*index.FilerStatus, now time.Time) error {
	rows, err := x.Backend.Client().Shard.Query().Where(shard.Retired(false)).
		Select(shard.FieldID, shard.FieldFilerID, shard.FieldLastGoodStarted, shard.FieldDeadline).All(ctx)
	if err != nil {
		return x.Backend.Wrap(err)
	}
	for _, row := range rows {
		status := of[row.FilerID]
		if status == nil {
			continue
		}
		var good time.Time
		if row.LastGoodStarted != nil {
			good = row.LastGoodStarted.UTC()
		}
		if status.Shards == 0 || good.Before(status.Oldest) {
			status.Oldest = good
		}
		if good.After(status.Newest) {
			status.Newest = good
		}
		if deadline := fromMicros(row.Deadline); !deadline.IsZero() {
			if status.Deadline.IsZero() || deadline.Before(status.Deadline) {
				status.Deadline = deadline
			}
			if deadline.Before(now) {
				status.Overdue++
			}
		}
		status.Shards++
	}
	return nil
}

// exec runs a statement in a transaction of its own.
func (x *Index) exec(ctx context.Context, d Durability, statement string, args ...any) error {
	return x.Backend.Update(ctx, d, func(ctx context.Context, tx *Tx) error { return tx.exec(ctx, statement, args...) })
}

// query runs a statement outside of transactions and calls each for each row.
func (x *Index) query(ctx context.Context, query string, args []any, each func(scan func(...any) error) error) error {
	rows, err := x.Backend.Client().QueryContext(ctx, query, args...)
	if err != nil {
		return x.Backend.Wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return x.Backend.Wrap(rows.Err())
}

func isName(s string, maxBytes int) bool { return s != "" && len(s) <= maxBytes && settings.IsText(s) }

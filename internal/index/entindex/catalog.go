package entindex

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"entgo.io/ent/dialect/sql"
	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/filer"
	"github.com/bctl/bctl/internal/index/ent/predicate"
	"github.com/bctl/bctl/internal/index/ent/problem"
	"github.com/bctl/bctl/internal/index/ent/shard"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
)

// isText reports whether a text column can hold s.
func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// stamp is t as the index stores it.
func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// EnsureFiler implements index.Catalog.
func (x *Index) EnsureFiler(ctx context.Context, name string) (backup.Filer, error) {
	if name == "" || !isText(name) {
		return backup.Filer{}, invalid("filer name %q", name)
	}
	query := x.Backend.Client().Filer.Query().Where(filer.Name(name))
	row, err := query.Clone().Only(ctx)
	if ent.IsNotFound(err) {
		err = x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO filers (name) VALUES ($1) ON CONFLICT (name) DO NOTHING", name)
			return err
		})
		if err == nil {
			row, err = query.Only(ctx)
		}
	}
	if err != nil {
		return backup.Filer{}, x.Backend.Wrap(err)
	}
	return backup.Filer{ID: backup.FilerID(row.ID), Name: row.Name}, nil
}

// EnsureShard implements index.Catalog.
func (x *Index) EnsureShard(ctx context.Context, of backup.FilerID, name, source string) (backup.Shard, error) {
	if name == "" || !isText(name) || !isText(source) {
		return backup.Shard{}, invalid("shard name %q, source %q", name, source)
	}
	if found, err := x.Backend.Client().Filer.Query().Where(filer.ID(int64(of))).Exist(ctx); err != nil || !found {
		if err == nil {
			err = fmt.Errorf("filer %d: %w", of, backup.ErrNotFound)
		}
		return backup.Shard{}, x.Backend.Wrap(err)
	}
	query := x.Backend.Client().Shard.Query().Where(shard.FilerID(int64(of)), shard.Name(name))
	row, err := query.Clone().Only(ctx)
	if ent.IsNotFound(err) || err == nil && row.Source != source {
		err = x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO shards (filer_id, name, source) VALUES ($1,$2,$3) "+
				"ON CONFLICT (filer_id, name) DO UPDATE SET source = excluded.source", int64(of), name, source)
			return err
		})
		if err == nil {
			row, err = query.Only(ctx)
		}
	}
	if err != nil {
		return backup.Shard{}, x.Backend.Wrap(err)
	}
	return toShard(row), nil
}

func toShard(row *ent.Shard) backup.Shard {
	return backup.Shard{ID: backup.ShardID(row.ID), Filer: backup.FilerID(row.FilerID), Name: row.Name, Source: row.Source}
}

func toSnapshot(row *ent.Snapshot) backup.Snapshot {
	s := backup.Snapshot{
		ID: backup.SnapshotID(row.ID), Number: backup.SnapshotNumber(row.Number), Base: backup.SnapshotNumber(row.Base),
		Shard: toShard(row.Edges.Shard), State: backup.State(row.State), Reason: row.Reason,
		Started: row.Started.UTC(), Selection: row.Selection, AllowShrink: row.AllowShrink, Tags: row.Tags, Counts: countsOf(row),
		TasksAnnounced: row.TasksAnnounced, TasksSettled: row.TasksSettled,
		BatchesAnnounced: row.BatchesAnnounced, BatchesSettled: row.BatchesSettled,
	}
	s.Filer = backup.Filer{ID: s.Shard.Filer, Name: row.Edges.Shard.Edges.Filer.Name}
	if row.Committed != nil {
		s.Committed = row.Committed.UTC()
	}
	return s
}

// Snapshot implements index.Catalog.
func (x *Index) Snapshot(ctx context.Context, id backup.SnapshotID) (backup.Snapshot, error) {
	row, err := x.snapshotRow(ctx, x.Backend.Client(), snapshot.ID(uuid.UUID(id)))
	if ent.IsNotFound(err) {
		return backup.Snapshot{}, fmt.Errorf("snapshot %s: %w", id, backup.ErrNotFound)
	}
	if err != nil {
		return backup.Snapshot{}, x.Backend.Wrap(err)
	}
	return toSnapshot(row), nil
}

// Snapshots implements index.Catalog.
func (x *Index) Snapshots(ctx context.Context, f index.SnapshotFilter) ([]backup.Snapshot, error) {
	where, err := snapshotPredicates(f)
	if err != nil {
		return nil, err
	}
	query := x.Backend.Client().Snapshot.Query().Where(where...).
		WithShard(func(q *ent.ShardQuery) { q.WithFiler() }).
		Order(snapshot.ByStarted(sql.OrderDesc()), snapshot.ByShardID(sql.OrderDesc()), snapshot.ByNumber(sql.OrderDesc()))
	if f.Limit > 0 {
		query.Limit(f.Limit)
	}
	rows, err := query.All(ctx)
	if err != nil {
		return nil, x.Backend.Wrap(err)
	}
	slices.Reverse(rows)
	snapshots := make([]backup.Snapshot, len(rows))
	for i, row := range rows {
		snapshots[i] = toSnapshot(row)
	}
	return snapshots, nil
}

func snapshotPredicates(f index.SnapshotFilter) ([]predicate.Snapshot, error) {
	var where []predicate.Snapshot
	if f.Shard != "" {
		where = append(where, snapshot.HasShardWith(shard.Name(f.Shard)))
	}
	if f.Filer != "" {
		where = append(where, snapshot.HasShardWith(shard.HasFilerWith(filer.Name(f.Filer))))
	}
	if len(f.States) > 0 {
		states := make([]string, len(f.States))
		for i, s := range f.States {
			states[i] = string(s)
		}
		where = append(where, snapshot.StateIn(states...))
	}
	if !f.Since.IsZero() {
		// Not before f.Since, which may be finer than what is stored.
		where = append(where, snapshot.StartedGTE(f.Since.UTC().Add(time.Microsecond-1).Truncate(time.Microsecond)))
	}
	if f.IDPrefix != "" {
		const digits = 32
		if len(f.IDPrefix) > digits {
			return nil, invalid("%q: an id has %d hexadecimal digits", f.IDPrefix, digits)
		}
		fill := digits - len(f.IDPrefix)
		low, err := backup.ParseSnapshotID(f.IDPrefix + strings.Repeat("0", fill))
		if err != nil {
			return nil, invalid("%q: no hexadecimal digits", f.IDPrefix)
		}
		high, _ := backup.ParseSnapshotID(f.IDPrefix + strings.Repeat("f", fill))
		where = append(where, snapshot.IDGTE(uuid.UUID(low)), snapshot.IDLTE(uuid.UUID(high)))
	}
	return where, nil
}

// Problems implements index.Catalog.
func (x *Index) Problems(ctx context.Context, id backup.SnapshotID) iter.Seq2[backup.Problem, error] {
	return func(yield func(backup.Problem, error) bool) {
		rows, err := x.Backend.Client().QueryContext(ctx, "SELECT path, op, error FROM "+problem.Table+" WHERE snapshot_id = $1 ORDER BY path, id", uuid.UUID(id))
		if err != nil {
			yield(backup.Problem{}, x.Backend.Wrap(err))
			return
		}
		defer rows.Close()
		for rows.Next() {
			var p backup.Problem
			var path []byte
			if err := rows.Scan(&path, &p.Op, &p.Err); err != nil {
				yield(backup.Problem{}, err)
				return
			}
			p.Path = string(path)
			if !yield(p, nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			yield(backup.Problem{}, x.Backend.Wrap(err))
		}
	}
}

package entindex

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"entgo.io/ent/dialect/sql"
	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/filer"
	"github.com/bctl/bctl/internal/index/ent/predicate"
	"github.com/bctl/bctl/internal/index/ent/shard"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
)

// stamp returns t as the index stores it.
func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

func toSnapshot(row *ent.Snapshot) backup.Snapshot {
	s := backup.Snapshot{
		ID: backup.SnapshotID(row.ID), Number: backup.SnapshotNumber(row.Number), Base: backup.SnapshotNumber(row.Base),
		Shard: toShard(row.Edges.Shard), State: backup.State(row.State), Reason: row.Reason, Bad: row.Bad,
		Started: row.Started.UTC(), Source: row.Source, Compare: backup.Compare(row.Compare), Cancel: row.Cancel, Selection: row.Selection,
		AllowShrink: row.AllowShrink, NewRoot: row.NewRoot, Tags: row.Tags, Counts: countsOf(row),
		ChurnScore: row.ChurnScore, Alarm: row.Alarm,
		Pages:          backup.PageSet{Pages: row.Pages},
		Segment:        backup.Segment{Parts: row.SegmentParts, Checkpoint: row.Checkpoint},
		TasksAnnounced: row.TasksAnnounced, TasksSettled: row.TasksSettled,
		BatchesAnnounced: row.BatchesAnnounced, BatchesSettled: row.BatchesSettled,
	}
	s.Filer = toFiler(row.Edges.Shard.Edges.Filer)
	s.Root, _ = backup.ParseRoot(row.Root) // a damaged root is treated as unknown
	s.Interrupted = s.State == backup.Running && row.Edges.Shard.Interrupted
	copy(s.Pages.Sum[:], row.PagesSum)
	if row.BaseID != nil {
		s.BaseID = backup.SnapshotID(*row.BaseID)
	}
	if row.Segment != nil {
		s.Segment.Attempt = backup.PackID(*row.Segment)
	}
	if row.Committed != nil {
		s.Committed = row.Committed.UTC()
	}
	if row.Ended != nil {
		s.Ended = row.Ended.UTC()
	}
	if row.Forgotten != nil {
		s.State = backup.Deleting
	}
	return s
}

// Snapshot implements index.Catalog.
func (x *Index) Snapshot(ctx context.Context, id backup.SnapshotID) (backup.Snapshot, error) {
	row, err := x.snapshotRow(ctx, x.Backend.Client(), snapshot.ID(uuid.UUID(id)))
	if err != nil {
		return backup.Snapshot{}, x.notFound(err, id)
	}
	return toSnapshot(row), nil
}

// Snapshots implements index.Catalog.
func (x *Index) Snapshots(ctx context.Context, f index.SnapshotFilter) ([]backup.Snapshot, error) {
	where, err := snapshotPredicates(f)
	if err != nil {
		return nil, err
	}
	// Names are looked up first: a join would have to be sorted, but the snapshots of one filer or
	// shard are a range of an index.
	of, oneShard, found, err := x.ofNames(ctx, f.Filer, f.Shard)
	if err != nil || !found {
		return nil, err
	}
	if of != nil {
		where = append(where, of)
	}
	query := x.Backend.Client().Snapshot.Query().Where(where...).WithShard(func(q *ent.ShardQuery) { q.WithFiler() })
	if oneShard { // the order is the same, and has an index
		query.Order(snapshot.ByNumber(sql.OrderDesc()))
	} else {
		query.Order(snapshot.BySortTime(sql.OrderDesc()), snapshot.ByShardID(sql.OrderDesc()), snapshot.ByNumber(sql.OrderDesc()))
	}
	if f.Limit > 0 {
		query.Limit(f.Limit)
	}
	rows, err := query.All(ctx)
	if err != nil {
		return nil, x.Backend.Wrap(err)
	}
	slices.Reverse(rows)
	return toSnapshots(rows), nil
}

// allOf runs a query of snapshots.
func (x *Index) allOf(ctx context.Context, query *ent.SnapshotQuery) ([]backup.Snapshot, error) {
	rows, err := query.All(ctx)
	if err != nil {
		return nil, x.Backend.Wrap(err)
	}
	return toSnapshots(rows), nil
}

func toSnapshots(rows []*ent.Snapshot) []backup.Snapshot {
	snapshots := make([]backup.Snapshot, len(rows))
	for i, row := range rows {
		snapshots[i] = toSnapshot(row)
	}
	return snapshots
}

// ofNames returns the condition that a snapshot belongs to the filer and shard of these names, nil
// if both are empty. oneShard reports that it selects a single shard. found is false if there is no
// such filer or shard.
func (x *Index) ofNames(ctx context.Context, filerName, shardName string) (p predicate.Snapshot, oneShard, found bool, err error) {
	if filerName == "" && shardName == "" {
		return nil, false, true, nil
	}
	of := int64(0)
	if filerName != "" {
		of, err = x.Backend.Client().Filer.Query().Where(filer.Name(filerName)).OnlyID(ctx)
		if err != nil {
			return nil, false, false, x.Backend.Wrap(ent.MaskNotFound(err))
		}
		if shardName == "" {
			return snapshot.FilerID(of), false, true, nil
		}
	}
	query := x.Backend.Client().Shard.Query().Where(shard.Name(shardName))
	if of != 0 {
		query.Where(shard.FilerID(of))
	}
	ids, err := query.IDs(ctx)
	switch {
	case err != nil || len(ids) == 0:
		return nil, false, false, x.Backend.Wrap(err)
	case len(ids) == 1:
		return snapshot.ShardID(ids[0]), true, true, nil
	}
	return snapshot.ShardIDIn(ids...), false, true, nil
}

// inStates selects snapshots by their states; without any, all that are not forgotten. A forgotten
// snapshot is Deleting, although its column state has another value.
func inStates(states []backup.State) predicate.Snapshot {
	if slices.Equal(states, []backup.State{backup.Running}) {
		return running()
	}
	matching := make([]predicate.Snapshot, 0, len(states))
	for _, s := range states {
		if s == backup.Deleting {
			matching = append(matching, snapshot.ForgottenNotNil())
		} else {
			matching = append(matching, snapshot.And(snapshot.State(string(s)), snapshot.ForgottenIsNil()))
		}
	}
	switch len(matching) {
	case 0:
		return snapshot.ForgottenIsNil()
	case 1:
		return matching[0]
	}
	return snapshot.Or(matching...)
}

// isRunning is a literal, not a parameter, so that the planner can use the index of running
// snapshots.
const isRunning = "state = 'running'"

func running() predicate.Snapshot {
	return func(s *sql.Selector) { s.Where(sql.ExprP(isRunning)) }
}

func snapshotPredicates(f index.SnapshotFilter) ([]predicate.Snapshot, error) {
	where := []predicate.Snapshot{inStates(f.States)}
	if !f.Since.IsZero() {
		// Not before f.Since, which may be finer than the stored times. A sort_time is never before
		// the start.
		since := f.Since.UTC().Add(time.Microsecond - 1).Truncate(time.Microsecond)
		where = append(where, snapshot.SortTimeGTE(since), snapshot.StartedGTE(since))
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

const selectProblems = `SELECT path, op, error FROM problems WHERE snapshot_id = $1 ORDER BY path, id`

// Problems implements index.Catalog.
func (x *Index) Problems(ctx context.Context, id backup.SnapshotID) iter.Seq2[backup.Problem, error] {
	return func(yield func(backup.Problem, error) bool) {
		rows, err := x.Backend.Client().QueryContext(ctx, selectProblems, uuid.UUID(id))
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

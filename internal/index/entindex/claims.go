package entindex

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	entsql "entgo.io/ent/dialect/sql"
	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/filer"
	"github.com/bctl/bctl/internal/index/ent/readbatch"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
	"github.com/bctl/bctl/internal/index/ent/walktask"
)

// A workKind describes how claims see walk tasks or read batches.
type workKind struct {
	table, columns string
	turn           int // number of the lock by which its claims wait for each other
	slots          func(*ent.Filer) int
}

var (
	walkWork = workKind{walktask.Table, "generation, directories", 1, walkSlots}
	readWork = workKind{readbatch.Table, "pages", 2, readSlots}
)

// walkSlots returns how many walk tasks of a filer may be assigned.
func walkSlots(row *ent.Filer) int {
	walk, _ := toFiler(row).Limits.Slots(toLoad(row))
	return walk
}

// readSlots returns how many read batches of a filer may be assigned.
func readSlots(row *ent.Filer) int {
	_, read := toFiler(row).Limits.Slots(toLoad(row))
	return read
}

// readShare returns the part of the filer's read limit that one batch gets, in bytes per second; 0
// is no limit. The number of assigned batches exceeds the slots if the limit became lower meanwhile.
func readShare(row *ent.Filer, assigned int) int64 {
	if row.ReadBytes == 0 {
		return 0
	}
	return max(1, row.ReadBytes/int64(max(readSlots(row), assigned)))
}

// ReadShares implements index.Dedup.
func (x *Index) ReadShares(ctx context.Context, filers []backup.FilerID, now time.Time) (map[backup.FilerID]int64, error) {
	ids := make([]int64, len(filers))
	for i, id := range filers {
		ids[i] = int64(id)
	}
	rows, err := x.Backend.Client().Filer.Query().Where(filer.IDIn(ids...)).
		Select(filer.FieldID, filer.FieldReadBytes, filer.FieldReadBatches, filer.FieldReadSlots).All(ctx)
	if err != nil {
		return nil, x.Backend.Wrap(err)
	}
	assigned := map[int64]int{}
	if slices.ContainsFunc(rows, func(row *ent.Filer) bool { return row.ReadBytes > 0 }) {
		if now, err = x.at(ctx, now); err != nil {
			return nil, err
		}
		err = x.query(ctx, "SELECT filer_id, count(*) FROM read_batches WHERE lease_until > $1 GROUP BY filer_id", []any{now},
			func(scan func(...any) error) error {
				var of int64
				var n int
				err := scan(&of, &n)
				assigned[of] = n
				return err
			})
		if err != nil {
			return nil, err
		}
	}
	found := make(map[backup.FilerID]int64, len(rows))
	for _, row := range rows {
		found[backup.FilerID(row.ID)] = readShare(row, assigned[row.ID])
	}
	return found, nil
}

// ClaimTasks implements index.Committing.
func (x *Index) ClaimTasks(ctx context.Context, c index.Claim) ([]backup.WalkTask, error) {
	var tasks []backup.WalkTask
	err := x.claim(ctx, c, walkWork, func(n int) { tasks = make([]backup.WalkTask, n) }, func(rows *sql.Rows, place func(int64) int) (uuid.UUID, int, error) {
		var t backup.WalkTask
		var of uuid.UUID
		var directories []byte
		err := rows.Scan(&t.ID, &of, &t.Attempt, &t.Generation, &directories)
		if err == nil {
			var c backup.Child
			c, err = decodeChild(directories)
			t.Directories, t.Mounts = c.Directories, c.Mounts
		}
		i := place(int64(t.ID))
		tasks[i] = t
		return of, i, err
	}, func(i int, j *job) {
		tasks[i].Job, tasks[i].Scarce = j.Job, j.scarce
		if tasks[i].Generation == 0 {
			tasks[i].Job.Snapshots = j.pattern
		}
	})
	if err != nil {
		return nil, err
	}
	// Work that another transaction is settling at this moment was skipped.
	return slices.DeleteFunc(tasks, func(t backup.WalkTask) bool { return t.ID == 0 }), nil
}

// ClaimBatches implements index.Committing.
func (x *Index) ClaimBatches(ctx context.Context, c index.Claim) ([]backup.ReadBatch, error) {
	var batches []backup.ReadBatch
	err := x.claim(ctx, c, readWork, func(n int) { batches = make([]backup.ReadBatch, n) }, func(rows *sql.Rows, place func(int64) int) (uuid.UUID, int, error) {
		var b backup.ReadBatch
		var of uuid.UUID
		var pages []byte
		err := rows.Scan(&b.ID, &of, &b.Attempt, &pages)
		if err == nil {
			b.PagesToRead, err = decodeToRead(pages)
		}
		i := place(int64(b.ID))
		batches[i] = b
		return of, i, err
	}, func(i int, j *job) {
		batches[i].Job = j.Job
		batches[i].Job.ReadBytesPerSecond = j.readShare
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(batches, func(b backup.ReadBatch) bool { return b.ID == 0 }), nil
}

// claim chooses open work and makes new attempts at it. Claims of one kind wait for each other, so
// that their counts stay true until they are done. Claims and results do not wait for each other.
// reset is called with the number of chosen items, scan reads one item into its place among them,
// and set gives an item its job.
func (x *Index) claim(ctx context.Context, c index.Claim, kind workKind, reset func(int),
	scan func(*sql.Rows, func(int64) int) (uuid.UUID, int, error), set func(int, *job)) error {
	if c.Limit < 1 || c.Snapshots != nil && len(c.Snapshots) == 0 {
		return nil
	}
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		reset(0)
		c := c // do may run again
		var err error
		if c.Now, err = tx.at(ctx, c.Now); err != nil {
			return err
		}
		chosen, scarce, err := tx.choose(ctx, c, kind)
		if err != nil || len(chosen) == 0 {
			return err
		}
		places := make(map[int64]int, len(chosen))
		for i, id := range chosen {
			places[id] = i
		}
		reset(len(chosen))
		// Materialized, because otherwise a plan may run the SELECT more than once.
		rows, err := tx.QueryContext(ctx, "WITH claimed AS MATERIALIZED (SELECT id FROM "+kind.table+
			" WHERE "+tx.In("id", 3)+" AND lease_until <= $1"+tx.SkipLocked+") UPDATE "+kind.table+
			" SET attempt = attempt + 1, lease_until = $2, worker = '', path = NULL, stalled = NULL"+
			" WHERE id IN (SELECT id FROM claimed) RETURNING id, snapshot_id, attempt, "+kind.columns,
			stamp(c.Now), stamp(c.Now.Add(c.Lease)), tx.List(chosen))
		if err != nil {
			return err
		}
		of := map[int]uuid.UUID{}
		for rows.Next() {
			id, i, err := scan(rows, func(id int64) int { return places[id] })
			if err != nil {
				rows.Close()
				return err
			}
			of[i] = id
		}
		if err := closeRows(rows); err != nil {
			return err
		}
		jobs, err := tx.jobs(ctx, of)
		if err != nil {
			return err
		}
		for i, id := range of {
			j, ok := jobs[id]
			if !ok {
				return fmt.Errorf("work of snapshot %s, which is gone: %w", backup.SnapshotID(id), backup.ErrCorrupt)
			}
			j.scarce = scarce(int64(j.Filer))
			set(i, j)
		}
		return nil
	})
}

// choose returns the ids of the work to claim, in the order in which it is to be assigned. scarce
// reports whether a filer has less open work than it will soon have places for.
func (tx *Tx) choose(ctx context.Context, c index.Claim, kind workKind) (chosen []int64, scarce func(filer int64) bool, err error) {
	if tx.Serialize != "" {
		rows, err := tx.QueryContext(ctx, tx.Serialize, kind.turn)
		if err != nil {
			return nil, nil, err
		}
		if err := closeRows(rows); err != nil {
			return nil, nil, err
		}
	}
	p := newShares(c)
	if err := tx.countLeases(ctx, c, kind.table, p); err != nil {
		return nil, nil, err
	}
	if p.room() == 0 {
		return nil, nil, nil
	}
	err = tx.each(ctx, "SELECT count(DISTINCT site) FROM filers WHERE NOT retired", nil, func(scan func(...any) error) error {
		return scan(&p.allSites)
	})
	if err != nil {
		return nil, nil, err
	}
	// Filers without a running snapshot are left out, so that a claim in an idle fleet costs the
	// same for any number of filers.
	rows, err := tx.Filer.Query().Where(func(s *entsql.Selector) {
		s.Where(entsql.ExprP("id IN (SELECT filer_id FROM snapshots WHERE " + isRunning + ")"))
	}).All(ctx)
	if err != nil || len(rows) == 0 {
		return nil, nil, err
	}
	for _, row := range rows {
		p.add(row.ID, row.Site, kind.slots(row))
	}
	if err := tx.findOpen(ctx, c, kind.table, p); err != nil {
		return nil, nil, err
	}
	return p.choose(), p.scarce, nil
}

// countLeases counts the running leases. Their number is bounded by Queued and the stalled ones,
// however much work is open.
func (tx *Tx) countLeases(ctx context.Context, c index.Claim, table string, p *shares) error {
	args := []any{stamp(c.Now)}
	counted := "stalled IS NULL"
	if c.Snapshots != nil {
		args = append(args, tx.List(uuids(c.Snapshots)))
		counted += " AND " + tx.In("snapshot_id", 2)
	}
	return tx.each(ctx, "SELECT filer_id, count(*), sum(CASE WHEN "+counted+" THEN 1 ELSE 0 END) FROM "+table+
		" WHERE lease_until > $1 GROUP BY filer_id", args, func(scan func(...any) error) error {
		var id int64
		var all, queued int
		if err := scan(&id, &all, &queued); err != nil {
			return err
		}
		p.leased(id, all, queued)
		return nil
	})
}

// findOpen finds the oldest open work of each filer that has room. It searches the filer as a whole
// or, if the claim is for some snapshots only, each of these. Either search reads a range of an
// index from its beginning.
func (tx *Tx) findOpen(ctx context.Context, c index.Claim, table string, p *shares) error {
	cancelled, err := tx.cancelledOf(ctx)
	if err != nil {
		return err
	}
	var whole, apart []openRange
	if c.Snapshots == nil {
		for _, f := range p.filers {
			if room := p.ask(f); room > 0 && !slices.Contains(cancelled, f.id) {
				whole = append(whole, openRange{filer: f.id, key: f.id, room: room})
			}
		}
	}
	if c.Snapshots != nil || len(cancelled) > 0 {
		query := tx.Snapshot.Query().Where(running(), snapshot.Cancel(""))
		if c.Snapshots != nil {
			query.Where(snapshot.IDIn(uuids(c.Snapshots)...))
		} else {
			query.Where(snapshot.FilerIDIn(cancelled...))
		}
		rows, err := query.Select(snapshot.FieldID, snapshot.FieldFilerID).All(ctx)
		if err != nil {
			return err
		}
		for _, row := range rows {
			if f := p.of[row.FilerID]; f != nil && p.ask(f) > 0 {
				apart = append(apart, openRange{filer: f.id, key: row.ID, room: f.asked})
			}
		}
	}
	if err := tx.oldest(ctx, table, "filer_id", "bigint", whole, c.Now, p); err != nil {
		return err
	}
	return tx.oldest(ctx, table, "snapshot_id", "uuid", apart, c.Now, p)
}

// cancelledOf returns the filers that have a running snapshot whose end was requested.
func (tx *Tx) cancelledOf(ctx context.Context) (ids []int64, err error) {
	err = tx.each(ctx, "SELECT DISTINCT filer_id FROM snapshots WHERE "+isRunning+" AND cancel <> ''", nil, func(scan func(...any) error) error {
		var id int64
		err := scan(&id)
		ids = append(ids, id)
		return err
	})
	return ids, err
}

// An openRange is a request for the oldest open work, at most room items, of one filer or of one
// snapshot of it.
type openRange struct {
	filer int64
	key   any // filer or snapshot
	room  int
}

// oldest finds the work of ranges and adds it to p. It reads no more rows than it finds, and the
// leased rows that precede them.
func (tx *Tx) oldest(ctx context.Context, table, column, columnType string, ranges []openRange, now time.Time, p *shares) error {
	if len(ranges) == 0 {
		return nil
	}
	const open = " AND lease_until <= $1 ORDER BY id LIMIT "
	if !tx.Lateral {
		for _, r := range ranges {
			err := tx.each(ctx, "SELECT id FROM "+table+" WHERE "+column+" = $2"+open+"$3", []any{stamp(now), r.key, r.room}, func(scan func(...any) error) error {
				var id int64
				err := scan(&id)
				p.open(r.filer, id)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
	filers, keys, rooms := make([]int64, len(ranges)), make([]string, len(ranges)), make([]int64, len(ranges))
	for i, r := range ranges {
		filers[i], keys[i], rooms[i] = r.filer, fmt.Sprint(r.key), int64(r.room)
	}
	return tx.each(ctx, "SELECT k.filer, w.id FROM unnest($2::bigint[], $3::text[]::"+columnType+"[], $4::bigint[]) k (filer, key, room)"+
		" CROSS JOIN LATERAL (SELECT id FROM "+table+" WHERE "+column+" = k.key"+open+"k.room) w",
		[]any{stamp(now), tx.List(filers), tx.List(keys), tx.List(rooms)}, func(scan func(...any) error) error {
			var of, id int64
			err := scan(&of, &id)
			p.open(of, id)
			return err
		})
}

// each runs a query of the transaction and calls do for each row.
func (tx *Tx) each(ctx context.Context, query string, args []any, do func(scan func(...any) error) error) error {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := do(rows.Scan); err != nil {
			rows.Close()
			return err
		}
	}
	return closeRows(rows)
}

// A job is what workers must know of a snapshot, and additions for some of its work.
type job struct {
	backup.Job
	pattern   string // of source snapshots, for the root task
	readShare int64  // for batches, in bytes per second
	scarce    bool   // for tasks: see backup.WalkTask
}

// jobs returns the jobs of snapshots.
func (tx *Tx) jobs(ctx context.Context, of map[int]uuid.UUID) (map[uuid.UUID]*job, error) {
	ids := make([]uuid.UUID, 0, len(of))
	for _, id := range of {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	ids = slices.Compact(ids)
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := tx.Snapshot.Query().Where(snapshot.IDIn(ids...)).WithShard(func(q *ent.ShardQuery) { q.WithFiler() }).All(ctx)
	if err != nil {
		return nil, err
	}
	jobs := make(map[uuid.UUID]*job, len(rows))
	for _, row := range rows {
		s := toSnapshot(row)
		jobs[row.ID] = &job{
			Job: backup.Job{
				Snapshot: s.ID, Filer: s.Filer.ID, Shard: s.Shard.ID, Number: s.Number, Base: s.Base, Interrupted: s.Interrupted,
				Started: backup.TimeOf(s.Started), Source: s.Source, Root: s.Root, AllowShrink: s.AllowShrink, NewRoot: s.NewRoot,
				Selection: s.Selection, Compare: s.Compare.OrAll(), Site: s.Filer.Site,
			},
			pattern: s.Shard.Snapshots, readShare: readShare(row.Edges.Shard.Edges.Filer, 0),
		}
	}
	return jobs, nil
}

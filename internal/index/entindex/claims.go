package entindex

import (
	"context"
	"fmt"
	"slices"
	"time"

	entsql "entgo.io/ent/dialect/sql"
	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/filer"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
)

// An openWork is one of the tables of open work, as claims see it.
type openWork struct {
	table string
	turn  int // number of the lock by which its claims wait for each other
	slots func(*ent.Filer) int
}

var (
	walkWork = openWork{walkTasks, 1, walkSlots}
	readWork = openWork{readBatches, 2, readSlots}
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
// is no limit. The number of assigned batches exceeds the slots if the limit became lower
// meanwhile.
func readShare(row *ent.Filer, assigned int) int64 {
	if row.ReadBytes == 0 {
		return 0
	}
	return max(1, row.ReadBytes/int64(max(readSlots(row), assigned)))
}

// ReadShares implements index.Dedup.
func (x *Index) ReadShares(ctx context.Context, filers []backup.FilerID, now time.Time) (map[backup.FilerID]int64, error) {
	rows, err := x.Backend.Client().Filer.Query().Where(filer.IDIn(numbers(filers)...)).
		Select(filer.FieldID, filer.FieldReadBytes, filer.FieldReadBatches, filer.FieldReadSlots).All(ctx)
	if err != nil {
		return nil, x.Backend.Wrap(err)
	}
	assigned := map[int64]int{}
	if slices.ContainsFunc(rows, func(row *ent.Filer) bool { return row.ReadBytes > 0 }) {
		if now, err = x.at(ctx, now); err != nil {
			return nil, err
		}
		if assigned, err = mapOf[int64, int](ctx, x.query, countHeld(readBatches), now); err != nil {
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
	return claim(ctx, x, c, claimKind[backup.WalkTask]{walkWork, "generation, directories", scanTask, setTaskJob})
}

func scanTask(scan func(...any) error) (row claimedRow[backup.WalkTask], err error) {
	t := &row.work
	var directories []byte
	if err := scan(&row.id, &row.snapshot, &t.Attempt, &t.Generation, &directories); err != nil {
		return row, err
	}
	c, err := decodeChild(directories)
	t.ID, t.Directories, t.Mounts = backup.TaskID(row.id), c.Directories, c.Mounts
	return row, err
}

func setTaskJob(t *backup.WalkTask, j *job) {
	t.Job, t.Scarce = j.Job, j.scarce
	if t.Generation == 0 {
		t.Job.Snapshots = j.pattern
	}
}

// ClaimBatches implements index.Committing.
func (x *Index) ClaimBatches(ctx context.Context, c index.Claim) ([]backup.ReadBatch, error) {
	return claim(ctx, x, c, claimKind[backup.ReadBatch]{readWork, "pages", scanBatch, setBatchJob})
}

func scanBatch(scan func(...any) error) (row claimedRow[backup.ReadBatch], err error) {
	b := &row.work
	var pages []byte
	if err := scan(&row.id, &row.snapshot, &b.Attempt, &pages); err != nil {
		return row, err
	}
	b.ID = backup.BatchID(row.id)
	b.PagesToRead, err = decodeToRead(pages)
	return row, err
}

func setBatchJob(b *backup.ReadBatch, j *job) {
	b.Job = j.Job
	b.Job.ReadBytesPerSecond = j.readShare
}

// A claimKind describes the claims of one kind of work: how a row of claimWork with the columns is
// scanned, and how the work gets its job.
type claimKind[W any] struct {
	openWork
	columns string
	scanRow func(scan func(...any) error) (claimedRow[W], error)
	setJob  func(*W, *job)
}

// A claimedRow is claimed work, without its job.
type claimedRow[W any] struct {
	id       int64
	snapshot uuid.UUID
	work     W
}

// claim chooses open work and makes new attempts at it. Claims of one kind wait for each other, so
// that their counts stay true until they are done. Claims and results do not wait for each other.
func claim[W any](ctx context.Context, x *Index, c index.Claim, kind claimKind[W]) (work []W, err error) {
	if c.Limit < 1 || c.Snapshots != nil && len(c.Snapshots) == 0 {
		return nil, nil
	}
	err = x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) (err error) {
		work, err = claimOnce(ctx, tx, c, kind)
		return err
	})
	if err != nil {
		return nil, err
	}
	return work, nil
}

// claimWork is MATERIALIZED, because otherwise a plan may run the SELECT more than once.
const claimWork = `
WITH claimed AS MATERIALIZED (
    SELECT id FROM {work} WHERE {id in $3} AND lease_until <= $1 {skip locked}
)
UPDATE {work} SET attempt = attempt + 1, lease_until = $2, worker = '', path = NULL, stalled = NULL
WHERE id IN (SELECT id FROM claimed)
RETURNING id, snapshot_id, attempt, `

func claimOnce[W any](ctx context.Context, tx *Tx, c index.Claim, kind claimKind[W]) ([]W, error) {
	var err error
	if c.Now, err = tx.at(ctx, c.Now); err != nil {
		return nil, err
	}
	chosen, scarce, err := tx.choose(ctx, c, kind.openWork)
	if err != nil || len(chosen) == 0 {
		return nil, err
	}
	found := make(map[int64]claimedRow[W], len(chosen))
	var snapshots []uuid.UUID
	args := []any{c.Now, stamp(c.Now.Add(c.Lease)), tx.List(chosen)}
	err = tx.Each(ctx, on(kind.table, claimWork)+kind.columns, args, func(scan func(...any) error) error {
		row, err := kind.scanRow(scan)
		found[row.id] = row
		snapshots = append(snapshots, row.snapshot)
		return err
	})
	if err != nil {
		return nil, err
	}
	jobs, err := tx.jobs(ctx, snapshots)
	if err != nil {
		return nil, err
	}
	work := make([]W, 0, len(found))
	for _, id := range chosen {
		row, ok := found[id]
		if !ok { // another transaction is settling it at this moment
			continue
		}
		j, ok := jobs[row.snapshot]
		if !ok {
			return nil, fmt.Errorf("work of snapshot %s, which does not exist: %w", backup.SnapshotID(row.snapshot), backup.ErrCorrupt)
		}
		j.scarce = scarce(int64(j.Filer))
		kind.setJob(&row.work, j)
		work = append(work, row.work)
	}
	return work, nil
}

// choose returns the ids of the work to claim, in the order in which it is to be assigned. scarce
// reports whether a filer has less open work than it will soon have places for.
func (tx *Tx) choose(ctx context.Context, c index.Claim, kind openWork) (chosen []int64, scarce func(filer int64) bool, err error) {
	if tx.Serialize != "" {
		if err := tx.Each(ctx, tx.Serialize, []any{kind.turn}, func(func(...any) error) error { return nil }); err != nil {
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
	err = tx.Each(ctx, "SELECT count(DISTINCT site) FROM filers WHERE NOT retired", nil, func(scan func(...any) error) error {
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

const (
	countLeases = `
SELECT filer_id, count(*), sum(CASE WHEN stalled IS NULL THEN 1 ELSE 0 END)
FROM {work} WHERE lease_until > $1 GROUP BY filer_id`

	countLeasesOf = `
SELECT filer_id, count(*), sum(CASE WHEN stalled IS NULL AND {snapshot_id in $2} THEN 1 ELSE 0 END)
FROM {work} WHERE lease_until > $1 GROUP BY filer_id`
)

// countLeases counts the running leases. Their number is bounded by Queued and the stalled ones,
// however much work is open.
func (tx *Tx) countLeases(ctx context.Context, c index.Claim, table string, p *shares) error {
	query, args := countLeases, []any{c.Now}
	if c.Snapshots != nil {
		query, args = countLeasesOf, append(args, tx.List(uuids(c.Snapshots)))
	}
	return tx.Each(ctx, on(table, query), args, func(scan func(...any) error) error {
		var id int64
		var all, queued int
		err := scan(&id, &all, &queued)
		p.leased(id, all, queued)
		return err
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

const selectCancelled = `SELECT DISTINCT filer_id FROM snapshots WHERE ` + isRunning + ` AND cancel <> ''`

// cancelledOf returns the filers that have a running snapshot whose end was requested.
func (tx *Tx) cancelledOf(ctx context.Context) ([]int64, error) {
	return listOf(ctx, tx.Each, selectCancelled, nil, oneColumn[int64])
}

// An openRange is a request for the oldest open work, at most room items, of one filer or of one
// snapshot of it.
type openRange struct {
	filer int64
	key   any // filer or snapshot
	room  int
}

// oldestOf finds the oldest open work of one key. oldestOfEach does that for a list of keys, in a
// database with LATERAL.
const (
	oldestOf = `
SELECT id FROM {work} WHERE {key} = $2 AND lease_until <= $1 ORDER BY id LIMIT $3`

	oldestOfEach = `
SELECT k.filer, w.id
FROM unnest($2::bigint[], $3::text[]::{type}[], $4::bigint[]) AS k (filer, key, room)
CROSS JOIN LATERAL (
    SELECT id FROM {work} WHERE {key} = k.key AND lease_until <= $1 ORDER BY id LIMIT k.room
) AS w`
)

// oldest finds the work of ranges and adds it to p. It reads no more rows than it finds, and the
// leased rows that precede them.
func (tx *Tx) oldest(ctx context.Context, table, column, columnType string, ranges []openRange, now time.Time, p *shares) error {
	if len(ranges) == 0 {
		return nil
	}
	if !tx.Lateral {
		query := on(table, oldestOf, "{key}", column)
		for _, r := range ranges {
			ids, err := listOf(ctx, tx.Each, query, []any{now, r.key, r.room}, oneColumn[int64])
			if err != nil {
				return err
			}
			for _, id := range ids {
				p.open(r.filer, id)
			}
		}
		return nil
	}
	filers, keys, rooms := make([]int64, len(ranges)), make([]string, len(ranges)), make([]int64, len(ranges))
	for i, r := range ranges {
		filers[i], keys[i], rooms[i] = r.filer, fmt.Sprint(r.key), int64(r.room)
	}
	args := []any{now, tx.List(filers), tx.List(keys), tx.List(rooms)}
	return tx.Each(ctx, on(table, oldestOfEach, "{key}", column, "{type}", columnType), args, func(scan func(...any) error) error {
		var of, id int64
		if err := scan(&of, &id); err != nil {
			return err
		}
		p.open(of, id)
		return nil
	})
}

// A job is what workers must know of a snapshot, and additions for some of its work.
type job struct {
	backup.Job
	pattern   string // of source snapshots, for the root task
	readShare int64  // for batches, in bytes per second
	scarce    bool   // for tasks: see backup.WalkTask
}

// jobs returns the jobs of snapshots.
func (tx *Tx) jobs(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]*job, error) {
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
				Snapshot: s.ID, Filer: s.Filer.ID, Shard: s.Shard.ID, FilerName: s.Filer.Name, ShardName: s.Shard.Name,
				Number: s.Number, Base: s.Base, Interrupted: s.Interrupted,
				Started: backup.TimeOf(s.Started), Source: s.Source, Root: s.Root, AllowShrink: s.AllowShrink, NewRoot: s.NewRoot,
				Selection: s.Selection, Compare: s.Compare.OrAll(), Site: s.Filer.Site,
			},
			pattern: s.Shard.Snapshots, readShare: readShare(row.Edges.Shard.Edges.Filer, 0),
		}
	}
	return jobs, nil
}

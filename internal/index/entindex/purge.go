package entindex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
	"github.com/bctl/bctl/internal/listing"
)

// errDryRun undoes the transaction of a dry run.
var errDryRun = errors.New("dry run")

// BeginPurge implements index.Purging. The row of the shard is the lock: no snapshot of the shard
// begins or is forgotten, and no version is dropped, meanwhile.
func (x *Index) BeginPurge(ctx context.Context, p index.Purge, dryRun bool) (index.Purged, error) {
	if err := checkReason(p.By, p.Reason); err != nil {
		return index.Purged{}, err
	}
	if err := backup.CheckPath(p.Path); err != nil || p.Path == "" {
		return index.Purged{}, invalid("the root of a shard cannot be purged: forget its snapshots")
	}
	chunks, last, err := x.interruptedChunks(ctx, p.Shard)
	if err != nil {
		return index.Purged{}, err
	}
	var result index.Purged
	err = x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		g := &purging{tx: tx, p: p, last: last}
		if err := g.chunks.put(ctx, g, chunks); err != nil {
			return err
		}
		if err := g.run(ctx); err != nil {
			return err
		}
		result = g.result
		if dryRun {
			return errDryRun
		}
		return nil
	})
	if errors.Is(err, errDryRun) {
		err = nil
	}
	return result, err
}

// interruptedChunks returns the chunks to which interrupted pages of a shard refer, and the number
// of its last snapshot.
func (x *Index) interruptedChunks(ctx context.Context, shard backup.ShardID) (ids []backup.ChunkID, last int64, err error) {
	row, err := x.Backend.Client().Shard.Get(ctx, int64(shard))
	if err != nil {
		return nil, 0, x.Backend.Wrap(orNotFound(err, "shard %d", shard))
	}
	err = x.Backend.EachListing(ctx, shard, open, nil, func(data []byte) error {
		chunks, err := listing.ReadChunks(data)
		if err == nil {
			ids = append(ids, slices.Concat(chunks.Lists, chunks.Other)...)
		}
		return nil // a damaged one refers to nothing that can be read
	})
	return ids, row.LastNumber, err
}

// A purging is one BeginPurge.
type purging struct {
	tx     *Tx
	p      index.Purge
	last   int64 // number of the shard's last snapshot when interrupted pages were read
	of     *ent.Shard
	from   backup.SnapshotNumber // the first snapshot from which the path is removed
	result index.Purged
	chunks purgedChunks

	snapshots []*purgedSnapshot // all of the shard, by number
	blocked   error             // why the path cannot be removed now, if the shard has it
	patches   bool              // patches may be written
	rekeyed   bool              // a page has another key than its names
	encoder   listing.Encoder
}

// A purgedSnapshot is a snapshot and what is removed from it.
type purgedSnapshot struct {
	*ent.Snapshot
	pages                             backup.PageSet
	files, directories, bytes, errors int64
	changed                           bool
}

func (g *purging) run(ctx context.Context) error {
	if err := g.load(ctx); err != nil {
		return err
	}
	if err := g.directory(ctx); err != nil {
		return err
	}
	if err := g.below(ctx); err != nil {
		return err
	}
	if err := g.problems(ctx); err != nil {
		return err
	}
	if g.result.Versions == 0 && g.result.Problems == 0 {
		return fmt.Errorf("no snapshot of the shard has the path: %w", backup.ErrNotFound)
	}
	if g.blocked != nil {
		return g.blocked
	}
	if err := g.mayChange(ctx); err != nil {
		return err
	}
	if err := g.names(ctx); err != nil {
		return err
	}
	if err := g.chunks.flush(ctx, g); err != nil {
		return err
	}
	if err := g.writeSnapshots(ctx); err != nil {
		return err
	}
	if err := g.reports(ctx); err != nil {
		return err
	}
	if err := g.logged(ctx); err != nil {
		return err
	}
	return g.writeJob(ctx)
}

const (
	countPurges = `SELECT count(*) FROM purges WHERE shard = $1`
	countSame   = `SELECT count(*) FROM purges WHERE shard = $1 AND path = $2` // that have removed it
)

// load reads the snapshots of the shard, and finds out whether one of them may change. That only
// matters if the shard has the path: backups of others must not keep a purge from looking for it.
func (g *purging) load(ctx context.Context) (err error) {
	if g.of, err = g.tx.lockShard(ctx, g.p.Shard); err != nil {
		return err
	}
	rows, err := g.tx.Snapshot.Query().Where(snapshot.ShardID(g.of.ID)).Order(snapshot.ByNumber()).WithShard(func(q *ent.ShardQuery) { q.WithFiler() }).All(ctx)
	if err != nil {
		return err
	}
	for i, row := range rows {
		if row.State == string(backup.Running) || !row.Recorded && row.State != string(backup.Deleting) {
			g.block(fmt.Errorf("snapshot %s, number %d: %w", backup.SnapshotID(row.ID).Short(), row.Number, backup.ErrRunning))
		}
		s := &purgedSnapshot{Snapshot: row, pages: backup.PageSet{Pages: row.Pages}}
		copy(s.pages.Sum[:], row.PagesSum)
		g.snapshots = append(g.snapshots, s)
		if g.from == 0 && !row.Started.Before(g.p.Since) {
			if g.from = backup.SnapshotNumber(row.Number); i == 0 {
				g.from = 1 // versions may have begun with snapshots that were removed
			}
		}
	}
	if g.of.LastNumber != g.last {
		g.block(fmt.Errorf("shard %q: a snapshot has just begun: %w", g.of.Name, backup.ErrRunning))
	}
	if g.from == 0 {
		return fmt.Errorf("no snapshot of the shard started at or after %s: %w", g.p.Since.Format(time.RFC3339), backup.ErrNotFound)
	}
	pending, err := g.tx.count(ctx, countPurges, g.of.ID)
	if err != nil {
		return err
	}
	same, err := g.tx.count(ctx, countSame, g.of.ID, []byte(g.p.Path))
	if err != nil {
		return err
	}
	if same > 0 {
		return fmt.Errorf("a purge of the path that is not complete, of shard %q: %w", g.of.Name, backup.ErrExists)
	}
	stale, err := g.tx.count(ctx, countStale, g.of.ID)
	if err != nil {
		return err
	}
	if pending > 0 && stale > 0 { // otherwise only content and locked objects are left of it
		g.block(fmt.Errorf("a purge of shard %q that is not complete: %w", g.of.Name, backup.ErrExists))
	}
	g.patches, err = g.tx.writesPatches(ctx)
	return err
}

// block notes the first reason.
func (g *purging) block(why error) {
	if g.blocked == nil {
		g.blocked = why
	}
}

// each calls do for the committed snapshots from first to last from which the path is removed.
// These snapshots share one version of a page.
func (g *purging) each(first, last backup.SnapshotNumber, do func(s *purgedSnapshot)) {
	first = max(first, g.from)
	at, _ := slices.BinarySearchFunc(g.snapshots, first, func(s *purgedSnapshot, n backup.SnapshotNumber) int {
		return cmp.Compare(backup.SnapshotNumber(s.Number), n)
	})
	for _, s := range g.snapshots[at:] {
		if backup.SnapshotNumber(s.Number) > last {
			return
		}
		if s.State == string(backup.Committed) {
			s.changed = true
			do(s)
		}
	}
}

// below removes the pages of the path and everything below it.
func (g *purging) below(ctx context.Context) error {
	tree := Range{backup.PathKey(g.p.Path), backup.PathKeyEnd(g.p.Path)}
	err := g.tx.eachVersion(ctx, g.p.Shard, tree, g.from, func(v *Version) error {
		chunks, err := listing.ReadChunks(v.Listing)
		if err == nil { // otherwise it refers to nothing that can be read
			err = g.chunks.put(ctx, g, slices.Concat(chunks.Lists, chunks.Other))
		} else {
			err = nil
		}
		if err != nil {
			return err
		}
		var entries []backup.Entry
		if page, err := listing.Decode(v.Listing); err == nil {
			entries = page.Entries
		}
		g.each(v.First, v.Last, func(s *purgedSnapshot) {
			s.pages.Remove(v.Digest)
			for i := range entries {
				s.count(&entries[i])
			}
		})
		return nil
	})
	if err != nil {
		return err
	}
	n, err := g.tx.Hot.CutVersions(ctx, g.p.Shard, tree, g.from)
	g.result.Versions += n
	return err
}

// count counts an entry that is removed.
func (s *purgedSnapshot) count(e *backup.Entry) {
	if e.Kind == backup.Directory {
		s.directories++
		return
	}
	s.files++
	s.bytes = min(s.bytes+min(e.Size, backup.MaxCount), backup.MaxCount)
}

const (
	problemsSince = `
SELECT p.id, p.path, s.number FROM problems p JOIN snapshots s ON s.id = p.snapshot_id
WHERE s.shard_id = $1 AND s.number >= $2 ORDER BY p.id`
	deleteProblem = `DELETE FROM problems WHERE {id in $1}`
)

// problems deletes the recorded errors of the path and of what is below it.
func (g *purging) problems(ctx context.Context) error {
	byNumber := make(map[int64]*purgedSnapshot, len(g.snapshots))
	for _, s := range g.snapshots {
		byNumber[s.Number] = s
	}
	var gone []int64
	err := g.tx.Each(ctx, problemsSince, []any{g.of.ID, int64(g.from)}, func(scan func(...any) error) error {
		var id, number int64
		var path []byte
		if err := scan(&id, &path, &number); err != nil {
			return err
		}
		if backup.IsAtOrBelow(string(path), g.p.Path) {
			gone = append(gone, id)
			byNumber[number].errors++
			byNumber[number].changed = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	g.result.Problems = int64(len(gone))
	return g.tx.execList(ctx, deleteProblem, gone)
}

const (
	holdsOf    = `SELECT id, snapshot, path_key, reason FROM holds WHERE shard = $1 OR snapshot IN (SELECT id FROM snapshots WHERE shard_id = $1) ORDER BY id`
	readingsOf = `SELECT r.snapshot FROM readings r JOIN snapshots s ON s.id = r.snapshot WHERE s.shard_id = $1 AND r.until > {now}`
)

// mayChange fails if a hold or a restore in progress keeps a snapshot from which something is
// removed, or if a hold keeps the path, or what is above or below it. A hold on another path keeps
// that: its versions stay as they are.
func (g *purging) mayChange(ctx context.Context) error {
	changed := map[uuid.UUID]bool{}
	for _, s := range g.snapshots {
		if s.changed {
			changed[s.ID] = true
		}
	}
	err := g.tx.Each(ctx, holdsOf, []any{g.of.ID}, func(scan func(...any) error) error {
		var id int64
		var of uuid.NullUUID
		var key []byte
		var reason string
		if err := scan(&id, &of, &key, &reason); err != nil {
			return err
		}
		held, err := backup.PathOfKey(key)
		switch {
		case err != nil:
			return err
		case held != "":
			if backup.IsAtOrBelow(held, g.p.Path) || backup.IsAtOrBelow(g.p.Path, held) {
				return fmt.Errorf("hold %d (%s) keeps each version of %q: %w", id, reason, held, index.ErrKept)
			}
		case !of.Valid:
			return fmt.Errorf("hold %d (%s) keeps all snapshots of the shard: %w", id, reason, index.ErrKept)
		case changed[of.UUID]:
			return fmt.Errorf("hold %d (%s) keeps snapshot %s: %w", id, reason, backup.SnapshotID(of.UUID).Short(), index.ErrKept)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return g.tx.Each(ctx, readingsOf, []any{g.of.ID}, func(scan func(...any) error) error {
		var id uuid.UUID
		if err := scan(&id); err != nil || !changed[id] {
			return err
		}
		return fmt.Errorf("snapshot %s is being restored: %w", backup.SnapshotID(id).Short(), backup.ErrRunning)
	})
}

const deleteDrills = `
DELETE FROM drills WHERE shard = $1 AND snapshot NOT IN (SELECT id FROM snapshots WHERE shard_id = $1 AND number < $2)`

// reports deletes the reports of drills, which name files. The snapshots that they prove have
// changed.
func (g *purging) reports(ctx context.Context) error {
	n, err := g.tx.change(ctx, deleteDrills, g.of.ID, int64(g.from))
	g.result.Drills = int64(n)
	return err
}

const (
	loggedHolds = `SELECT id, reason FROM log WHERE subject LIKE $1 AND reason LIKE 'path "%' ORDER BY id`
	setLogged   = `UPDATE log SET reason = $2 WHERE id = $1`
)

// logged removes the path from what the log has of holds on paths.
func (g *purging) logged(ctx context.Context) error {
	reasons := map[int64]string{}
	err := g.tx.Each(ctx, loggedHolds, []any{fmt.Sprintf("hold %% shard %d", g.of.ID)}, func(scan func(...any) error) error {
		var id int64
		var reason string
		if err := scan(&id, &reason); err != nil {
			return err
		}
		if held, rest, ok := cutHeldPath(reason); ok && backup.IsAtOrBelow(held, g.p.Path) {
			reasons[id] = "path (purged): " + rest
		}
		return nil
	})
	if err != nil {
		return err
	}
	for id, reason := range reasons {
		if err := g.tx.exec(ctx, setLogged, id, reason); err != nil {
			return err
		}
	}
	return nil
}

const markStale = `
INSERT INTO amendments (snapshot, sequence, base, stale) VALUES ($1, 0, NULL, true)
ON CONFLICT (snapshot) DO UPDATE SET stale = true`

// writeSnapshots writes the new state of the snapshots, and notes which records are stale. These
// are the records of all snapshots that are based, directly or not, on a segment that may have the
// path. After they are written again, each kept snapshot is based on the kept one before it, and no
// segment of a forgotten one is needed.
func (g *purging) writeSnapshots(ctx context.Context) error {
	newest := uuid.UUID{}
	for _, s := range g.snapshots {
		if s.State == string(backup.Committed) {
			newest = s.ID
		}
	}
	for _, s := range g.snapshots {
		if s.changed {
			if err := g.writeSnapshot(ctx, s); err != nil {
				return err
			}
		}
		kept := s.Forgotten == nil || s.ID == newest
		committed := s.State == string(backup.Committed) && kept && backup.SnapshotNumber(s.Number) >= g.from
		if committed || s.State == string(backup.Failed) && s.changed && s.Forgotten == nil {
			if err := g.tx.exec(ctx, markStale, s.ID); err != nil {
				return err
			}
		}
	}
	if err := g.tx.Hot.DropInterrupted(ctx, g.p.Shard); err != nil {
		return err
	}
	return g.tx.Shard.UpdateOne(g.of).SetInterrupted(false).Exec(ctx)
}

// writeSnapshot subtracts what is removed from the counts of a snapshot.
func (g *purging) writeSnapshot(ctx context.Context, s *purgedSnapshot) error {
	counts := countsOf(s.Snapshot)
	counts.Files, counts.Directories, counts.Errors = counts.Files-s.files, counts.Directories-s.directories, counts.Errors-s.errors
	counts.Bytes -= s.bytes
	update := g.tx.Snapshot.Update().Where(snapshot.ID(s.ID)).SetProblemsStored(max(0, s.ProblemsStored-s.errors))
	if s.State == string(backup.Committed) {
		update.SetPages(s.pages.Pages).SetPagesSum(s.pages.Sum[:])
	}
	if err := setCounts(update, counts).Exec(ctx); err != nil {
		return err
	}
	if g.of.LastGood != nil && *g.of.LastGood == s.ID { // the next snapshot is compared with these
		err := g.tx.Shard.UpdateOneID(g.of.ID).SetLastGoodFiles(max(0, counts.Files)).SetLastGoodBytes(max(0, counts.Bytes)).Exec(ctx)
		if err != nil {
			return err
		}
	}
	if s.State != string(backup.Committed) || s.Forgotten != nil {
		return nil
	}
	after := toSnapshot(s.Snapshot)
	after.Counts, after.Pages = counts, s.pages
	g.result.Snapshots = append(g.result.Snapshots, index.PurgedSnapshot{Snapshot: after, Files: s.files, Directories: s.directories, Bytes: s.bytes})
	total := &g.result.Total
	total.Snapshots++
	if s.files >= total.Files {
		total.Files, total.Directories, total.Bytes = s.files, max(total.Directories, s.directories), max(total.Bytes, s.bytes)
	}
	return nil
}

const insertPurge = `
INSERT INTO purges (id, shard, path, since, through, by, reason, started, snapshots, files, directories, bytes)
VALUES ($1, $2, $3, $4, $5, $6, $7, {now}, $8, $9, $10, $11)`

func (g *purging) writeJob(ctx context.Context) error {
	total := g.result.Total
	g.result.Purge = g.p
	g.result.Total, g.result.From, g.result.Through = total, g.from, backup.SnapshotNumber(g.of.LastNumber)
	err := g.tx.exec(ctx, insertPurge, uuid.UUID(g.p.ID), g.of.ID, []byte(g.p.Path), int64(g.from), g.of.LastNumber, g.p.By, g.p.Reason,
		total.Snapshots, total.Files, total.Directories, total.Bytes)
	if err != nil {
		return err
	}
	return g.tx.writeLog(ctx, g.p.By, actionPurge, fmt.Sprintf("shard %d", g.of.ID),
		fmt.Sprintf("%s (purge %s: snapshots %d, files %d, directories %d, bytes %d)", g.p.Reason, g.p.ID, total.Snapshots, total.Files, total.Directories, total.Bytes))
}

// purgedChunks collects the chunks to which removed pages refer.
type purgedChunks struct {
	pending []backup.ChunkID
	lists   map[backup.ChunkID]bool // those that were looked up
}

const insertPurgeChunk = `INSERT INTO purge_chunks (purge, chunk) VALUES ($1, $2) ON CONFLICT DO NOTHING`

func (c *purgedChunks) put(ctx context.Context, g *purging, ids []backup.ChunkID) error {
	c.pending = append(c.pending, ids...)
	if len(c.pending) < listLength {
		return nil
	}
	return c.flush(ctx, g)
}

// flush writes the pending chunks, and those to which they refer.
func (c *purgedChunks) flush(ctx context.Context, g *purging) error {
	if c.lists == nil {
		c.lists = map[backup.ChunkID]bool{}
	}
	for ids := sortedIDs(c.pending); len(ids) > 0; {
		for _, id := range ids {
			n, err := g.tx.change(ctx, insertPurgeChunk, uuid.UUID(g.p.ID), id[:])
			if err != nil {
				return err
			}
			g.result.Chunks += int64(n)
		}
		ids = slices.DeleteFunc(ids, func(id backup.ChunkID) bool { return c.lists[id] })
		lists, err := g.tx.Hot.Lists(ctx, ids)
		if err != nil {
			return err
		}
		var below []backup.ChunkID
		for _, l := range lists {
			c.lists[l.List] = true
			below = append(below, l.Chunks...)
		}
		ids = sortedIDs(below)
	}
	c.pending = c.pending[:0]
	return nil
}

package entindex

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/listing"
)

// Apply implements index.Committing.
func (x *Index) Apply(ctx context.Context, results []index.Result) ([]index.Outcome, error) {
	refused, needs := make([]index.Outcome, len(results)), make([][]backup.ChunkID, len(results))
	work := false
	for i, r := range results {
		err := validate(r)
		if err == nil && r.Batch != nil {
			needs[i], err = listsOf(r.Batch.Pages)
		}
		refused[i].Err = err
		work = work || err == nil
	}
	if !work {
		return refused, nil
	}
	var outcomes []index.Outcome
	err := x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		outcomes = slices.Clone(refused)
		return newApplication(tx, results, needs, outcomes).run(ctx)
	})
	if err != nil {
		return nil, err
	}
	return outcomes, nil
}

// An application is one transaction of Apply. It locks and reads the rows that the results concern,
// registers new packs and lists, judges the other results one after the other in memory, and then
// writes in bulk. Judging has no side effect except staged parts, so a refused result leaves no
// trace.
type application struct {
	tx       *Tx
	results  []index.Result
	needs    [][]backup.ChunkID // list chunks that the pages of a batch refer to, by result
	outcomes []index.Outcome

	snapshots map[backup.SnapshotID]*snapshotState
	tasks     map[backup.TaskID]*openTask // open tasks
	batches   map[backup.BatchID]*openBatch
	packs     map[backup.PackID]*packState
	lists     map[backup.ChunkID]bool // list chunks that are known
	writes    writes
}

// A snapshotState is a running snapshot and what this call adds to it.
type snapshotState struct {
	row      *ent.Snapshot
	changed  bool
	counts   backup.Counts
	problems int64  // number of problems that are stored
	source   string // the source snapshot that is read; "": no change
	root     string // root of the tree that is read; "": no change
	// Announced and settled work, as in the row.
	tasks, tasksSettled, batches, batchesSettled int64
}

func (s *snapshotState) complete() bool {
	return s.tasks == s.tasksSettled && s.batches == s.batchesSettled
}

func newApplication(tx *Tx, results []index.Result, needs [][]backup.ChunkID, outcomes []index.Outcome) *application {
	return &application{
		tx: tx, results: results, needs: needs, outcomes: outcomes,
		snapshots: map[backup.SnapshotID]*snapshotState{},
		tasks:     map[backup.TaskID]*openTask{},
		batches:   map[backup.BatchID]*openBatch{},
		packs:     map[backup.PackID]*packState{},
	}
}

func (a *application) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{a.lockSnapshots, a.registerPacks, a.putLists, a.loadWork, a.lockPacks, a.loadLists} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	for i, r := range a.results {
		if !a.live(i) {
			continue
		}
		var err error
		switch {
		case r.Slice != nil:
			a.outcomes[i], err = a.judgeSlice(ctx, r.Slice)
		case r.Batch != nil:
			a.outcomes[i] = a.judgeBatch(i)
		}
		if err != nil {
			return err
		}
	}
	return a.write(ctx)
}

// live reports whether a result has not been refused yet.
func (a *application) live(i int) bool { return a.outcomes[i] == (index.Outcome{}) }

func snapshotOf(r index.Result) backup.SnapshotID {
	switch {
	case r.Slice != nil:
		return r.Slice.Snapshot
	case r.Pack != nil:
		return r.Pack.Snapshot
	case r.Lists != nil:
		return r.Lists.Snapshot
	}
	return r.Batch.Snapshot
}

// lockSnapshots locks the results' snapshots, in the order of their ids, so that they stay running
// until the end of the transaction. Snapshots that get work or pages are locked exclusively: their
// pages and counters have one writer at a time, and the result that settles the last work can
// detect that it does. Packs and lists only share the lock, because writing their chunks takes
// most of the time.
func (a *application) lockSnapshots(ctx context.Context) error {
	exclusive := map[backup.SnapshotID]bool{}
	for i, r := range a.results {
		if a.live(i) {
			exclusive[snapshotOf(r)] = exclusive[snapshotOf(r)] || r.Slice != nil || r.Batch != nil
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(exclusive), func(a, b backup.SnapshotID) int { return slices.Compare(a[:], b[:]) }) {
		row, err := a.tx.lockSnapshot(ctx, id, exclusive[id])
		if errors.Is(err, backup.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if row.State != string(backup.Running) {
			continue
		}
		a.snapshots[id] = &snapshotState{
			row: row, counts: countsOf(row), problems: row.ProblemsStored,
			tasks: row.TasksAnnounced, tasksSettled: row.TasksSettled,
			batches: row.BatchesAnnounced, batchesSettled: row.BatchesSettled,
		}
	}
	for i, r := range a.results {
		if a.live(i) && a.snapshots[snapshotOf(r)] == nil {
			a.outcomes[i].Late = true
		}
	}
	return nil
}

const (
	selectTasks   = `SELECT id, snapshot_id, attempt, generation FROM walk_tasks WHERE {id in $1}`
	selectBatches = `SELECT id, snapshot_id, attempt, names FROM read_batches WHERE {id in $1}`
)

// loadWork reads the tasks and batches that the results concern. It needs no lock: only the holder
// of the snapshot's lock settles work, and a claim only increments the attempt.
func (a *application) loadWork(ctx context.Context) error {
	var tasks, batches []int64
	for i, r := range a.results {
		switch {
		case !a.live(i):
		case r.Slice != nil:
			tasks = append(tasks, int64(r.Slice.Task))
		case r.Batch != nil:
			batches = append(batches, int64(r.Batch.Batch))
		}
	}
	err := eachOf(ctx, a.tx, selectTasks, tasks, func(scan func(...any) error) error {
		var id backup.TaskID
		t := &openTask{}
		err := scan(&id, &t.snapshot, &t.attempt, &t.generation)
		a.tasks[id] = t
		return err
	})
	if err != nil {
		return err
	}
	return eachOf(ctx, a.tx, selectBatches, batches, func(scan func(...any) error) error {
		var id backup.BatchID
		b := &openBatch{}
		err := scan(&id, &b.snapshot, &b.attempt, &b.names)
		a.batches[id] = b
		return err
	})
}

// judgeBatch settles a batch and adds its pages to the writes, or refuses the result.
func (a *application) judgeBatch(i int) index.Outcome {
	if refused := a.refuseBatch(i); refused != (index.Outcome{}) {
		return refused
	}
	b := a.results[i].Batch
	s := a.snapshots[b.Snapshot]
	delete(a.batches, b.Batch)
	a.writes.settledBatches = append(a.writes.settledBatches, int64(b.Batch))
	s.batchesSettled++
	a.putPages(s, b.Pages)
	a.count(s, &b.Counts, b.Problems)
	return index.Outcome{Complete: s.complete()}
}

// refuseBatch returns why a batch's result is refused; the zero Outcome if it is not. The packs and
// lists that it relies on must be known. A batch that relies on a condemned pack is read again.
func (a *application) refuseBatch(i int) index.Outcome {
	b := a.results[i].Batch
	open := a.batches[b.Batch]
	switch {
	case open == nil:
		return index.Outcome{Late: true}
	case open.snapshot != uuid.UUID(b.Snapshot):
		return index.Outcome{Err: invalid("batch %d is another snapshot's", b.Batch)}
	case b.Attempt > open.attempt:
		return index.Outcome{Err: invalid("attempt %d at batch %d has not been made", b.Attempt, b.Batch)}
	case b.Failed != "":
		return index.Outcome{Failed: true}
	case !slices.Equal(open.names, digestNames(b.Pages)):
		return index.Outcome{Err: invalid("pages are not those of batch %d", b.Batch)}
	}
	for _, pack := range b.ReliesOn {
		switch p := a.packs[pack]; {
		case p == nil:
			return a.early(i, open, index.ErrPackUnknown)
		case p.condemned:
			// When the batch is read again, the chunks of the pack are found nowhere and stored
			// anew.
			a.writes.expired = append(a.writes.expired, int64(b.Batch))
			return index.Outcome{Err: index.ErrCondemned, Announced: true}
		}
	}
	if slices.ContainsFunc(a.needs[i], func(id backup.ChunkID) bool { return !a.lists[id] }) {
		return a.early(i, open, index.ErrListUnknown)
	}
	return index.Outcome{}
}

// early refuses a batch that relies on unknown packs or lists. The result of an earlier attempt
// does not take the work away from the present one.
func (a *application) early(i int, open *openBatch, why error) index.Outcome {
	b := a.results[i].Batch
	if !a.results[i].GiveUp || b.Attempt != open.attempt {
		return index.Outcome{Err: why}
	}
	a.writes.expired = append(a.writes.expired, int64(b.Batch))
	return index.Outcome{Err: why, Announced: true}
}

// judgeSlice settles a task and adds its result to the writes (accept), or refuses the result. It
// stages parts until the last one comes.
func (a *application) judgeSlice(ctx context.Context, r *backup.SliceWalked) (index.Outcome, error) {
	if refused := a.refuseSlice(r); refused != (index.Outcome{}) {
		return refused, nil
	}
	if !r.Last {
		return index.Outcome{}, a.tx.stagePart(ctx, r)
	}
	var parts []*backup.SliceWalked
	if r.Part > 0 {
		staged, err := a.tx.stagedParts(ctx, r)
		if errors.Is(err, index.ErrPartMissing) {
			return index.Outcome{Err: err}, nil
		}
		if err != nil {
			return index.Outcome{}, err
		}
		parts = staged
	}
	parts = append(parts, r)
	s, open := a.snapshots[r.Snapshot], a.tasks[r.Task]
	delete(a.tasks, r.Task)
	a.writes.settledTasks = append(a.writes.settledTasks, int64(r.Task))
	s.tasksSettled++
	announced := false
	for _, part := range parts {
		a.accept(s, open, part)
		announced = announced || len(part.Children)+len(part.Batches) > 0
	}
	return index.Outcome{Announced: announced, Complete: s.complete()}, nil
}

// refuseSlice returns why a task's result is refused; the zero Outcome if it is not.
func (a *application) refuseSlice(r *backup.SliceWalked) index.Outcome {
	open := a.tasks[r.Task]
	switch {
	case open == nil:
		return index.Outcome{Late: true}
	case open.snapshot != uuid.UUID(r.Snapshot):
		return index.Outcome{Err: invalid("task %d is another snapshot's", r.Task)}
	case r.Attempt > open.attempt:
		return index.Outcome{Err: invalid("attempt %d at task %d has not been made", r.Attempt, r.Task)}
	case r.Source != "" && (open.generation != 0 || !isSnapshotOf(r.Source, a.snapshots[r.Snapshot].row.Source)):
		return index.Outcome{Err: invalid("source of task %d is no snapshot of the shard's", r.Task)}
	case r.Failed != "":
		return index.Outcome{Failed: true}
	}
	return index.Outcome{}
}

// accept adds a part of an accepted result to the writes.
func (a *application) accept(s *snapshotState, task *openTask, part *backup.SliceWalked) {
	shard, number := backup.ShardID(s.row.ShardID), backup.SnapshotNumber(s.row.Number)
	for _, path := range part.Removed {
		a.writes.trees = append(a.writes.trees, Tree{shard, number, Range{backup.PathKey(path), backup.PathKeyEnd(path)}})
	}
	for _, name := range part.Ended {
		a.writes.ended = append(a.writes.ended, PageID{shard, number, listing.DirectoryID(name.Path), name.Key})
	}
	a.putPages(s, part.Pages)
	for i := range part.Batches {
		a.writes.newBatches = append(a.writes.newBatches, newBatch{task.snapshot, s.row.FilerID, &part.Batches[i]})
	}
	for i := range part.Children {
		a.writes.newTasks = append(a.writes.newTasks, newTask{task.snapshot, s.row.FilerID, task.generation + 1, &part.Children[i]})
	}
	if part.Source != "" {
		s.source = part.Source
	}
	if task.generation == 0 && !part.Root.IsZero() {
		s.root = part.Root.String()
	}
	s.batches += int64(len(part.Batches))
	s.tasks += int64(len(part.Children))
	a.count(s, &part.Counts, part.Problems)
}

func (a *application) putPages(s *snapshotState, pages []backup.PageVersion) {
	for i := range pages {
		p := &pages[i]
		row := newPageRow(backup.ShardID(s.row.ShardID), backup.SnapshotNumber(s.row.Number), p)
		row.Digest = listing.Digest(p) // a reader's result does not give it
		a.writes.pages = append(a.writes.pages, row)
	}
}

// newPageRow returns the row of a version that begins with snapshot number.
func newPageRow(shard backup.ShardID, number backup.SnapshotNumber, p *backup.PageVersion) PageRow {
	return PageRow{
		Shard: shard, Number: number, Directory: listing.DirectoryID(p.Path), Key: p.Key, PathKey: backup.PathKey(p.Path),
		Fingerprint: p.Fingerprint, Digest: p.Digest, Inode: p.Inode, Listing: p.Listing,
	}
}

// maxProblems bounds the problems of a snapshot that are stored. All are counted.
const maxProblems = 10_000

func (a *application) count(s *snapshotState, c *backup.Counts, problems []backup.Problem) {
	counts := *c
	counts.Errors = max(counts.Errors, int64(len(problems)))
	s.counts.Add(counts)
	s.changed = true
	room := min(int64(len(problems)), max(0, maxProblems-s.problems))
	s.problems += room
	for _, p := range problems[:room] {
		a.writes.problems = append(a.writes.problems, newProblem{s.row.ID, p})
	}
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/rebuild"
	"github.com/bctl/bctl/internal/repair"
	"github.com/bctl/bctl/internal/repo"
)

// A progressText is a line of progress, which one goroutine sets and another one reads.
type progressText struct{ text atomic.Pointer[string] }

func (p *progressText) set(text string) { p.text.Store(&text) }

func (p *progressText) get() string {
	if text := p.text.Load(); text != nil {
		return *text
	}
	return "reading the commit records"
}

// finish makes an index accept what the store lacks, so that backups continue from it, and prints
// the result.
func (c *indexCommand) finish(ctx context.Context, s *origin, i index.Index, result *rebuild.Result) error {
	if err := c.accept(ctx, s, i, result); err != nil {
		return err
	}
	return c.print(ctx, i, result)
}

// errNotAccepted: snapshots cannot be recovered, and nobody has said that they are lost.
var errNotAccepted = errors.New("the index is not complete")

// lossOf is the error of a result that is refused.
func lossOf(lost []rebuild.Lost) error {
	return fmt.Errorf("%w, and no backup or prune is made with it: %s cannot be recovered. If the store lacks objects that can be put back, put them back, and run the command again. To accept the loss, run it with --accept-loss %d: a prune then deletes what only lost snapshots have",
		errNotAccepted, counted(len(lost), "snapshot"), len(lost))
}

// refuse names the snapshots because of which nothing was done.
func (c *indexCommand) refuse(e *rebuild.IncompleteError) error {
	missing := c.noteLost(e.Snapshots)
	if c.app.json {
		if err := c.app.print(indexJSON{Missing: missing, Forgotten: []string{}, Damaged: []indexDamaged{}}); err != nil {
			return err
		}
	}
	return lossOf(e.Snapshots)
}

// noteLost names snapshots that cannot be recovered, and returns their ids.
func (c *indexCommand) noteLost(lost []rebuild.Lost) []string {
	ids := make([]string, len(lost))
	for n := range lost {
		l := &lost[n]
		ids[n] = l.ID.String()
		if l.Number == 0 { // nothing of it can be read
			c.app.note("snapshot %s cannot be recovered: %v", l.ID.Short(), l.Err)
			continue
		}
		c.app.note("snapshot %s of %s %s, number %d, started %s, cannot be recovered: %v", l.ID.Short(), display(l.Filer), display(l.Shard), l.Number, zoned(l.Started), l.Err)
	}
	return ids
}

// accept makes the index current, unless it is refused. The snapshots that cannot be recovered are
// noted: their numbers are not used again, and the index does not count as older than the store
// because of them.
func (c *indexCommand) accept(ctx context.Context, s *origin, i index.Index, result *rebuild.Result) error {
	if result.Refused {
		return nil
	}
	lost := make([]index.LostSnapshot, len(result.Lost))
	for n := range result.Lost {
		l := &result.Lost[n]
		lost[n] = index.LostSnapshot{ID: l.ID, Shard: l.Key, Number: l.Number}
	}
	if result.Lacks {
		if err := c.reread(ctx, s, i); err != nil {
			return err
		}
	}
	newest, err := repo.NewestCatalog(ctx, s.store, &s.object.Repository)
	if err != nil {
		return err
	}
	if err := i.SetRecipients(ctx, s.object.Recipients); err != nil { // they may have changed since
		return err
	}
	if err := i.SetKeyObjects(ctx, nil); err != nil { // whatever there is will be proven
		return err
	}
	if err := i.AcceptLoss(ctx, lost, newest, operator(), fmt.Sprintf("bctl index: %d snapshots were added, %d are lost", result.Snapshots, len(lost))); err != nil {
		return err
	}
	if x, local := i.(*sqliteindex.Index); local {
		return settleCopies(ctx, s, x)
	}
	return nil
}

// reread makes the next backups read the files again whose content is missing, as a repair does:
// otherwise they would take them for unchanged.
func (c *indexCommand) reread(ctx context.Context, s *origin, i index.Index) error {
	o := check.Options{Index: i, Repository: &s.object.Repository, Level: check.Index}
	report, err := check.Run(ctx, o)
	if err != nil {
		return err
	}
	report.Findings = slices.DeleteFunc(report.Findings, func(f *check.Finding) bool { return f.Kind != check.Chunks })
	_, err = repair.Run(ctx, repair.Options{
		Index: i, Store: s.store, Check: o, By: operator(), Prune: prune.Options{Log: c.app.log, Holder: holder()},
	}, &report)
	return err
}

// settleCopies makes an index current although the store has newer copies, or lacks copies that the
// index knows, which a purge has deleted. It begins a copy that is newer than all of these, and
// never ends it.
func settleCopies(ctx context.Context, s *origin, i *sqliteindex.Index) error {
	stored, err := repo.Copies(ctx, s.store)
	if err != nil {
		return err
	}
	own, err := i.Copies(ctx)
	if err != nil || len(own) == 0 { // none: of an earlier version, which did not note its copies
		return err
	}
	gone := slices.DeleteFunc(slices.Collect(maps.Keys(own)), func(sequence int64) bool {
		_, is := slices.BinarySearch(stored, sequence)
		return is
	})
	newest := slices.Max(append(stored, 0))
	if len(gone) == 0 && newest <= slices.Max(slices.Collect(maps.Keys(own))) {
		return nil
	}
	if _, err := i.BeginCopy(ctx, newest+1); err != nil {
		return err
	}
	for _, sequence := range gone {
		if err := i.ForgetCopy(ctx, sequence); err != nil {
			return err
		}
	}
	return nil
}

// catalogWithin is more than the time within which a repository gets its first catalog.
const catalogWithin = 10 * time.Minute

// isOlderThan reports whether more than some time is between the first and the last snapshot.
func isOlderThan(snapshots []backup.Snapshot, age time.Duration) bool {
	byStart := func(a, b backup.Snapshot) int { return a.Started.Compare(b.Started) }
	return len(snapshots) > 0 && slices.MaxFunc(snapshots, byStart).Started.Sub(slices.MinFunc(snapshots, byStart).Started) > age
}

type indexJSON struct {
	Snapshots int            `json:"snapshots"`          // that can be restored
	Added     int            `json:"added"`              // or changed
	Packs     int            `json:"packs"`              // that were added
	Pages     int64          `json:"pages"`              // likewise
	Gone      int            `json:"gone"`               // packs that were removed
	Lacks     bool           `json:"lacks_content"`      // snapshots need content that the store lacks
	PutBack   int            `json:"put_back"`           // packs that were missing, and that parity had
	Unpurged  []string       `json:"unpurged,omitempty"` // shards whose purge was interrupted, and must be repeated
	Settings  *string        `json:"settings"`           // time of the catalog; null if there is none
	Missing   []string       `json:"missing"`            // snapshots
	Forgotten []string       `json:"forgotten"`
	Damaged   []indexDamaged `json:"damaged"`
}

type indexDamaged struct {
	Object string `json:"object"`
	Error  string `json:"error"`
}

// print prints what was done, and what could not be done.
func (c *indexCommand) print(ctx context.Context, i index.Index, result *rebuild.Result) error {
	a := c.app
	found, err := i.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Committed}})
	if err != nil {
		return err
	}
	j := indexJSON{
		Snapshots: len(found), Added: result.Snapshots, Packs: result.Packs, Pages: result.Pages, Gone: result.Gone, Lacks: result.Lacks, PutBack: result.PutBack, Settings: jsonTime(result.Catalog),
		Missing: c.noteLost(result.Lost), Forgotten: []string{}, Damaged: []indexDamaged{},
	}
	for n := range result.Removed {
		s := &result.Removed[n]
		j.Forgotten = append(j.Forgotten, s.ID.String())
		a.note("snapshot %s of %s %s, number %d, is not in the store any more, and is forgotten", s.ID.Short(), display(s.Filer.Name), display(s.Shard.Name), s.Number)
	}
	for n := range result.Damaged {
		d := &result.Damaged[n]
		j.Damaged = append(j.Damaged, indexDamaged{d.Object, d.Err.Error()})
		a.note("%s cannot be used: %v", d.Object, d.Err)
	}
	for n := range result.Unpurged {
		s := &result.Unpurged[n]
		j.Unpurged = append(j.Unpurged, s.Name)
		a.note("the records of shard %s were being written again when that was interrupted, and its snapshots are as before: if a path was being purged, run bctl purge again", display(s.Name))
	}
	for n := range result.Holds {
		h := &result.Holds[n]
		a.note("hold %d (%s) was on snapshot %s, which the index does not have", h.ID, display(h.Reason), h.Snapshot.Short())
	}
	if result.Lacks {
		a.note("snapshots need content that the store does not have: bctl check names the files, and the next backup reads those again that are on the filer. If the store has it again, bctl repair takes it back")
	}
	lacksCatalog := result.Catalog.IsZero()
	switch {
	case lacksCatalog && c.copied:
		lacksCatalog = false
		a.note("the store has no catalog that can be used: policies, holds and marks are as in the copy of the index")
	case lacksCatalog:
		lacksCatalog = isOlderThan(found, catalogWithin)
		a.note("the store has no catalog that can be used: policies, holds and marks are not recovered")
	}
	if a.json {
		err = a.print(j)
	} else {
		_, err = fmt.Fprintf(a.out, "the index has %s; %s and %s were added\n", counted(len(found), "snapshot"), counted(result.Snapshots, "snapshot"), counted(result.Packs, "pack"))
		if err == nil && result.PutBack > 0 {
			_, err = fmt.Fprintf(a.out, "put back %s from parity\n", counted(result.PutBack, "pack"))
		}
	}
	if err == nil && result.Refused {
		return lossOf(result.Lost)
	}
	if err == nil && (result.Lacks || lacksCatalog || len(result.Lost)+len(result.Damaged)+len(result.Holds)+len(result.Unpurged) > 0) {
		err = errIncomplete
	}
	return err
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/services/bctl/embedded"
	"github.com/bctl/bctl/services/bctl/open"
)

// parts returns what the services in this process use (package embedded).
func (a *app) parts(r *repository) (embedded.Options, error) {
	key, err := r.object.ReadWorkerKey(a.cfg.WorkerKey)
	if err != nil {
		return embedded.Options{}, err
	}
	// The worker key is a copy of what is in force, and is old if bctl key was interrupted.
	key.Recipients = r.object.Recipients
	committerKey, err := r.object.ReadCommitterKey(a.cfg.CommitterKey)
	if err != nil {
		return embedded.Options{}, err
	}
	keys, err := open.JournalKeys(&r.object, committerKey)
	if err != nil {
		return embedded.Options{}, err
	}
	locks, err := a.cfg.LockDir()
	if err != nil {
		return embedded.Options{}, err
	}
	w := &a.cfg.Worker
	o := embedded.Options{
		Index: r.index, Store: r.store, Source: open.Source(a.cfg), Repository: r.object.Repository,
		WorkerKey: key, Keys: keys, Log: a.log, LockDir: locks,
	}
	o.Walker.Tasks, o.Walker.Directories = w.Tasks, w.Directories
	o.Reader.Batches, o.Reader.InHand, o.Reader.Workers, o.Reader.Linger = w.Batches, w.InHand, w.Workers, w.Linger
	return o, nil
}

// backUpHere backs up the shards in this process, one after another.
func (c *backupCommand) backUpHere(ctx context.Context, r *repository, targets []target, report *report) error {
	o, err := c.app.parts(r)
	if err != nil {
		return err
	}
	o.Walker.Reread = c.reread
	o.OnLost = func(packs int) {
		c.app.note("packs missing or truncated in the store: %d; this backup stored their content again only for files that it read; run bctl doctor", packs)
	}
	c.app.noteUnmappedIDs()
	if c.stream.wanted {
		release, err := c.spool(ctx, &o, targets[0].shard)
		if err != nil {
			return err
		}
		defer release()
	}
	err = c.backUpEach(ctx, o, targets, report)
	// A first interrupt waits for the copy; a second one does not.
	if err == nil || report.committed > 0 {
		err = errors.Join(err, c.copyIndex(context.WithoutCancel(ctx), o))
	}
	if err != nil {
		return err
	}
	return report.result()
}

// backUpEach backs up the shards until a failure ends the command.
func (c *backupCommand) backUpEach(ctx context.Context, o embedded.Options, targets []target, report *report) error {
	for n := range targets {
		t := &targets[n]
		started := time.Now()
		var watch patternWatch
		o.Walker.Compile = watch.compile
		if c.verbose {
			o.Walker.OnChange = c.app.printFound(t, len(targets) > 1)
		}
		s, err := c.backUpOne(ctx, o, t)
		switch {
		case err == nil:
			var unmatched given
			if s.State == backup.Committed { // it is not known what a failed snapshot excluded
				unmatched = watch.unmatched(c.given())
				report.notFound = c.list.notFound(watch.unmatched(given{patterns: c.list.patterns}).patterns)
			}
			err = report.ended(context.WithoutCancel(ctx), &s, time.Since(started), unmatched)
		case errors.Is(context.Cause(ctx), process.ErrInterrupted):
			c.app.term.println("The snapshot of " + display(t.shard.Name) + " is not complete. The next backup of it reuses the content that this one has stored.")
			return context.Cause(ctx)
		default:
			err = report.failed(t.shard.Name, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// backUpOne backs up one shard with the services of a fleet, which run in this process (package
// embedded).
func (c *backupCommand) backUpOne(ctx context.Context, o embedded.Options, t *target) (backup.Snapshot, error) {
	before, err := o.Index.Snapshots(ctx, index.SnapshotFilter{
		Filer: t.filer, Shard: t.shard.Name, States: []backup.State{backup.Committed}, Limit: 1,
	})
	if err != nil {
		return backup.Snapshot{}, err
	}
	if len(before) > 0 {
		if err := c.mayBeListed(&before[0], t); err != nil {
			return backup.Snapshot{}, err
		}
	}
	request, err := c.requestOf(t)
	if err != nil {
		return backup.Snapshot{}, err
	}
	progress := newTracker()
	if len(before) > 0 {
		progress.expect(backup.SnapshotID{}, before[0].Counts.Files, before[0].Counts.Bytes)
	}
	stop := c.app.animate(progress.line)
	defer stop()
	s, err := embedded.Backup(ctx, o, t.shard, request, func(p backup.Progress) {
		p.Snapshot = backup.SnapshotID{} // there is only one
		progress.add(p)
	})
	if err != nil {
		return s, fmt.Errorf("back up %s: %w", display(t.shard.Name), err)
	}
	return s, nil
}

// printFound returns a function that prints the files of a shard that the walk found to be new or
// changed. named reports that the text includes the shard.
func (a *app) printFound(t *target, named bool) func(path string, sizeBytes int64, isNew bool) {
	return func(path string, sizeBytes int64, isNew bool) {
		action := "changed"
		if isNew {
			action = "new"
		}
		if named && !a.json {
			path = backup.Join(strings.TrimSuffix(t.root(), "/"), path)
		}
		a.printChange(action, t.shard.Name, path, sizeBytes)
	}
}

// copyIndex puts a copy of the index into the store if one is due. The backup is valid without it,
// and the next backup tries again. A damaged index is an error, because the backup may be lost with
// it.
func (c *backupCommand) copyIndex(ctx context.Context, o embedded.Options) error {
	idx, ok := o.Index.(*sqliteindex.Index)
	if !ok {
		return nil
	}
	changed, err := lastChange(ctx, idx)
	if err == nil && !changed.IsZero() {
		err = embedded.CopyIndexIfDue(ctx, idx, o.Store, o.Keys, changed, time.Now())
	}
	if err != nil && !errors.Is(err, sqliteindex.ErrDamaged) {
		c.app.note("the index was not copied to the store; the next backup tries again: %v", err)
		err = nil
	}
	return err
}

// lastChange returns the latest time at which a snapshot that changed anything was committed, of
// the newest snapshots, or at which somebody changed what the log notes, such as a hold. It is zero
// if nothing was changed.
func lastChange(ctx context.Context, idx *sqliteindex.Index) (at time.Time, err error) {
	const newest = 100
	if at, err = idx.LastLogged(ctx); err != nil {
		return at, err
	}
	found, err := idx.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Committed}, Limit: newest})
	for i := range found {
		if s := &found[i]; s.Segment.Parts > 0 && s.Committed.After(at) {
			at = s.Committed
		}
	}
	return at, err
}

// mayBeListed refuses a part of a tree if the last snapshot is of the whole tree.
func (c *backupCommand) mayBeListed(last *backup.Snapshot, t *target) error {
	switch {
	case last.Number == 0 || slices.Contains(last.Selection.Exclude, allElse):
		return nil
	case len(t.only) > 0:
		return fmt.Errorf("the last snapshot of %s has the whole directory: the other files would count as removed; use a separate filer: --filer NAME", display(t.shard.Name))
	case c.list.partial():
		return fmt.Errorf("the last snapshot of %s was made without --files-from: with a list, all other files would count as removed; "+
			"use a separate filer for the list: --filer NAME", display(t.shard.Name))
	}
	return nil
}

// requestOf is request for one tree, and excludes the repository itself.
func (c *backupCommand) requestOf(t *target) (backup.Snapshot, error) {
	s := c.request()
	if c.stream.wanted || isNFS(t.shard.Source) { // what the repository is on the server is not known
		return s, nil
	}
	root, err := posix.Path(t.shard.Source)
	if err != nil {
		return s, err
	}
	paths, err := everyPath(ownPaths(c.app.cfg))
	if err != nil {
		return s, err
	}
	own, err := leftOut(paths, root)
	if err != nil {
		return s, err
	}
	s.Selection.Exclude = slices.Clone(s.Selection.Exclude)
	if !slices.Contains(t.shard.Selection.Exclude, allElse) { // it may have been changed since
		s.Selection.Exclude = slices.Concat(t.only, s.Selection.Exclude)
	}
	for _, path := range own {
		if len(t.only) > 0 && !slices.Contains(t.only, "!/"+escapePattern(path)) {
			continue // it is not the file
		}
		c.app.note("%s belongs to the repository and is excluded", display(filepath.Join(root, path)))
		s.Selection.Exclude = append(s.Selection.Exclude, "/"+escapePattern(path))
	}
	return s, nil
}

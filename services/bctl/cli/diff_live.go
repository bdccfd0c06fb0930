package cli

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/diff"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/services/bctl/embedded"
	"github.com/bctl/bctl/services/bctl/open"
)

// liveName is the name of the source as it is now, beside the snapshots.
const liveName = "live"

// runLive compares a snapshot with the source of its shard.
func (c *diffCommand) runLive(ctx context.Context, given []string) error {
	if !c.content {
		return c.app.withIndex(ctx, toRead, func(i index.Index) error { return c.live(ctx, i, nil, given) })
	}
	r, err := c.app.openRepository(ctx, toRead)
	if err != nil {
		return err
	}
	defer r.close()
	key, err := c.dedupKey(ctx, r)
	if err != nil {
		return err
	}
	c.repository = r.object.Repository
	return c.live(ctx, r.index, (*[32]byte)(&key), given)
}

// dedupKey returns the key of the names of chunks: that of the worker key, or of the identity.
func (c *diffCommand) dedupKey(ctx context.Context, r *repository) (seal.DedupKey, error) {
	if c.app.cfg.WorkerKey != "" {
		if key, err := r.object.ReadWorkerKey(c.app.cfg.WorkerKey); err == nil {
			return key.Dedup, nil
		}
	}
	_, key, err := c.app.openSealed(ctx, r)
	return key, err
}

// live reports the changes from a snapshot to the source. A nil key leaves content alone.
func (c *diffCommand) live(ctx context.Context, i index.Index, key *[32]byte, given []string) error {
	c.app.noteCurrent(ctx, i)
	old, err := c.which.readable(ctx, c.app, i, given[0])
	if err != nil {
		return err
	}
	status, err := c.walkable(ctx, i, &old)
	if err != nil {
		return err
	}
	path := ""
	if len(given) > 2 {
		if _, err := browse.CleanPath(given[2]); err != nil {
			return usage("%v", err)
		}
	}
	l, err := c.walk(ctx, i, status, &old, key)
	if err != nil {
		return err
	}
	defer l.Close()
	if l.Source != status.Source {
		c.app.note("the source is %s", display(l.Source))
	}
	if len(given) > 2 {
		if path, err = c.livePath(ctx, i, l, &old, given[2]); err != nil {
			return err
		}
	}
	result, err := l.Diff(ctx, path, c.report)
	if err != nil && !errors.Is(err, backup.ErrCorrupt) {
		return err
	}
	return c.concludeLive(l, &old, &result, err)
}

// walkable returns the shard of a snapshot, if its source can be walked.
func (c *diffCommand) walkable(ctx context.Context, i index.Index, s *backup.Snapshot) (*index.ShardStatus, error) {
	shards, err := i.ListShards(ctx, index.ShardFilter{Filer: s.Filer.Name, Name: s.Shard.Name, Retired: true})
	switch {
	case err != nil:
		return nil, err
	case len(shards) == 0:
		return nil, absent("shard %s of filer %s is not registered any more: name another snapshot instead of live", display(s.Shard.Name), display(s.Filer.Name))
	}
	if _, _, err := treeAt(shards[0].Source); err != nil {
		return nil, usage("snapshot %s is of a stream, which cannot be read again: name another snapshot instead of live", s.ID.Short())
	}
	return &shards[0], nil
}

// walk walks the source, and prints what cannot be read.
func (c *diffCommand) walk(ctx context.Context, i index.Index, shard *index.ShardStatus, old *backup.Snapshot, key *[32]byte) (*embedded.Live, error) {
	o := embedded.Options{Index: i, Source: open.Source(c.app.cfg), Repository: c.repository, Log: c.app.log}
	o.Walker.Tasks, o.Walker.Directories = c.app.cfg.Worker.Tasks, c.app.cfg.Worker.Directories
	progress := newTracker()
	progress.expect(backup.SnapshotID{}, old.Counts.Files, old.Counts.Bytes)
	stop := c.app.animate(progress.line)
	defer stop()
	c.causes.term = c.app.term
	return embedded.WalkLive(ctx, o, shard, old, key, func(m *backup.SliceWalked) {
		n := &m.Counts
		progress.add(backup.Progress{FilesFound: n.Files, FilesDone: n.Files, BytesFound: n.Bytes, BytesDone: n.Bytes, Errors: n.Errors})
		for _, p := range m.Problems {
			c.problem(p)
		}
	}, c.problem)
}

func (c *diffCommand) problem(p backup.Problem) {
	if c.app.json {
		c.app.print(problemJSON(p))
		return
	}
	c.causes.problem(p)
}

// livePath returns the path that a user means, which the snapshot or the source must have.
func (c *diffCommand) livePath(ctx context.Context, i index.Index, l *embedded.Live, old *backup.Snapshot, given string) (string, error) {
	path, _, err := lookup(ctx, i, old, given)
	if !errors.Is(err, backup.ErrNotFound) {
		return path, err
	}
	if path, err = browse.CleanPath(given); err != nil {
		return "", usage("%v", err)
	}
	if below, ok := strings.CutPrefix("/"+path+"/", strings.TrimSuffix(rootOf(old), "/")+"/"); ok && filepath.IsAbs(given) {
		path = strings.TrimSuffix(below, "/")
	}
	if _, err = browse.Lookup(ctx, l, l.Now().ID, path); errors.Is(err, backup.ErrNotFound) {
		return "", absent("neither snapshot %s nor its source has %s, unless it is excluded", old.ID.Short(), display(filepath.Clean(given)))
	}
	return path, err
}

// concludeLive ends the report. The result is incomplete if something could not be read.
func (c *diffCommand) concludeLive(l *embedded.Live, old *backup.Snapshot, result *diff.Result, damaged error) error {
	c.causes.end("bctl diff --json prints all errors.")
	err := c.finish(&diffTotal{"total", old.ID.String(), liveName, c.counts, result.Unpaired, c.unread, l.Unsure(), l.Problems})
	if n := c.unread; n > 0 && !c.app.json {
		hint := "--content reads them"
		if c.content {
			hint = "they change while they are read, or cannot be read"
		}
		c.app.note("%s may differ in what is marked with ?: %s", counted(n, "file"), hint)
	}
	if n := l.Unsure(); n > 0 && !c.app.json {
		c.app.note("%s may have changed unseen, because the snapshot was made just after they were written, or could not read them: --content reads them", counted(n, "file"))
	}
	if n := l.Problems; n > 0 && !c.app.json {
		c.app.note("%s: what cannot be read is compared as the snapshot has it", counted(n, "error"))
	}
	if err = errors.Join(err, damaged); err == nil && l.Problems > 0 {
		return errIncomplete
	}
	return err
}

package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/diff"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/live"
	"github.com/bctl/bctl/internal/source"
)

// A Live is the source of a shard as it is now, as the next backup would find it after a snapshot.
type Live struct {
	*live.Found
	Source   string // that was walked: the shard's, or a source snapshot
	Problems int64
	old      backup.Snapshot
	files    live.Files
}

// WalkLive walks the source of a snapshot's shard, with the selection of the snapshot. It writes
// neither to the index nor to the store, and takes no lock. Of Options, Index, Source and Walker
// are used and, if a key is given, Repository: then content is compared, too. found is called with
// each part of the result, and problem with what could not be read to compare it. The caller closes
// the Live.
func WalkLive(ctx context.Context, o Options, shard *index.ShardStatus, s *backup.Snapshot, key *[32]byte, found func(*backup.SliceWalked), problem func(backup.Problem)) (*Live, error) {
	job := backup.Job{
		Filer: shard.Filer.ID, Shard: shard.ID, Number: s.Number + 1, Base: s.Number, Source: shard.Source, Snapshots: shard.Snapshots,
		Selection: s.Selection, Compare: s.Compare.OrAll(),
	}
	if !s.Counts.Empty() {
		job.Root = s.Root
	}
	l := &Live{Found: live.New(o.Index, s), Source: job.Source, old: *s}
	l.files = live.Files{Compare: job.Compare, Problem: func(p backup.Problem) {
		l.Problems++
		problem(p)
	}}
	if err := l.walk(ctx, &o, job, key, found); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Live) walk(ctx context.Context, o *Options, job backup.Job, key *[32]byte, found func(*backup.SliceWalked)) (err error) {
	if key != nil {
		if l.files.Hasher, err = live.NewHasher(&o.Repository, *key); err != nil {
			return err
		}
		o.Walker.Reread = true
	}
	walking, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	surveyed, err := survey(walking, o, job, func(m *backup.SliceWalked) {
		l.Source = cmp.Or(m.Source, l.Source)
		if err := l.Add(m); err != nil {
			stop(err)
		}
		found(m)
	})
	l.Problems += surveyed.Counts.Errors
	switch {
	case ctx.Err() == nil && walking.Err() != nil:
		return context.Cause(walking)
	case err != nil:
		return err
	case surveyed.Failed != "":
		return fmt.Errorf("%s: nothing is compared", surveyed.Failed)
	}
	if err := l.Complete(ctx); err != nil {
		return err
	}
	l.files.Tree, err = source.OpenRoot(ctx, o.Source, l.Source, l.old.Root, job.Compare)
	return err
}

// Unsure returns how many files may have changed without a trace in their times.
func (l *Live) Unsure() int64 { return l.files.Unsure }

// Diff reports the changes from the snapshot to the source, as diff.Between does. If the source
// went away while it was read, Diff fails.
func (l *Live) Diff(ctx context.Context, path string, report func(*diff.Change) error) (diff.Result, error) {
	result, err := diff.WithSource(ctx, l.Found, &l.old, l.Now(), path, l.files.Settle, report)
	if err == nil || errors.Is(err, backup.ErrCorrupt) {
		err = errors.Join(err, l.Err(), l.files.Tree.Check(ctx))
	}
	return result, err
}

// Close closes the source, and removes temporary files.
func (l *Live) Close() {
	l.files.Close()
	if l.files.Tree != nil {
		_ = l.files.Tree.Close() // it was only read
	}
	l.Found.Close()
}

package embedded

import (
	"context"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/services/committer/commit"
	"github.com/bctl/bctl/services/walker/walk"
)

// A Forecast is what a backup would do.
type Forecast struct {
	walk.Surveyed
	Base backup.SnapshotNumber // 0: none
	// Removed is the number of files of the last snapshot that are gone, or are excluded now. It is
	// unknown, and -1, if there were errors: files that could not be seen may exist.
	Removed int64
}

// Survey walks the tree of a shard as Backup does with s, and returns what Backup would do. It
// writes neither to the index nor to the store, and takes no lock. Of Options, Index, Source and
// Walker are used. base is the newest committed snapshot, good the last good one; both are zero if
// there is none. found, if not nil, is called with each part of the result.
func Survey(ctx context.Context, o Options, shard *index.ShardStatus, s, base backup.Snapshot, found func(*backup.SliceWalked)) (Forecast, error) {
	job := backup.Job{
		Filer: shard.Filer.ID, Shard: shard.ID, Number: base.Number + 1, Base: base.Number, Source: shard.Source, Snapshots: shard.Snapshots,
		AllowShrink: s.AllowShrink, NewRoot: s.NewRoot, Selection: shard.Filer.Selection.Merge(shard.Selection).Merge(s.Selection),
		Compare: shard.Filer.Compare.OrAll(),
	}
	if !s.NewRoot && !base.Counts.Empty() {
		job.Root = base.Root
	}
	surveyed, err := survey(ctx, &o, job, found)
	if err != nil {
		return Forecast{}, err
	}
	c := surveyed.Counts
	f := Forecast{Surveyed: surveyed, Base: base.Number, Removed: -1}
	if c.Errors == 0 && f.Failed == "" {
		f.Removed = max(base.Counts.Files-c.FilesChanged-c.FilesUnchanged, 0)
	}
	if f.Failed == "" {
		s.Counts = c
		f.Failed = commit.Guard(&s, &index.LastCommits{Good: shard.Number, Files: shard.Files, Bytes: shard.Bytes})
	}
	return f, nil
}

func survey(ctx context.Context, o *Options, job backup.Job, found func(*backup.SliceWalked)) (walk.Surveyed, error) {
	o.Walker.Alone, o.Walker.Log = true, o.Log
	return walk.Survey(ctx, o.Index, o.Source, job, o.Walker, found)
}

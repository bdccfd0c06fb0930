package history

import (
	"context"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/diff"
	"github.com/bctl/bctl/internal/index"
)

// A Step is a version in the history of a path, and what became of it.
type Step struct {
	Version
	// New: the snapshot before First does not have the path. It is not set for the first of all
	// snapshots. Otherwise Differs is how the version differs from the one before.
	New     bool
	Differs diff.Attributes
	// From is where the entry was before First, and To is where it is after Last, if it has moved.
	From, To string
	// Gone: the snapshot after Last does not have the path.
	Gone bool
}

// Of returns the history of a path of a shard in the snapshots given, the oldest version first. If
// pages could not be read, the error wraps backup.ErrCorrupt, and the history has what the others
// have.
func Of(ctx context.Context, x Index, shard backup.ShardID, snapshots Snapshots, path string) ([]Step, error) {
	r := &reader{index: x, shard: shard, snapshots: snapshots}
	spans, err := r.spansOf(ctx, path)
	if err != nil {
		return nil, err
	}
	var steps []Step
	for _, v := range snapshots.versions(path, spans) {
		step := Step{Version: v, New: v.First > 0, Gone: v.Last < len(snapshots)-1}
		if n := len(steps) - 1; n >= 0 && steps[n].Last == v.First-1 {
			steps[n].Gone, step.New = false, false
			step.Differs = diff.Differences(steps[n].Entry, v.Entry)
		}
		steps = append(steps, step)
	}
	m := &mover{reader: r, path: path}
	if err := m.moves(ctx, steps); err != nil {
		return nil, err
	}
	return steps, r.err()
}

// spansOf returns what the snapshots have at a path.
func (r *reader) spansOf(ctx context.Context, path string) ([]span, error) {
	if path == "" { // no directory lists the root
		selves := map[string][]span{}
		err := r.index.VersionsOf(ctx, r.shard, []backup.PageName{{}}, func(v *index.PageSpan) error { return r.addSelf(selves, v) })
		return selves[""], err
	}
	dir, name := backup.Split(path)
	d := &directory{path: dir, spans: map[string][]span{}}
	err := r.index.VersionsBelow(ctx, r.shard, dir, true, func(v *index.PageSpan) error {
		return r.add(d, v, func(_, n string) bool { return n == name })
	})
	if err != nil {
		return nil, err
	}
	err = r.complete(ctx, []*directory{d})
	return d.spans[name], err
}

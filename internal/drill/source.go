package drill

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// A live is the tree of the shard on its file server.
type live struct{ tree source.Tree }

// openLive opens the tree of a snapshot's shard. It fails if another tree is at that place.
func openLive(ctx context.Context, s source.Source, of *backup.Snapshot) (*live, error) {
	tree, err := s.Open(ctx, of.Shard.Source)
	if err != nil {
		return nil, fmt.Errorf("open the live source: %w", err)
	}
	if differs := tree.Root().Differs(of.Root, of.Compare); differs != "" {
		return nil, errors.Join(fmt.Errorf("the live source is another tree than that of the snapshot: %s: %w", differs, backup.ErrUnavailable), tree.Close())
	}
	return &live{tree}, nil
}

// compare compares a file with that on the file server, if it has not changed since the snapshot.
// Its error ends the drill.
func (l *live) compare(ctx context.Context, path string, e *backup.Entry, c *content, r *Report) error {
	if e.Flags&backup.Flawed != 0 {
		return nil // the snapshot does not have it as it was
	}
	unchanged, failed, fatal := l.compareFile(ctx, path, e, c)
	switch {
	case fatal != nil:
		return fatal
	case gone(failed) || failed == nil && !unchanged:
		r.Source.Changed++
	case failed != nil:
		r.fail(path, "source", "it differs from the file on the file server, whose size and times are those of the snapshot: "+failed.Error())
	default:
		r.Source.Files++
	}
	return nil
}

// gone reports whether the file is not there any more, or is something else.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, source.ErrReplaced) || errors.Is(err, source.ErrStale) ||
		errors.Is(err, syscall.ENOTDIR) || errors.Is(err, backup.ErrOutside)
}

// compareFile reads the file on the file server if its size and times are those of the snapshot,
// and looks at them again afterwards.
func (l *live) compareFile(ctx context.Context, path string, e *backup.Entry, c *content) (unchanged bool, failed, fatal error) {
	dir, name := backup.Split(path)
	d, err := l.tree.OpenDirectory(ctx, dir)
	if err != nil {
		return false, err, l.tree.Check(ctx)
	}
	defer d.Close()
	f, err := d.OpenFile(ctx, name)
	if err != nil {
		return false, err, l.tree.Check(ctx)
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !isSame(e, &now) {
		return false, err, nil
	}
	failed, fatal = c.compare(ctx, f, e, nil)
	if failed == nil || fatal != nil {
		return true, nil, fatal
	}
	// A change within the clock's grain does not show in the times.
	now, err := f.Stat()
	if err != nil || !isSame(e, &now) || e.Flags&backup.Racy != 0 {
		return false, err, nil
	}
	return true, failed, nil
}

// isSame reports whether size and times show no change.
func isSame(e, now *backup.Entry) bool {
	return now.Kind == backup.File && e.Size == now.Size && e.Mtime == now.Mtime && e.Ctime == now.Ctime
}

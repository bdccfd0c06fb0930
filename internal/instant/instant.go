package instant

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/mount"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// Deps are the dependencies of a run.
type Deps struct {
	Catalog    mount.Catalog
	Store      store.Store
	Repository backup.RepositoryID // that the packs belong to
	Opener     *seal.Opener
	HashKey    seal.DedupKey
}

// Options select what to restore, and where.
type Options struct {
	Snapshot backup.SnapshotID
	Path     string // within the shard: a directory; "" is all of it
	// Target is a new or empty directory, or one that an interrupted run of the same snapshot and
	// path has left.
	Target      string
	Pages       backup.PageSet // as in restore.Options
	Compare     backup.Compare // as in restore.Options
	Counts      backup.Counts  // as in restore.Options
	IgnoreSpace bool           // as in restore.Options
	NoSync      bool           // do not wait at the end until the data is on the disk
	Concurrency int            // as in restore.Options
	Patience    time.Duration  // how long a read waits for an index or a store that does not answer
	Log         *slog.Logger
}

// An Observer receives the events of a run. Its methods are called from any goroutine.
type Observer interface {
	restore.Observer
	// Mounted reports that the target can be used. Its error ends the run.
	Mounted() error
	// Unavailable reports that the index or the store does not answer. The run tries again.
	Unavailable(err error)
	// Busy reports that everything is restored, and that processes use the mount.
	Busy()
	// Stays reports that the run ends, and that processes use the mount, which stays.
	Stays()
}

// A Summary is that of the restore. If an earlier run has restored everything, it has only that
// run's number of problems.
type Summary = restore.Summary

// Run restores, shows the target meanwhile, and returns when it is a plain directory. Errors are
// those of restore.Restore, and fs.ErrPermission: only root may mount an overlay.
func Run(ctx context.Context, d Deps, o Options, obs Observer) (Summary, error) {
	if os.Geteuid() != 0 {
		return Summary{}, fmt.Errorf("bctl restore --instant needs root, because it mounts: %w", fs.ErrPermission)
	}
	if err := checkSubject(ctx, d.Catalog, &o); err != nil {
		return Summary{}, err
	}
	p, err := openPlace(o.Target, obs)
	if err != nil {
		return Summary{}, err
	}
	defer p.close()
	if err := p.claim(subject{Snapshot: o.Snapshot.String(), Path: []byte(o.Path)}); err != nil {
		return Summary{}, err
	}
	var sum Summary
	if !p.isRestored() {
		s := &session{place: p, d: d, o: o, obs: obs}
		if sum, err = s.run(ctx); err != nil {
			return sum, err
		}
		if err := p.plan(sum.Problems + p.problems); err != nil {
			return sum, err
		}
		p.problems = 0
	}
	m := &merger{place: p}
	before, err := m.run(ctx, !o.NoSync)
	sum.Problems = before + p.problems
	return sum, err
}

// checkSubject fails unless a directory is restored that has no entry with the name of the private
// directory.
func checkSubject(ctx context.Context, cat mount.Catalog, o *Options) error {
	e, err := browse.Lookup(ctx, cat, o.Snapshot, o.Path)
	if err != nil {
		return err
	}
	if e.Kind != backup.Directory {
		return fmt.Errorf("%q is not a directory, which bctl restore --instant needs: %w", o.Path, backup.ErrInvalid)
	}
	_, err = browse.Lookup(ctx, cat, o.Snapshot, backup.Join(o.Path, Private))
	switch {
	case errors.Is(err, backup.ErrNotFound):
		return nil
	case err == nil:
		err = fmt.Errorf("%q has an entry %s, the name that bctl restore --instant uses: %w", o.Path, Private, backup.ErrInvalid)
	}
	return err
}

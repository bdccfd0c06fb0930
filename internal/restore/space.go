package restore

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/restore/target"
)

// A SpaceError reports that the target cannot hold what is selected.
type SpaceError struct {
	Target     string
	Need, Free int64 // bytes
}

func (e *SpaceError) Error() string {
	return fmt.Sprintf("it does not fit into target %s: %s are free, and what is selected has %s",
		e.Target, humanize.IBytes(uint64(e.Free)), humanize.IBytes(uint64(e.Need)))
}

// CheckSpace returns a SpaceError if Restore would, for a restore of a directory. It writes
// nothing.
func CheckSpace(ctx context.Context, d Deps, o Options) error {
	o.setDefaults()
	entry, err := browse.Lookup(ctx, d.Catalog, o.Snapshot, o.Path)
	if err != nil {
		return err
	}
	return newRestorer(d, o, nil).checkSpace(ctx, &entry)
}

// checkSpace returns a SpaceError if the target certainly cannot hold what is selected. That is
// known only of an empty target: in another one, files may be there already, or be replaced. What
// is selected is measured only if the whole snapshot does not fit, so the check costs one system
// call. A dry run calls it at its end, because it has counted the bytes.
func (r *restorer) checkSpace(ctx context.Context, entry *backup.Entry) error {
	if r.o.IgnoreSpace {
		return nil
	}
	s, err := r.o.space(r.o.Target)
	if err != nil || !s.Empty || s.Bytes == target.Unknown || r.o.Counts.Bytes <= s.Bytes {
		return nil //nolint:nilerr // opening the target reports what is wrong with it
	}
	need := r.bytes.Load()
	if !r.o.DryRun {
		a, err := r.amount(ctx, entry, false)
		if err == nil {
			r.total.Store(&a)
		}
		if err == nil && a.Bytes > s.Bytes {
			a, err = r.amount(ctx, entry, true)
		}
		if err != nil {
			return err
		}
		need = a.Bytes
	}
	if need > s.Bytes {
		return &SpaceError{Target: r.o.Target, Need: need, Free: s.Bytes}
	}
	return nil
}

package repair

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/store"
)

// A Mirror is a second copy of the store. *mirror.Source implements it.
type Mirror interface {
	// PutBack puts an object of the mirror into a store, in place of what is there, if the mirror's
	// is whole and differs. It reports whether it did. If the store has locked what is there, the
	// error is a *store.LockedError.
	PutBack(ctx context.Context, to store.Store, name string) (bool, error)
	// Bytes returns the length of an object of the mirror.
	Bytes(name string) int64
	// IsAway reports whether an error is one of the mirror, which cannot be read now.
	IsAway(err error) bool
}

// fromMirror puts back what the mirror has, and checks again, until there is nothing more to put
// back: another check may find more, because a report has a limited number of findings.
func (o *Options) fromMirror(ctx context.Context, s *Summary) error {
	put := map[string]bool{}
	for {
		names, bytes, err := o.putBackFindings(ctx, s)
		s.PutBack = append(s.PutBack, names...)
		before := len(put)
		for _, name := range names {
			put[name] = true
		}
		if len(names) > 0 {
			err = errors.Join(err, o.Index.NotePutBack(context.WithoutCancel(ctx), index.FromMirror, len(names), bytes))
		}
		s.FromMirror += len(names)
		if err != nil || len(names) == 0 {
			return err
		}
		if err := o.Index.NoteRepair(ctx, o.By, "repository", fmt.Sprintf("put back %d objects from the mirror", len(names))); err != nil {
			return err
		}
		if err := o.checkAgain(ctx, s); err != nil || len(put) == before || s.MirrorAway != nil {
			return err
		}
	}
}

// putBackFindings puts the damaged objects of the report back into the store, as far as it lets
// them be replaced and the mirror answers. It returns their names and the number of their bytes.
func (o *Options) putBackFindings(ctx context.Context, s *Summary) (names []string, bytes int64, err error) {
	tried := map[string]bool{}
	for _, f := range s.Report.Findings {
		if f.Object == "" || tried[f.Object] || isUnsure(f) || s.Kept[f.Object] != "" {
			continue
		}
		tried[f.Object] = true
		done, err := o.Mirror.PutBack(ctx, o.Store, f.Object)
		switch {
		case store.IsLocked(err):
			o.keep(s, f)
			continue
		case o.Mirror.IsAway(err):
			s.MirrorAway = err
			return names, bytes, nil
		case err != nil:
			return names, bytes, MayPutBack(err)
		case !done:
			continue
		}
		names, bytes = append(names, f.Object), bytes+o.Mirror.Bytes(f.Object)
		if err := o.forgottenMeanwhile(ctx, f.Object); err != nil {
			return names, bytes, err
		}
	}
	return names, bytes, nil
}

// keep notes a damaged object that is locked, and that the mirror has. Those that can be written
// again under other names are.
func (o *Options) keep(s *Summary, f *check.Finding) {
	switch f.Kind {
	case check.Record, check.Segment, check.Catalog, check.Copy, check.Parity:
	default:
		s.Kept[f.Object] = LockedInMirror
	}
}

// MayPutBack returns an error of putting an object back, with what to do if the store does not
// allow it.
func MayPutBack(err error) error {
	if of, ok := errors.AsType[*store.Error](err); ok && errors.Is(err, fs.ErrPermission) && (of.Op == "put" || of.Op == "delete") {
		return fmt.Errorf("%w: to put objects back, use a key of the store that may put all objects, and delete damaged ones. In a fleet, no role has such a key: use that of the store's administrator (store.credentials_file)", err)
	}
	return err
}

// forgottenMeanwhile deletes a record that was put back, if a pruner has removed its snapshot since
// the check: a record of an unknown snapshot would mean that the index is old.
func (o *Options) forgottenMeanwhile(ctx context.Context, name string) error {
	id, _, is := store.ParseCommitName(name)
	if !is {
		return nil
	}
	_, err := o.Index.Snapshot(ctx, id)
	if errors.Is(err, backup.ErrNotFound) {
		return o.Store.Delete(ctx, name)
	}
	return err
}

// checkAgain checks again. Of the content, that of the damaged packs and parity groups is read
// again.
func (o *Options) checkAgain(ctx context.Context, s *Summary) error {
	damaged := map[backup.PackID]bool{}
	for _, f := range s.Report.Findings {
		if f.Damage != nil {
			damaged[f.Damage.Pack.Pack] = true
		}
		if group, _, is := store.ParseParityName(f.Object); is {
			damaged[group] = true
		}
	}
	c := o.Check
	c.Proven, c.Affected = nil, nil
	c.Read = func(id backup.PackID) bool { return damaged[id] }
	c.Suspect = c.Read // what was put back may be damaged in part
	again, err := check.Run(ctx, c)
	s.Report = &again
	return err
}

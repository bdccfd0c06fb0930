package walk

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// recognize returns an OtherTreeError if the directory is a root without a lasting identity, and
// has none of the entries of the last snapshot: another file system may be mounted. A root whose
// entries were all deleted looks the same; then the user has to confirm it.
func (w *visit) recognize(ctx context.Context) error {
	job := &w.slice.task.Job
	if w.path != "" || len(w.marks) == 0 || w.excluded || job.NewRoot || job.AllowShrink || source.IsLasting(job.Root, w.slice.tree.Root()) {
		return nil
	}
	find, err := w.finder()
	if err != nil {
		return err
	}
	had, key := false, backup.PageKey(0)
	for range w.marks { // bounded: damaged pages could form a cycle
		var page backup.Page
		err := w.eachOld(ctx, pageNames("", []backup.PageKey{key}), func(_ string, p *backup.Page) error { page = *p; return nil })
		if err != nil {
			return err
		}
		candidates, found, err := w.findAny(page.Entries, find)
		if err != nil || found {
			return err
		}
		had = had || candidates
		if key = page.Next; key == 0 {
			break
		}
	}
	if !had {
		return nil
	}
	return &source.OtherTreeError{What: fmt.Sprintf("none of what the last snapshot has at the root of %s is there: "+
		"is the right file system mounted here? If that is right, use --new-root or --allow-shrink", job.Source)}
}

// findAny reports whether one of the last snapshot's entries still exists, and whether any is a
// candidate.
func (w *visit) findAny(old []backup.Entry, find lookup) (candidates, found bool, err error) {
	for i := range old {
		if w.leavesOut(&old[i]) {
			continue
		}
		candidates = true
		e, is, err := find(old[i].Name)
		if err != nil || is && e.Kind == old[i].Kind {
			return true, is, err
		}
	}
	return candidates, false, nil
}

// leavesOut reports whether an entry at the root of the last snapshot is one that this snapshot
// leaves out in any case.
func (w *visit) leavesOut(e *backup.Entry) bool {
	m, isDir := w.slice.match, e.Kind == backup.Directory
	return m.Matches(e.Name, isDir) || m.LeavesOutMounted(*e) || e.Kind == backup.File && m.TooLarge(e.Size) || isDir && e.Name == w.slice.snapshotDir
}

// A lookup finds an entry of a directory by its name. It must be called with names in ascending
// order.
type lookup func(name string) (e backup.Entry, is bool, err error)

func (w *visit) finder() (lookup, error) {
	if w.spilled == nil {
		return func(name string) (e backup.Entry, is bool, err error) {
			at, is := w.find(name)
			if is {
				e = w.entries[at]
			}
			return e, is, nil
		}, nil
	}
	m, err := w.spilled.merge()
	if err != nil {
		return nil, err
	}
	var block, rest []backup.Entry
	return func(name string) (e backup.Entry, is bool, err error) {
		for len(rest) == 0 || rest[0].Name < name {
			if len(rest) > 0 {
				rest = rest[1:]
				continue
			}
			block, err = m.next(block[:0], blockEntries)
			if errors.Is(err, io.EOF) {
				return e, false, nil
			}
			if err != nil {
				return e, false, err
			}
			rest = block
		}
		return rest[0], rest[0].Name == name, nil
	}, nil
}

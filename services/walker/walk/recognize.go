package walk

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// recognize returns an OtherTreeError if the directory is the root of another
// file system, for all that can be seen: nothing lasting tells it from others, and
// nothing of what the last snapshot has there is there. To delete all of that would
// look the same; the user has to say so.
func (w *visit) recognize(ctx context.Context) error {
	job := &w.slice.task.Job
	if w.path != "" || len(w.marks) == 0 || w.excluded || job.NewRoot || job.AllowShrink || source.IsLasting(job.Root, w.slice.tree.Root()) {
		return nil
	}
	find, err := w.finder()
	if err != nil {
		return err
	}
	had := false
	var key backup.PageKey
	for range w.marks {
		var page backup.Page
		err := w.eachOld(ctx, pageNames("", []backup.PageKey{key}), func(_ string, p *backup.Page) error { page = *p; return nil })
		if err != nil {
			return err
		}
		for i := range page.Entries {
			old := &page.Entries[i]
			if w.leavesOut(old) {
				continue
			}
			had = true
			e, is, err := find(old.Name)
			if err != nil {
				return err
			}
			if is && e.Kind == old.Kind {
				return nil
			}
		}
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

// leavesOut reports whether an entry at the root of the last snapshot is one that
// this snapshot does not have, wherever it is.
func (w *visit) leavesOut(e *backup.Entry) bool {
	m, isDir := w.slice.match, e.Kind == backup.Directory
	return m.Excluded(e.Name, isDir) || e.Kind == backup.File && m.TooLarge(e.Size) || isDir && e.Name == w.slice.snapshotDir
}

// finder returns a function that finds an entry of the directory by its name. It
// has to be called with the names in order.
func (w *visit) finder() (find func(name string) (e backup.Entry, is bool, err error), err error) {
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

package walk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// carryForward adds the last snapshot's entries, flagged, for those that could not be read with
// stat. If the last snapshot has no such entry, the name is listed, so that a restore knows that
// something was there.
func (w *visit) carryForward(ctx context.Context) error {
	slices.Sort(w.failed)
	path, keys, err := w.allOldPages(ctx)
	if err != nil {
		return err
	}
	known := make([]bool, len(w.failed))
	if err := w.carryEntries(ctx, path, keys, known); err != nil {
		return err
	}
	for i, name := range w.failed {
		if !known[i] {
			w.entries = append(w.entries, backup.Entry{Name: name, Kind: backup.File, Flags: backup.Unreadable | backup.ContentMissing | backup.AttributesUnknown})
		}
	}
	return nil
}

// carryEntries is carryForward for the entries that the last snapshot has at path; known records
// which of w.failed those are.
func (w *visit) carryEntries(ctx context.Context, path string, keys []backup.PageKey, known []bool) error {
	return w.eachOld(ctx, pageNames(path, keys), func(_ string, p *backup.Page) error {
		for i := range p.Entries {
			e := &p.Entries[i]
			n, failed := slices.BinarySearch(w.failed, e.Name)
			if !failed || known[n] {
				continue
			}
			known[n] = true
			if e.Kind != backup.Directory {
				e.Flags |= backup.Unreadable
				if e.Flags&backup.ContentMissing == 0 {
					w.counts.Carried++
				}
			} else if path != w.path {
				// It has no page at this path yet.
				err := w.slice.carry(ctx, backup.Join(w.path, e.Name), backup.Join(path, e.Name), nil, "")
				if err != nil {
					return err
				}
				w.carried = append(w.carried, e.Name)
			}
			w.entries = append(w.entries, *e)
		}
		return nil
	})
}

// carry carries forward the last snapshot's content of a directory and of everything below it. from
// is the path of the directory in the last snapshot. The entries are flagged, so that the next
// snapshot looks again and a restore reports it. If the directory has not moved, its rows change
// only in that flag. cause is the reason; nil if it was reported already.
func (s *slice) carry(ctx context.Context, path, from string, cause error, op string) error {
	job := &s.task.Job
	for v, err := range s.svc.index.Subtree(ctx, job.Shard, job.Base, from) {
		if err != nil {
			return err
		}
		add, err := s.carryPage(&v, path, from)
		if err != nil {
			return err
		}
		if err := s.findings.add(ctx, add); err != nil {
			return err
		}
	}
	if cause == nil {
		return nil
	}
	return s.findings.add(ctx, contribution{path: path, counts: backup.Counts{Errors: 1},
		problems: []backup.Problem{{Path: path, Op: op, Err: plainError(cause)}}})
}

// carryPage is carry for one page.
func (s *slice) carryPage(v *backup.PageVersion, path, from string) (contribution, error) {
	add := contribution{path: path}
	p, err := listing.DecodePage(*v)
	if errors.Is(err, backup.ErrCorrupt) {
		// The row stays unchanged or, if the directory has moved, is missing: a restore names the
		// directory.
		add.counts.Errors++
		add.problems = []backup.Problem{{Path: strings.TrimPrefix(path+strings.TrimPrefix(v.Path, from), "/"), Op: "compare", Err: errDamagedCopy.Error()}}
		return add, nil
	}
	if err != nil {
		return add, fmt.Errorf("index: shard %d, snapshot %d: %w", s.task.Job.Shard, s.task.Job.Base, err)
	}
	if p.Self != nil {
		add.counts.Directories++
		add.counts.Carried++
	}
	for i := range p.Entries {
		if e := &p.Entries[i]; e.Kind != backup.Directory {
			add.counts.Files++
			add.counts.AddBytes(e.Size)
			add.counts.Carried++
		}
	}
	top := v.Path == from && v.Key == 0 && p.Self != nil
	if top {
		p.Self.Flags |= backup.Unreadable
		v.Fingerprint = backup.Fingerprint{}
	}
	if top || path != from {
		// The index returns some listings with columns that are not compressed.
		if top || listing.IsPlain(v.Listing) {
			if v.Listing, err = listing.Encode(nil, &p); err != nil {
				return add, err
			}
		}
		v.Path = path + strings.TrimPrefix(v.Path, from)
		add.pages = []backup.PageVersion{*v}
	}
	return add, nil
}

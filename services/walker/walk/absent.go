package walk

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
)

// Handling of directories that are missing or cannot be read. The rules are I11 and I13: the
// problem is reported, the last good copy is kept, and the next snapshot looks again. Only what is
// known to be gone is treated as gone.

// An unread describes a directory that could not be opened or listed.
type unread struct {
	path, op string
	self     backup.Entry
	known    bool   // the last snapshot has it at path
	from     string // its path in the last snapshot, if any
}

// settle decides how a directory that could not be read is recorded.
func (s *slice) settle(ctx context.Context, u *unread, err error) error {
	gone, err := s.judge(ctx, u.path, err)
	switch {
	case gone && err == nil:
		return s.result.vanished(ctx, u.path, u.known)
	case s.isOurs(ctx, err):
		return err
	case u.known || u.from != u.path:
		return s.carry(ctx, u.path, u.from, err, u.op)
	}
	return s.addUnreadable(ctx, u, err)
}

// judge determines whether the directory at path is gone, as err suggests. An error that it returns
// either ends the attempt (isOurs) or concerns only path.
func (s *slice) judge(ctx context.Context, path string, err error) (gone bool, _ error) {
	switch {
	case s.isOurs(ctx, err):
		return false, err
	case path == "" && source.MayBeAway(err):
		return false, fmt.Errorf("%w: %w", err, backup.ErrUnavailable)
	case path == "" && !s.task.Job.Root.IsZero():
		return false, &source.OtherTreeError{What: fmt.Sprintf("the root of %s cannot be read, and could be before: %v", s.task.Job.Source, err)}
	case path == "":
		return false, fmt.Errorf("%w: %w", errRootGone, err)
	case source.MayBeAway(err):
		if away := s.hold.believe(ctx, s.tree, nil); away != nil {
			return false, away
		}
		return false, err
	case !source.IsGone(err):
		return false, err
	}
	if notThere := s.hold.believe(ctx, s.tree, s.mounts.above(path)); notThere != nil {
		return false, notThere
	}
	if job := &s.task.Job; s.task.Generation == 0 || source.IsProven(job.Root, s.tree.Root(), job.Compare) {
		// No other task has seen the tree: whatever the first task sees is the tree.
		return true, nil
	}
	seen, otherErr := s.seesBeside(ctx, path)
	if seen || otherErr != nil {
		return seen, otherErr
	}
	return false, err
}

// seesBeside reports whether the tree still has a directory that was seen in it besides path: one
// above it, or another of the task. That identifies the tree if its root has no identity of its
// own.
func (s *slice) seesBeside(ctx context.Context, path string) (bool, error) {
	var beside []string
	for above, _ := backup.Split(path); above != ""; above, _ = backup.Split(above) {
		beside = append(beside, above)
	}
	for _, other := range s.task.Directories {
		if other != "" && other != path {
			beside = append(beside, other)
		}
	}
	for _, other := range beside {
		asked := s.hold.ask()
		d, err := s.tree.OpenDirectory(ctx, other)
		s.hold.answer(asked)
		switch {
		case err == nil:
			_ = d.Close() // it was only opened
			return true, nil
		case s.isOurs(ctx, err):
			return false, err
		}
	}
	return false, nil
}

// isOurs reports whether an error ends the attempt, rather than concerning one directory.
func (s *slice) isOurs(ctx context.Context, err error) bool {
	return transient(ctx, err) || isRootGone(err) || errors.Is(err, source.ErrExpired)
}

// carry carries forward the last snapshot's content of a directory and of everything below it,
// which was at from at that time. The entries are flagged, so that the next snapshot looks again
// and a restore reports it. If the directory has not moved, its rows change only in that flag.
// cause is the reason; nil if it was reported already.
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
		if err := s.result.add(ctx, add); err != nil {
			return err
		}
	}
	if cause == nil {
		return nil
	}
	return s.result.add(ctx, contribution{path: path, counts: backup.Counts{Errors: 1},
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
		if v.Listing, err = listing.Encode(nil, &p); err != nil {
			return add, err
		}
	}
	if top || path != from {
		v.Path = path + strings.TrimPrefix(v.Path, from)
		add.pages = []backup.PageVersion{*v}
	}
	return add, nil
}

// addUnreadable adds a directory of which at most its own attributes are known.
func (s *slice) addUnreadable(ctx context.Context, u *unread, cause error) error {
	u.self.Flags |= backup.Unreadable
	page, err := pageOf(u.path, u.self)
	if err != nil {
		return err
	}
	return s.result.add(ctx, contribution{
		path: u.path, pages: []backup.PageVersion{page},
		counts:   backup.Counts{Directories: 1, StatCalls: 1, Errors: 1},
		problems: []backup.Problem{{Path: u.path, Op: u.op, Err: plainError(cause)}},
	})
}

// pageOf returns the page of a directory without entries, which the next snapshot looks at again.
func pageOf(path string, self backup.Entry) (backup.PageVersion, error) {
	data, err := listing.Encode(nil, &backup.Page{Path: path, Self: &self})
	return backup.PageVersion{Path: path, Inode: self.Inode, Listing: data}, err
}

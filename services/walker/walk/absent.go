package walk

import (
	"context"
	"errors"
	"fmt"

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
		return s.findings.vanished(ctx, u.path, u.known)
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
		if away := source.CheckTree(ctx, s.tree, nil); away != nil {
			return false, away
		}
		return false, err
	case !source.IsGone(err):
		return false, err
	}
	if notThere := source.CheckTree(ctx, s.tree, s.mounts.above(path)); notThere != nil {
		return false, notThere
	}
	if job := &s.task.Job; s.task.Generation == 0 || source.IsProven(job.Root, s.tree.Root(), job.Compare) {
		// No other task has seen the tree: what the first task sees is the tree.
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
		d, err := s.tree.OpenDirectory(ctx, other)
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

// addUnreadable adds a directory of which at most its own attributes are known.
func (s *slice) addUnreadable(ctx context.Context, u *unread, cause error) error {
	u.self.Flags |= backup.Unreadable
	page, err := pageOf(u.path, u.self)
	if err != nil {
		return err
	}
	return s.findings.add(ctx, contribution{
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

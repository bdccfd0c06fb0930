package read

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// Handling of files that cannot be read. The rules are I11 and I13: the problem is reported, the
// last good copy is kept, and the next snapshot looks again. Only what is known to be gone is
// treated as gone.

// settle decides how a file is recorded after it was read, or could not be. keep is false if the
// file no longer exists. An error ends the attempt.
func (b *batch) settle(ctx context.Context, at *pageDir, p *page, e *backup.Entry, err error) (keep bool, fatal error) {
	if err == nil {
		if e.Flags&backup.Provisional != 0 {
			p.revisit = true
		}
		return true, nil
	}
	p.revisit = true
	if b.isFatal(ctx, err) {
		return false, err
	}
	if source.IsGone(err) {
		return b.vanished(ctx, at, p, e)
	}
	if err := b.blame(ctx, err); err != nil {
		return false, err
	}
	b.problem(p, e.Name, "read", err)
	return true, b.carryForward(ctx, at, p, e)
}

// isFatal reports whether an error ends the attempt, rather than concerning one file. If content
// could not be stored, later failures may be a consequence of that.
func (b *batch) isFatal(ctx context.Context, err error) bool {
	return ctx.Err() != nil || b.notStored() != nil || source.IsTransient(err) || errors.Is(err, source.ErrExpired)
}

// blame returns nil if err concerns one file only. If the file server as a whole may be the cause,
// blame checks that.
func (b *batch) blame(ctx context.Context, err error) error {
	if !source.MayBeAway(err) {
		return nil
	}
	return b.tree.Check(ctx)
}

// vanished counts an entry as gone, if that can be trusted. If its directory is gone as well, the
// directory may have been renamed to a place where the walker had already been. A restore must then
// report that something is missing: the directory is flagged or, on a page without its attributes,
// the entry is kept without the content that could not be read.
func (b *batch) vanished(ctx context.Context, at *pageDir, p *page, e *backup.Entry) (keep bool, err error) {
	if err := b.confirmGone(ctx, at, p, e.Name); err != nil {
		return false, err
	}
	gone, err := b.isDirectoryGone(ctx, at, p)
	if err != nil {
		return false, err
	}
	p.revisit = true
	b.counts.Vanished++
	if gone && p.Self == nil {
		e.Flags &^= backup.XattrsWanted
		if e.Kind == backup.File {
			withoutCopy(e)
		} else {
			e.Flags |= backup.XattrsUnreadable
		}
		return true, nil
	}
	if gone {
		p.Self.Flags |= backup.ChangedWhileRead
	}
	b.counts.Files--
	return false, nil
}

// isDirectoryGone reports whether the directory of a page no longer exists, or was replaced by
// another.
func (b *batch) isDirectoryGone(ctx context.Context, at *pageDir, p *page) (bool, error) {
	if at.dir == nil || at.gone {
		return true, nil
	}
	if at.stays {
		return false, nil
	}
	now := b.openDir(ctx, p.Path)
	defer now.close()
	if now.err != nil && !source.IsGone(now.err) {
		if b.isFatal(ctx, now.err) {
			return false, now.err
		}
		return false, b.blame(ctx, now.err)
	}
	at.gone = now.err != nil
	if !at.gone && b.msg.Job.Compare.OrAll()&backup.CompareInode != 0 {
		opened := at.dir.Self().Inode
		at.gone = now.dir.Self().Inode != opened || p.Self != nil && p.Self.Inode != opened
	}
	at.stays = !at.gone
	return at.gone, nil
}

// confirmGone returns nil if an entry is certainly gone. If the root of the tree has no identity of
// its own, another entry that the walker saw in the directory must still exist, or at least the
// directory.
func (b *batch) confirmGone(ctx context.Context, at *pageDir, p *page, name string) error {
	path := backup.Join(p.Path, name)
	if err := source.CheckTree(ctx, b.tree, source.MountsAbove(b.msg.Mounts, path)); err != nil {
		return err
	}
	if job := &b.msg.Job; at.proven || source.IsProven(job.Root, b.tree.Root(), job.Compare) {
		return nil
	}
	var err error
	if at.proven, err = b.seesBeside(ctx, at, p); at.proven || err != nil {
		return err
	}
	return fmt.Errorf("%q is gone with all other entries of its directory, so its file system may not be mounted: %w", path, backup.ErrUnavailable)
}

// seesBeside reports whether the directory of a page still has another entry that the walker saw in
// it. For a page whose only entry is gone, an open directory suffices.
func (b *batch) seesBeside(ctx context.Context, at *pageDir, p *page) (bool, error) {
	if at.dir == nil {
		return false, nil
	}
	if len(p.Entries) == 1 && p.Path != "" {
		return true, nil
	}
	var entries []backup.Entry
	for {
		var err error
		entries, _, err = at.dir.Read(ctx, entries[:0], func(string, string, error) {})
		switch {
		case err == nil && slices.ContainsFunc(entries, p.knows):
			return true, nil
		case err == nil:
		case b.isFatal(ctx, err):
			return false, err
		default: // mostly the end of the directory
			return false, nil
		}
	}
}

// knows reports whether the walker saw the entry in this page.
func (p *page) knows(e backup.Entry) bool {
	return slices.ContainsFunc(p.Entries, func(seen backup.Entry) bool { return seen.Name == e.Name && seen.Kind == e.Kind })
}

// carryForward replaces a file that cannot be read by its last good copy.
func (b *batch) carryForward(ctx context.Context, at *pageDir, p *page, e *backup.Entry) error {
	old, err := b.oldEntry(ctx, at, p, e.Name)
	if err != nil {
		return err
	}
	if old == nil || old.Kind != backup.File || old.Flags&backup.ContentMissing != 0 {
		withoutCopy(e)
		return nil
	}
	*e = *old
	e.Flags |= backup.Unreadable
	b.counts.Carried++
	return b.placeXattrs(ctx, e, old.Xattrs, old.XattrChunk)
}

// withoutCopy makes e a file of which only the name and the attributes are known.
func withoutCopy(e *backup.Entry) {
	e.Content, e.Xattrs, e.XattrChunk = backup.Content{}, nil, backup.Ref{}
	e.Flags |= backup.Unreadable | backup.ContentMissing
}

const (
	// maxProblemBytes is the room for reported problems in the batch's message; all problems are
	// counted and flagged.
	maxProblemBytes = 96 << 10
	problemOverhead = 64
)

func (b *batch) problem(p *page, name, op string, err error) {
	b.counts.Errors++
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	path := p.Path
	if name != "" {
		path = backup.Join(p.Path, name)
	}
	b.problemBytes += len(path) + len(err.Error()) + problemOverhead
	if b.problemBytes > maxProblemBytes {
		return
	}
	b.problems = append(b.problems, backup.Problem{Path: path, Op: op, Err: err.Error()})
}

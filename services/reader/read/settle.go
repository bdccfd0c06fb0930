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

// What becomes of files that cannot be read. The rule is I11 and I13: the
// problem is reported, the last good copy is kept, and the next snapshot looks
// again; and only what is known to be gone is gone.

// settle decides what becomes of a file that was read, or could not be. keep is
// false where it is not there any more. An error ends the attempt.
func (b *batch) settle(ctx context.Context, at *place, p *page, e *backup.Entry, err error) (keep bool, fatal error) {
	if err == nil {
		if e.Flags&backup.Provisional != 0 {
			p.again = true
		}
		return true, nil
	}
	p.again = true
	if isFatal(ctx, err) {
		return false, err
	}
	if source.IsGone(err) {
		return false, b.vanished(ctx, at, p, e.Name)
	}
	if err := b.blame(ctx, err); err != nil {
		return false, err
	}
	b.problem(p, e.Name, "read", err)
	return true, b.carryForward(ctx, at, p, e)
}

// isFatal reports whether an error ends the attempt, rather than being about
// one file.
func isFatal(ctx context.Context, err error) bool {
	return ctx.Err() != nil || source.IsTransient(err) || errors.Is(err, source.ErrExpired)
}

// blame returns nil where err is the fault of one file. Where it may be that of
// the file server as a whole, that is found out.
func (b *batch) blame(ctx context.Context, err error) error {
	if !source.MayBeAway(err) {
		return nil
	}
	return b.tree.Check(ctx)
}

// vanished counts an entry as gone, where that can be believed.
func (b *batch) vanished(ctx context.Context, at *place, p *page, name string) error {
	if err := b.believeGone(ctx, at, p, name); err != nil {
		return err
	}
	p.again = true
	b.counts.Files--
	b.counts.Vanished++
	return nil
}

// believeGone returns nil where it can be believed that an entry is gone. Where
// nothing tells the root of the tree from others, something else that the walker
// saw in the directory must still be there, or at least the directory.
func (b *batch) believeGone(ctx context.Context, at *place, p *page, name string) error {
	path := backup.Join(p.Path, name)
	if err := source.Believe(ctx, b.tree, source.MountsAbove(b.msg.Mounts, path)); err != nil {
		return err
	}
	if job := &b.msg.Job; at.proven || source.IsProven(job.Root, b.tree.Root(), job.Compare) {
		return nil
	}
	var err error
	if at.proven, err = b.seesBeside(ctx, at, p); at.proven || err != nil {
		return err
	}
	return fmt.Errorf("%q is gone, with all that was beside it, and nothing tells whether its file system is mounted: %w", path, backup.ErrUnavailable)
}

// seesBeside reports whether the directory of a page has an entry that the walker
// saw in it. Of a page with one entry, which is gone, the directory itself has to do.
func (b *batch) seesBeside(ctx context.Context, at *place, p *page) (bool, error) {
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
		case isFatal(ctx, err):
			return false, err
		default: // the end, most of the time
			return false, nil
		}
	}
}

// knows reports whether the walker saw the entry in this page.
func (p *page) knows(e backup.Entry) bool {
	return slices.ContainsFunc(p.Entries, func(seen backup.Entry) bool { return seen.Name == e.Name && seen.Kind == e.Kind })
}

// carryForward puts the last good copy in the place of a file that cannot be read.
func (b *batch) carryForward(ctx context.Context, at *place, p *page, e *backup.Entry) error {
	old, err := b.oldEntry(ctx, at, p, e.Name)
	if err != nil {
		return err
	}
	if old == nil || old.Kind != backup.File || old.Flags&backup.ContentMissing != 0 {
		e.Content, e.Xattrs, e.XattrChunk = backup.Content{}, nil, backup.Ref{}
		e.Flags |= backup.Unreadable | backup.ContentMissing
		return nil
	}
	*e = *old
	e.Flags |= backup.Unreadable
	b.counts.Carried++
	return b.placeXattrs(ctx, e, old.Xattrs, old.XattrChunk)
}

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

package read

import (
	"context"
	"errors"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
)

// readXattrsAlone reads the extended attributes of a file whose content the snapshot has already. A
// file that has changed since it was walked is read completely.
func (b *batch) readXattrsAlone(ctx context.Context, at *pageDir, p *page, e *backup.Entry) (keep bool, err error) {
	changed := false
	err = b.retryStale(ctx, at, p, func(bool) error {
		f, err := b.open(ctx, at, e.Name)
		if err != nil {
			return err
		}
		defer f.Close()
		now, err := f.Stat()
		if err != nil {
			return err
		}
		if changed = !sameFile(&now, e); changed {
			return nil
		}
		return b.takeXattrs(ctx, e, f.Xattrs)
	})
	if changed || source.IsGone(err) {
		return b.readEntry(ctx, at, p, e) // it settles the entry
	}
	if err != nil {
		return true, b.xattrsFailed(ctx, at, p, e, err)
	}
	return true, nil
}

// readFileXattrs gives e the extended attributes of its open file. last is as for readFile.
func (b *batch) readFileXattrs(ctx context.Context, at *pageDir, p *page, e *backup.Entry, f source.File, last bool) error {
	err := b.takeXattrs(ctx, e, f.Xattrs)
	if err == nil || errors.Is(err, source.ErrStale) && !last {
		return err
	}
	return b.xattrsFailed(ctx, at, p, e, err)
}

// readOwnXattrs reads the extended attributes of a page's directory, or of one of its entries that
// is not a regular file. keep is false if it no longer exists.
func (b *batch) readOwnXattrs(ctx context.Context, at *pageDir, p *page, e *backup.Entry) (keep bool, _ error) {
	err := b.retryStale(ctx, at, p, func(bool) error {
		return b.takeXattrs(ctx, e, func() ([]backup.Xattr, error) { return at.dir.Xattrs(ctx, e.Name, e.Kind) })
	})
	switch {
	case err == nil:
		return true, nil
	case e.Name != "" && source.IsGone(err):
		return b.vanished(ctx, at, p, e)
	}
	return true, b.xattrsFailed(ctx, at, p, e, err)
}

// takeXattrs gives e the extended attributes that get returns.
func (b *batch) takeXattrs(ctx context.Context, e *backup.Entry, get func() ([]backup.Xattr, error)) error {
	xattrs, err := get()
	if err != nil {
		return err
	}
	e.Flags &^= backup.XattrsWanted | backup.XattrsUnreadable | backup.XattrsUnshown
	return b.placeXattrs(ctx, e, xattrs, backup.Ref{})
}

// xattrsFailed keeps the last snapshot's extended attributes of an entry whose attributes cannot be
// read now, unless err ends the attempt.
func (b *batch) xattrsFailed(ctx context.Context, at *pageDir, p *page, e *backup.Entry, err error) error {
	if b.isFatal(ctx, err) {
		return err
	}
	if errors.Is(err, source.ErrNoXattrs) && b.hasNone(ctx, at, e) {
		return nil
	}
	if away := b.blame(ctx, err); away != nil {
		return away
	}
	p.revisit = true
	b.problem(p, e.Name, "xattr", err)
	e.Flags = e.Flags&^backup.XattrsWanted | backup.XattrsUnreadable
	if len(e.Xattrs) > 0 || e.XattrChunk.Length > 0 {
		return nil // they are the old ones
	}
	old, err := b.oldEntry(ctx, at, p, e.Name)
	if err != nil || old == nil || old.Kind != e.Kind {
		return err
	}
	return b.placeXattrs(ctx, e, old.Xattrs, old.XattrChunk)
}

// hasNone settles an entry of which the file system shows no extended attributes, unless the last
// snapshot has some.
func (b *batch) hasNone(ctx context.Context, at *pageDir, e *backup.Entry) bool {
	unshown := backup.XattrsUnshown
	switch {
	case at.dir != nil && at.shown.In(ctx, at.dir): // of other kinds of entries
		unshown = 0
	case len(e.Xattrs) > 0 || e.XattrChunk.Length > 0 || e.Flags&backup.XattrsUnreadable != 0:
		return false
	case e.Flags&backup.XattrsWanted != 0 && !b.saidHidden:
		b.saidHidden = true
		b.svc.opts.Log.Warn("the walker sees extended attributes, and the mount of this worker shows none: mount the filer alike on all workers",
			"filer", b.msg.Job.FilerName, "shard", b.msg.Job.ShardName, "snapshot", b.msg.Job.Snapshot.Short())
	}
	e.Flags = e.Flags&^(backup.XattrsWanted|backup.XattrsUnreadable) | unshown
	e.Xattrs, e.XattrChunk = nil, backup.Ref{}
	return true
}

// inlineXattrBytes is the room for extended attributes in the batch's listings, so that these still
// fit into one message. Further ones are stored as chunks.
const inlineXattrBytes = 48 << 10

// placeXattrs puts extended attributes into the entry or, if there is no room, into a chunk. They
// may be in a chunk already.
func (b *batch) placeXattrs(ctx context.Context, e *backup.Entry, xattrs []backup.Xattr, stored backup.Ref) (err error) {
	e.Xattrs, e.XattrChunk = nil, stored
	if len(xattrs) == 0 {
		return nil
	}
	size := 0
	for i := range xattrs {
		size += len(xattrs[i].Name) + len(xattrs[i].Value) + 4
	}
	if b.inlineBytes+size <= inlineXattrBytes {
		b.inlineBytes += size
		e.Xattrs = xattrs
		return nil
	}
	e.XattrChunk, err = b.bufferChunk(ctx, listing.EncodeXattrs(nil, xattrs))
	return err
}

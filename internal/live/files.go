package live

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/diff"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
)

// Files reads of a source what a walk does not read: the extended attributes of files and, with a
// Hasher, their content.
type Files struct {
	Tree    source.Tree
	Compare backup.Compare       // what the snapshot compares
	Hasher  *Hasher              // nil: content is not read
	Problem func(backup.Problem) // called for each entry that could not be read
	// Unsure counts the files whose times do not show whether they have changed: they may have
	// changed just after they were read for the snapshot, or could not be read then.
	Unsure int64

	path string // of dir
	dir  source.Directory
}

// Settle decides what is not known of a change.
func (s *Files) Settle(ctx context.Context, c *diff.Change) error {
	large := c.Old.XattrChunk.Length > 0 && c.New.XattrChunk.Length == 0
	unread := c.Differs & (diff.ContentUnread | diff.XattrsUnread)
	switch {
	case c.Differs&diff.Type != 0, unread == 0 && !large:
		return nil
	case unread == 0:
		s.settleXattrs(c, c.New.Xattrs)
		return nil
	case s.Hasher == nil && s.sameState(c):
		s.Unsure++
		c.Differs &^= unread
		return nil
	}
	err := s.read(ctx, c)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil || source.IsGone(err) || errors.Is(err, source.ErrReplaced) || errors.Is(err, source.ErrStale):
		return nil // it changes now: what is not known stays unknown
	}
	s.Problem(backup.Problem{Path: c.Path, Op: "read", Err: err.Error()})
	return nil
}

// sameState reports whether the attributes by which a backup decides are equal.
func (s *Files) sameState(c *diff.Change) bool {
	old := *c.Old
	old.Flags = 0
	return listing.Unchanged(s.Compare, c.New, &old)
}

// read reads what is not known, and decides that.
func (s *Files) read(ctx context.Context, c *diff.Change) error {
	above, name := backup.Split(c.Path)
	if c.New.Kind == backup.Directory {
		above, name = c.Path, ""
	}
	dir, err := s.open(ctx, above)
	if err != nil {
		return err
	}
	if c.New.Kind != backup.File {
		xattrs, err := dir.Xattrs(ctx, name, c.New.Kind)
		return s.settleRead(c, xattrs, err)
	}
	f, err := dir.OpenFile(ctx, name)
	if err != nil {
		return err
	}
	defer f.Close()
	xattrs, err := f.Xattrs()
	err = s.settleRead(c, xattrs, err)
	if s.Hasher != nil && c.Differs&diff.ContentUnread != 0 {
		err = errors.Join(err, s.settleContent(ctx, c, f))
	}
	return err
}

// settleRead is settleXattrs for what reading them has returned.
func (s *Files) settleRead(c *diff.Change, xattrs []backup.Xattr, err error) error {
	if errors.Is(err, source.ErrNoXattrs) && len(c.Old.Xattrs) == 0 && c.Old.XattrChunk.Length == 0 {
		err = nil
	}
	if err == nil {
		s.settleXattrs(c, xattrs)
	}
	return err
}

// settleXattrs compares extended attributes. Large ones are in a chunk, whose name only a Hasher
// can compute.
func (s *Files) settleXattrs(c *diff.Change, xattrs []backup.Xattr) {
	c.Differs &^= diff.Xattrs | diff.XattrsUnread
	now, old := listing.EncodeXattrs(nil, xattrs), c.Old.XattrChunk
	switch {
	case old.Length == 0 && c.Old.Flags&(backup.XattrsUnreadable|backup.XattrsUnshown) != 0 && len(xattrs) > 0:
		c.Differs |= diff.XattrsUnread // the snapshot does not know them
	case old.Length == 0 && !bytes.Equal(now, listing.EncodeXattrs(nil, c.Old.Xattrs)), old.Length > 0 && old.Length != int64(len(now)):
		c.Differs |= diff.Xattrs
	case old.Length == 0:
	case s.Hasher == nil:
		c.Differs |= diff.XattrsUnread
	case s.Hasher.ref(now).Chunk != old.Chunk:
		c.Differs |= diff.Xattrs
	}
	c.New.Xattrs, c.New.XattrChunk = xattrs, backup.Ref{}
}

// settleContent compares the content of a file. If it changes meanwhile, its content is not known.
func (s *Files) settleContent(ctx context.Context, c *diff.Change, f source.File) error {
	content, err := s.Hasher.content(ctx, f, c.New.Size)
	if err != nil {
		return err
	}
	after, err := f.Stat()
	if err != nil || after.Size != c.New.Size || after.Mtime != c.New.Mtime {
		return err
	}
	c.Differs &^= diff.ContentUnread
	if old := &c.Old.Content; old.Depth != content.Depth || !slices.Equal(old.Refs, content.Refs) {
		c.Differs |= diff.Content
	}
	return nil
}

// open opens a directory, or returns the one that is open.
func (s *Files) open(ctx context.Context, path string) (source.Directory, error) {
	if s.dir != nil && s.path == path {
		return s.dir, nil
	}
	s.Close()
	dir, err := s.Tree.OpenDirectory(ctx, path)
	if err == nil {
		s.path, s.dir = path, dir
	}
	return dir, err
}

// Close closes the directory that is open.
func (s *Files) Close() {
	if s.dir != nil {
		_ = s.dir.Close() // it was only read
		s.dir = nil
	}
}

// Package browse finds the entry at a path of a committed snapshot. It reads only pages of the
// index.
package browse

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// A Catalog yields the pages of a snapshot. The index implements it.
type Catalog interface {
	// Pages is as in index.Catalog.
	Pages(ctx context.Context, id backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error]
}

// CleanPath turns a path that a user wrote into one within a shard. It removes "." components, and
// slashes that are repeated or at either end. For "..", the error is backup.ErrInvalid.
func CleanPath(path string) (string, error) {
	var names []string
	for name := range strings.SplitSeq(path, "/") {
		if name == "" || name == "." {
			continue
		}
		if err := backup.CheckName(name); err != nil {
			return "", fmt.Errorf("path %q: %w", path, err)
		}
		names = append(names, name)
	}
	return strings.Join(names, "/"), nil
}

// Lookup returns the entry at path, which must be a result of CleanPath. The entry of a directory
// has all its attributes and its last name ("" for the root). If the directory's first page is
// missing or damaged, only kind and name are set, and Entries fails for the directory. Errors are
// backup.ErrNotFound (the snapshot has no such path) and backup.ErrCorrupt (pages that would decide
// that are missing from the index, or damaged).
func Lookup(ctx context.Context, c Catalog, id backup.SnapshotID, path string) (backup.Entry, error) {
	self, err := Directory(ctx, c, id, path)
	switch {
	case errors.Is(err, backup.ErrCorrupt):
		_, name := backup.Split(path)
		return backup.Entry{Name: name, Kind: backup.Directory}, nil
	case err != nil:
		return backup.Entry{}, err
	case self != nil:
		return *self, nil
	}
	e, err := listed(ctx, c, id, path)
	switch {
	case errors.Is(err, backup.ErrNotFound): // also for a directory above it
		return backup.Entry{}, notFound(id, path)
	case err != nil:
		return backup.Entry{}, err
	case e.Kind == backup.Directory:
		return backup.Entry{}, lacksPages(path, &Chain{})
	}
	return e, nil
}

// listed returns the entry that the parent directory has under the last name of path. It reads the
// directories above the parent as far as necessary to prove that the path is not in the snapshot.
func listed(ctx context.Context, c Catalog, id backup.SnapshotID, path string) (backup.Entry, error) {
	if path == "" {
		return backup.Entry{}, lacksPages(path, &Chain{}) // every snapshot has a root
	}
	dir, name := backup.Split(path)
	for e, err := range Entries(ctx, c, id, dir) {
		if err != nil {
			return backup.Entry{}, err
		}
		if e.Name == name {
			return e, nil
		}
	}
	return backup.Entry{}, notFound(id, path)
}

func notFound(id backup.SnapshotID, path string) error {
	return fmt.Errorf("no %q in snapshot %s: %w", path, id.Short(), backup.ErrNotFound)
}

// Directory returns the attributes of the directory at path. It returns nil if the index has no
// page of it: there is no such directory, or its pages are missing (Lookup determines which).
func Directory(ctx context.Context, c Catalog, id backup.SnapshotID, path string) (*backup.Entry, error) {
	for v, err := range c.Pages(ctx, id, path) {
		if err != nil {
			return nil, err
		}
		if v.Path != path {
			return nil, nil
		}
		if v.Key != 0 {
			return nil, fmt.Errorf("directory %q: the index lacks its first page; another snapshot may have it: %w", path, backup.ErrCorrupt)
		}
		page, err := listing.DecodePage(v)
		if err != nil {
			return nil, err
		}
		if page.Self == nil {
			return nil, fmt.Errorf("first page of %q has no attributes: %w", path, backup.ErrCorrupt)
		}
		_, page.Self.Name = backup.Split(path)
		return page.Self, nil
	}
	return nil, nil
}

// Entries yields the entries of the directory at path, page by page; with more than one page, they
// are not in the order of names. Subdirectories are as their parent lists them, with Name, Kind,
// Inode and Flags only. If pages of the directory are missing or damaged, Entries last yields an
// error that wraps backup.ErrCorrupt. If there is no such directory, it yields backup.ErrNotFound.
func Entries(ctx context.Context, c Catalog, id backup.SnapshotID, path string) iter.Seq2[backup.Entry, error] {
	return func(yield func(backup.Entry, error) bool) {
		var chain Chain
		var damaged error
		for v, err := range c.Pages(ctx, id, path) {
			if err != nil {
				yield(backup.Entry{}, err)
				return
			}
			if v.Path != path {
				break // pages of a directory come before those below it
			}
			page, err := listing.DecodePage(v)
			if err != nil {
				damaged = err // the other pages can still be read
				continue
			}
			chain.Add(page.Key, page.Next)
			for _, e := range page.Entries {
				if !yield(e, nil) {
					return
				}
			}
		}
		err := damaged
		switch {
		case damaged != nil:
		case chain.pages == 0:
			err = noDirectory(ctx, c, id, path)
		default:
			err = lacksPages(path, &chain)
		}
		if err != nil {
			yield(backup.Entry{}, err)
		}
	}
}

// lacksPages returns nil if the chain is complete.
func lacksPages(path string, chain *Chain) error {
	if err := chain.Err(); err != nil {
		return fmt.Errorf("directory %q: %w", path, err)
	}
	return nil
}

// noDirectory returns the reason why the index has no page of the directory at path.
func noDirectory(ctx context.Context, c Catalog, id backup.SnapshotID, path string) error {
	e, err := listed(ctx, c, id, path)
	switch {
	case err != nil:
		return err
	case e.Kind != backup.Directory:
		return fmt.Errorf("%q is a %v, not a directory: %w", path, e.Kind, backup.ErrNotFound)
	}
	return lacksPages(path, &Chain{})
}

// Unread returns the topmost directory, at path or above it, that could not be read when the
// snapshot was taken. Everything below it is as an earlier snapshot had it. ok is false if there is
// no such directory. With an error that wraps backup.ErrCorrupt, dir is the directory whose page is
// needed.
func Unread(ctx context.Context, c Catalog, id backup.SnapshotID, path string) (dir string, ok bool, err error) {
	for end := 0; end <= len(path); end++ {
		if end > 0 && end < len(path) && path[end] != '/' {
			continue
		}
		dir = path[:end]
		self, err := Directory(ctx, c, id, dir)
		switch {
		case err != nil:
			return dir, false, err
		case self == nil:
			return dir, false, lacksPages(dir, &Chain{})
		case self.Flags&backup.Unreadable != 0:
			return dir, true, nil
		}
	}
	return "", false, nil
}

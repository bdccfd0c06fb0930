// Package browse finds what is at a path of a committed snapshot. It reads
// pages from the index and nothing else.
package browse

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// A Catalog yields the pages of a snapshot: the index.
type Catalog interface {
	// Pages is as in index.Catalog.
	Pages(ctx context.Context, id backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error]
}

// CleanPath turns what a user wrote into a path within a shard: without
// slashes at its ends or twice, and without "." components. ".." is backup.ErrInvalid.
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

// Lookup returns the entry at path, which CleanPath has made. A directory has
// all its attributes, and its last name ("" for the root). backup.ErrNotFound:
// there is no such path, or it is a directory that could not be read.
func Lookup(ctx context.Context, c Catalog, id backup.SnapshotID, path string) (backup.Entry, error) {
	self, err := Directory(ctx, c, id, path)
	if err != nil || self != nil {
		if self == nil {
			return backup.Entry{}, err
		}
		return *self, nil
	}
	notFound := fmt.Errorf("no %q in snapshot %s: %w", path, id.Short(), backup.ErrNotFound)
	if path == "" {
		return backup.Entry{}, notFound
	}
	dir, name := backup.Split(path)
	for e, err := range Entries(ctx, c, id, dir) {
		if err != nil {
			return backup.Entry{}, err
		}
		if e.Name != name {
			continue
		}
		if e.Kind == backup.Directory {
			return backup.Entry{}, fmt.Errorf("directory %q could not be read when it was backed up: %w", path, backup.ErrNotFound)
		}
		return e, nil
	}
	return backup.Entry{}, notFound
}

// Directory returns the attributes of the directory at path; nil if there is none.
func Directory(ctx context.Context, c Catalog, id backup.SnapshotID, path string) (*backup.Entry, error) {
	for v, err := range c.Pages(ctx, id, path) {
		if err != nil {
			return nil, err
		}
		if v.Path != path || v.Key != 0 {
			return nil, nil
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

// Entries yields the entries of the directory at path, page by page (not in
// the order of names where there are several). Subdirectories come as their
// parent lists them: Name, Kind and Inode only.
func Entries(ctx context.Context, c Catalog, id backup.SnapshotID, path string) iter.Seq2[backup.Entry, error] {
	return func(yield func(backup.Entry, error) bool) {
		for v, err := range c.Pages(ctx, id, path) {
			if err != nil {
				yield(backup.Entry{}, err)
				return
			}
			if v.Path != path {
				return // pages of a directory come before those below it
			}
			page, err := listing.DecodePage(v)
			if err != nil {
				yield(backup.Entry{}, err)
				return
			}
			for _, e := range page.Entries {
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}

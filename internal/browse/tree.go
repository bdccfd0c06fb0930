package browse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// maxExpected is the maximum number of pending directories that a walk remembers. Further ones are
// looked up one by one.
const maxExpected = 100_000

// A Visitor receives what Walk finds, in the order of a walk. An error of a method ends the walk,
// and is Walk's.
type Visitor interface {
	// Page receives each page before what is on it, also a damaged one.
	Page(v *backup.PageVersion)
	// Directory receives a directory before what is in it. self is nil if its first page is missing
	// or damaged: only the name is known. listed is false if the parent does not list it.
	Directory(path string, self *backup.Entry, listed bool) error
	// Entry receives an entry that is not a directory.
	Entry(path string, e *backup.Entry) error
	// Absent receives a directory that its parent lists and of which the index has no page, after
	// the rest of its parent.
	Absent(path string, e *backup.Entry) error
	// Incomplete reports that pages of a directory are missing or damaged.
	Incomplete(path string, err error)
}

// Walk visits the directory at top of a committed snapshot, and everything below it.
func Walk(ctx context.Context, c Catalog, id backup.SnapshotID, top string, v Visitor) error {
	w := NewTree(c, id, top, v)
	for version, err := range c.Pages(ctx, id, top) {
		if err != nil {
			return err
		}
		v.Page(&version)
		page, err := listing.DecodePage(version)
		if err != nil { // neither its entries nor its next page are known
			page = backup.Page{Path: version.Path, Key: version.Key}
			v.Incomplete(version.Path, err)
		}
		if err := w.Add(ctx, &page, err != nil); err != nil {
			return err
		}
	}
	return w.End()
}

// A Tree is a walk whose pages come from a caller that decodes them, in the order of the index. It
// calls all methods of its Visitor except Page.
type Tree struct {
	v   Visitor
	c   Catalog
	id  backup.SnapshotID
	top string

	open     []openDirectory // from top to the current directory
	expected int             // in all of open
}

// NewTree begins the walk of a committed snapshot from top.
func NewTree(c Catalog, id backup.SnapshotID, top string, v Visitor) *Tree {
	return &Tree{v: v, c: c, id: id, top: top}
}

// End reports what is missing when all pages were added.
func (w *Tree) End() error {
	if w.open == nil {
		return lacksPages(w.top, &Chain{})
	}
	return w.leave("", true)
}

// An openDirectory is a directory whose subdirectories are not all visited yet.
type openDirectory struct {
	path     string
	chain    Chain
	damaged  bool                    // that pages are missing was reported
	expected map[string]backup.Entry // subdirectories still to come, by name
	more     bool                    // there are others that are not in expected
}

// Add visits what is on the next page. A damaged page has only Path and Key, and was reported.
func (w *Tree) Add(ctx context.Context, page *backup.Page, damaged bool) error {
	if err := w.leave(page.Path, false); err != nil {
		return err
	}
	if n := len(w.open); n == 0 || w.open[n-1].path != page.Path {
		if err := w.enter(page); err != nil {
			return err
		}
	}
	d := &w.open[len(w.open)-1]
	d.chain.Add(page.Key, page.Next)
	d.damaged = d.damaged || damaged
	for n := range page.Entries {
		e := &page.Entries[n]
		path := backup.Join(page.Path, e.Name)
		if e.Kind == backup.Directory { // its own first page follows
			if err := w.expect(ctx, path, e); err != nil {
				return err
			}
			continue
		}
		if err := w.v.Entry(path, e); err != nil {
			return err
		}
	}
	return nil
}

// enter begins another directory.
func (w *Tree) enter(page *backup.Page) error {
	parent, name := backup.Split(page.Path)
	listed := page.Path == w.top
	if n := len(w.open); n > 0 && w.open[n-1].path == parent {
		d := &w.open[n-1]
		_, listed = d.expected[name]
		if listed {
			delete(d.expected, name)
			w.expected--
		}
		listed = listed || d.more || d.damaged
	}
	if err := w.v.Directory(page.Path, page.Self, listed); err != nil {
		return err
	}
	w.open = append(w.open, openDirectory{path: page.Path, expected: map[string]backup.Entry{}})
	return nil
}

// expect records a directory whose pages should follow.
func (w *Tree) expect(ctx context.Context, path string, e *backup.Entry) error {
	d := &w.open[len(w.open)-1]
	if w.expected < maxExpected {
		w.expected++
		d.expected[strings.Clone(e.Name)] = backup.Entry{Name: strings.Clone(e.Name), Kind: e.Kind, Inode: e.Inode}
		return nil
	}
	d.more = true
	self, err := Directory(ctx, w.c, w.id, path)
	if err == nil && self == nil {
		return w.absent(path, e)
	}
	if errors.Is(err, backup.ErrCorrupt) {
		return nil // its pages follow
	}
	return err
}

// leave ends all directories that do not contain path, or, if all is set, all directories. Expected
// directories that did not come are reported.
func (w *Tree) leave(path string, all bool) error {
	for len(w.open) > 0 {
		d := &w.open[len(w.open)-1]
		if !all && (path == d.path || d.path == "" || strings.HasPrefix(path, d.path+"/")) {
			return nil
		}
		if err := lacksPages(d.path, &d.chain); err != nil && !d.damaged {
			w.v.Incomplete(d.path, err)
		}
		for _, name := range slices.Sorted(maps.Keys(d.expected)) {
			e := d.expected[name]
			if err := w.absent(backup.Join(d.path, name), &e); err != nil {
				return err
			}
		}
		w.expected -= len(d.expected)
		w.open = w.open[:len(w.open)-1]
	}
	return nil
}

func (w *Tree) absent(path string, e *backup.Entry) error {
	w.v.Incomplete(path, (&Chain{}).Err())
	return w.v.Absent(path, e)
}

// Differs returns an error that wraps backup.ErrCorrupt if the pages that were read of a whole
// snapshot are not those that it was committed with. A zero want is not known.
func Differs(read, want backup.PageSet) error {
	switch {
	case want.Pages == 0 || read == want:
		return nil
	case read.Pages == want.Pages:
		return fmt.Errorf("the index has pages of the snapshot that differ from those it was committed with: %w", backup.ErrCorrupt)
	}
	return fmt.Errorf("the index has %d pages of the snapshot, which was committed with %d: %w", read.Pages, want.Pages, backup.ErrCorrupt)
}

// DigestOf returns the digest of a page, with which PageSet.Add counts it.
func DigestOf(v *backup.PageVersion) backup.PageDigest {
	if v.Digest != (backup.PageDigest{}) { // DecodePage compares the page with it
		return v.Digest
	}
	return listing.Digest(v)
}

package cli

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// maxExpected is the maximum number of pending directories that ls -R remembers. Further ones are
// looked up one by one.
const maxExpected = 100_000

// A treeLister lists everything below a directory, in the order of a walk. A directory that its
// parent lists but that has no pages is listed by its name, after the rest of its parent, and is
// reported at the end.
type treeLister struct {
	*lsCommand
	index    index.Index
	snapshot backup.SnapshotID
	top      string

	open     []openDirectory // from top to the current directory
	expected int             // in all of open
}

// An openDirectory is a directory whose subdirectories are not all listed yet.
type openDirectory struct {
	path     string
	chain    browse.Chain
	expected map[string]backup.Entry // subdirectories still to be listed, by name
}

func (l *treeLister) list(ctx context.Context) error {
	for v, err := range l.index.Pages(ctx, l.snapshot, l.top) {
		if err != nil {
			return err
		}
		page, err := listing.DecodePage(v)
		if err != nil {
			page = backup.Page{Path: v.Path, Key: v.Key} // neither its entries nor its next page are known
			l.flaws.addIncomplete(v.Path)
		}
		if err := l.page(ctx, &page); err != nil {
			return err
		}
	}
	return l.leave("", true)
}

func (l *treeLister) page(ctx context.Context, page *backup.Page) error {
	if err := l.leave(page.Path, false); err != nil {
		return err
	}
	if n := len(l.open); n == 0 || l.open[n-1].path != page.Path {
		if err := l.enter(page); err != nil {
			return err
		}
	}
	l.open[len(l.open)-1].chain.Add(page.Key, page.Next)
	for n := range page.Entries {
		e := &page.Entries[n]
		path := backup.Join(page.Path, e.Name)
		if e.Kind == backup.Directory { // its own first page follows
			if err := l.expect(ctx, path, e); err != nil {
				return err
			}
			continue
		}
		if err := l.entry(path, path, e); err != nil {
			return err
		}
	}
	return nil
}

// enter starts the list of another directory.
func (l *treeLister) enter(page *backup.Page) error {
	parent, name := backup.Split(page.Path)
	self := page.Self
	if self == nil { // its first page is missing or damaged
		self = nameOnly(&backup.Entry{Name: name, Kind: backup.Directory})
	}
	if page.Path != l.top {
		if err := l.entry(page.Path, page.Path, self); err != nil {
			return err
		}
	}
	if n := len(l.open); n > 0 && l.open[n-1].path == parent {
		if _, ok := l.open[n-1].expected[name]; ok {
			delete(l.open[n-1].expected, name)
			l.expected--
		}
	}
	l.open = append(l.open, openDirectory{path: page.Path, expected: map[string]backup.Entry{}})
	return nil
}

// expect records a directory whose pages should follow.
func (l *treeLister) expect(ctx context.Context, path string, e *backup.Entry) error {
	if l.expected < maxExpected {
		l.expected++
		l.open[len(l.open)-1].expected[e.Name] = backup.Entry{Name: strings.Clone(e.Name), Kind: e.Kind, Inode: e.Inode}
		return nil
	}
	self, err := browse.Directory(ctx, l.index, l.snapshot, path)
	if err == nil && self == nil {
		err = l.missing(path, e)
	}
	return err
}

// leave ends the lists of all directories that do not contain path, or, if all is set, of all
// directories. Expected directories that did not appear are reported.
func (l *treeLister) leave(path string, all bool) error {
	for len(l.open) > 0 {
		d := &l.open[len(l.open)-1]
		if !all && (path == d.path || d.path == "" || strings.HasPrefix(path, d.path+"/")) {
			return nil
		}
		if d.chain.Err() != nil {
			l.flaws.addIncomplete(d.path)
		}
		for _, name := range slices.Sorted(maps.Keys(d.expected)) {
			e := d.expected[name]
			if err := l.missing(backup.Join(d.path, name), &e); err != nil {
				return err
			}
		}
		l.expected -= len(d.expected)
		l.open = l.open[:len(l.open)-1]
	}
	return nil
}

// missing lists a directory of which only the name is known.
func (l *treeLister) missing(path string, e *backup.Entry) error {
	l.flaws.addIncomplete(path)
	return l.entry(path, path, nameOnly(e))
}

// nameOnly returns the entry of a directory of which only the name is known.
func nameOnly(e *backup.Entry) *backup.Entry {
	return &backup.Entry{Name: e.Name, Kind: e.Kind, Inode: e.Inode, Flags: backup.Unreadable | backup.AttributesUnknown}
}

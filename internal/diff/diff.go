package diff

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// An Index has the pages of snapshots. index.Catalog implements it.
type Index interface {
	Pages(ctx context.Context, id backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error]
	Added(ctx context.Context, id, base backup.SnapshotID) iter.Seq2[backup.PageChange, error]
	Ended(ctx context.Context, id, base backup.SnapshotID) iter.Seq2[backup.PageChange, error]
}

// A Kind is what happened to an entry.
type Kind uint8

// The kinds of change.
const (
	Added Kind = 1 + iota
	Removed
	Changed
	Moved // it may have changed, too
)

// String returns the kind's name, as the command line prints it.
func (k Kind) String() string {
	switch k {
	case Added:
		return "added"
	case Removed:
		return "removed"
	case Changed:
		return "changed"
	case Moved:
		return "moved"
	}
	return "unknown"
}

// A Change is an entry that differs between two snapshots. What is below an added or removed
// directory is reported, too; what is below a moved one only if it differs. An entry that did not
// move along with the directory above it is moved, too, even if its path is the same.
type Change struct {
	Kind     Kind
	Path     string        // in the newer snapshot; of a removed entry: in the older one
	From     string        // in the older snapshot, if it is another; of a changed entry: below a moved directory
	Old, New *backup.Entry // nil: the snapshot has no such entry
	Differs  Attributes    // of a changed or moved entry
}

// maxPaired is the maximum number of changes in which moved files are looked for. They are in
// memory.
const maxPaired = 1_000_000

// Reverse turns the change from one snapshot to another into that from the other to the one.
func (c *Change) Reverse() {
	switch c.Kind {
	case Added:
		c.Kind = Removed
	case Removed:
		c.Kind = Added
	}
	if c.From != "" {
		c.Path, c.From = c.From, c.Path
	}
	c.Old, c.New = c.New, c.Old
}

// A Result is how a comparison went.
type Result struct {
	// Unpaired: there were so many changes that not all files that have moved were recognized. They
	// are reported as removed and added.
	Unpaired bool
}

// Between calls report with each change between two snapshots of one shard at path and below: the
// older one, and the newer one. Up to a million changes are reported in the order of path keys. If
// the index lacks pages of a directory, or has damaged ones, the changes of all others are reported
// before Between fails with backup.ErrCorrupt.
func Between(ctx context.Context, x Index, old, now *backup.Snapshot, path string, report func(*Change) error) (Result, error) {
	return (&differ{index: x, old: old, now: now, path: path, to: report, limit: maxPaired}).run(ctx)
}

// WithSource is Between for a newer snapshot that does not exist: it stands for a source as it is
// now, and x has its pages. settle is called with each entry that both have and that may differ
// (Change.Differs). It reads what is not read yet, and replaces Differs.
func WithSource(ctx context.Context, x Index, old, now *backup.Snapshot, path string, settle func(context.Context, *Change) error, report func(*Change) error) (Result, error) {
	return (&differ{index: x, old: old, now: now, path: path, settle: settle, to: report, limit: maxPaired}).run(ctx)
}

func (d *differ) run(ctx context.Context) (Result, error) {
	gone := endedDirectories{}
	if err := d.keep(ctx, gone); err != nil {
		return Result{}, err
	}
	var err error
	if d.moved, err = d.moves(ctx, gone); err != nil {
		return Result{}, err
	}
	for dir, err := range d.decoded(ctx) {
		if err != nil {
			return Result{}, err
		}
		if err := d.compare(ctx, &dir); err != nil {
			return Result{}, err
		}
	}
	if err := d.flush(ctx); err != nil {
		return Result{}, err
	}
	if len(d.damaged) > 0 {
		return d.result, fmt.Errorf("%d directories could not be compared (bctl check finds the cause): %w", len(d.damaged), errors.Join(d.damaged[:min(len(d.damaged), 10)]...))
	}
	return d.result, nil
}

type differ struct {
	index    Index
	old, now *backup.Snapshot
	path     string
	settle   func(context.Context, *Change) error // of a source; nil: everything is read
	to       func(*Change) error

	kept    []directory // all, unless there are many
	many    bool
	moved   *moved
	held    []Change // until moved files are recognized
	limit   int
	damaged []error
	result  Result
}

// report holds a change back until the files that have moved are known.
func (d *differ) report(ctx context.Context, c Change) error {
	if d.result.Unpaired {
		return d.pass(&c)
	}
	c.Old, c.New = clone(c.Old), clone(c.New)
	d.held = append(d.held, c)
	if len(d.held) < d.limit {
		return nil
	}
	d.result.Unpaired = true
	return d.flush(ctx)
}

// Clone returns an entry that shares no memory with the other entries of its page.
func Clone(e *backup.Entry) *backup.Entry { return clone(e) }

// clone returns an entry that shares no memory with the other entries of its page.
func clone(e *backup.Entry) *backup.Entry {
	if e == nil {
		return nil
	}
	c := *e
	c.Name, c.Target, c.Content.Refs = strings.Clone(c.Name), strings.Clone(c.Target), slices.Clone(c.Content.Refs)
	c.Xattrs = slices.Clone(c.Xattrs)
	for i := range c.Xattrs {
		c.Xattrs[i] = backup.Xattr{Name: strings.Clone(c.Xattrs[i].Name), Value: slices.Clone(c.Xattrs[i].Value)}
	}
	return &c
}

func (d *differ) flush(ctx context.Context) error {
	held, err := d.pair(ctx, d.held)
	if err != nil {
		return err
	}
	d.held = nil
	for i := range held {
		if err := d.pass(&held[i]); err != nil {
			return err
		}
	}
	return nil
}

func (d *differ) pass(c *Change) error {
	if !d.concerns(c) {
		return nil
	}
	return d.to(c)
}

// concerns reports whether a change is one of the path.
func (d *differ) concerns(c *Change) bool {
	for _, path := range []string{c.Path, c.From} {
		// What is above the path concerns it if it moves with that.
		above := c.Kind == Moved && path != "" && backup.IsAtOrBelow(d.path, path)
		if d.path == "" || path != "" && backup.IsAtOrBelow(path, d.path) || above {
			return true
		}
	}
	return false
}

// differs finds out how the two entries of a change differ.
func (d *differ) differs(ctx context.Context, c *Change) error {
	c.Differs = differences(c.Old, c.New)
	if d.settle == nil || c.Differs == 0 || !d.concerns(c) {
		return nil
	}
	return d.settle(ctx, c)
}

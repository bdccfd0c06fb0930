package restore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// A planner goes through the pages of a snapshot in walk order. It belongs to
// one goroutine.
type planner struct {
	r       *restorer
	windows *errgroup.Group
	window  *window

	current *directory // the one whose pages are coming; its parents are below it
	listed  int        // names in all children sets from current down to the root
	skipped string     // path of a directory that is left out with all below it
	skip    bool
}

// plan restores the entry at o.Path.
func (p *planner) plan(ctx context.Context, entry backup.Entry) error {
	if entry.Kind == backup.Directory {
		if err := p.planTree(ctx); err != nil {
			return err
		}
	} else {
		// One file goes into the target as it is; the target's attributes are not part of it.
		p.current = &directory{r: p.r, attributesUnknown: true, wanted: true}
		p.current.pending.Store(1)
		if p.r.enter(p.current) {
			p.entry(&entry)
		}
	}
	if err := p.flush(ctx); err != nil {
		return err
	}
	for p.current != nil {
		p.leave()
	}
	return nil
}

func (p *planner) planTree(ctx context.Context) error {
	for v, err := range p.r.cat.Pages(ctx, p.r.o.Snapshot, p.r.o.Path) {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := p.page(&v); err != nil {
			return err
		}
		if p.window.full() {
			if err := p.flush(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// relative returns path relative to what is restored.
func (p *planner) relative(path string) (string, bool) {
	top := p.r.o.Path
	if top == "" || path == top {
		return strings.TrimPrefix(path, top), true
	}
	rest, ok := strings.CutPrefix(path, top+"/")
	return rest, ok
}

// page takes the next page.
func (p *planner) page(v *backup.PageVersion) error {
	path, ok := p.relative(v.Path)
	if !ok {
		return fmt.Errorf("page of %q in a listing of %q: %w", v.Path, p.r.o.Path, backup.ErrCorrupt)
	}
	if p.skip && (path == p.skipped || below(path, p.skipped)) {
		return nil
	}
	p.skip = false
	page, err := listing.DecodePage(*v)
	if err != nil {
		p.r.problem(path, "read listing", err)
	}
	if p.current == nil || p.current.path != path {
		if !p.enter(path, v.Key, &page, err != nil) {
			p.skip, p.skipped = true, path
			return nil
		}
	} else if err != nil {
		p.current.partial = true
	}
	p.entries(page.Entries)
	return nil
}

func below(path, dir string) bool { return dir == "" || strings.HasPrefix(path, dir+"/") }

// enter goes to another directory. It is false for one that is not restored,
// and then neither is what is below it.
func (p *planner) enter(path string, key backup.PageKey, page *backup.Page, damaged bool) bool {
	parentPath, name := backup.Split(path)
	for p.current != nil && (path == "" || p.current.path != parentPath) {
		p.leave()
	}
	d := &directory{r: p.r, parent: p.current, path: path, name: name, partial: damaged}
	switch {
	case path != "" && p.current == nil:
		return p.orphan(path, "its parent is not in the snapshot")
	case path != "" && backup.CheckName(name) != nil:
		return p.orphan(path, "its name is not valid")
	case path != "" && !p.current.expects(name):
		return p.orphan(path, "its parent does not list it")
	case damaged:
		d.attributesUnknown = true
	case key != 0 || page.Self == nil:
		return p.orphan(path, "its first page is missing")
	default:
		d.self = *page.Self
	}
	if path != "" {
		p.listed -= p.current.saw(name)
		if p.r.excluded(path, true) {
			return false
		}
	}
	d.pending.Store(1)
	if d.parent != nil {
		d.parent.pending.Add(1)
	}
	p.current = d
	d.wanted = p.r.o.Include == nil || d.parent != nil && (d.parent.wanted || p.r.o.Include.Excluded(path, true))
	if d.wanted && !p.r.enter(d) {
		p.leave()
		return false
	}
	return true
}

func (p *planner) orphan(path, why string) bool {
	p.r.problem(path, "restore directory", fmt.Errorf("%s: %w", why, backup.ErrCorrupt))
	return false
}

// leave ends the planner's part in the current directory.
func (p *planner) leave() {
	d := p.current
	p.current = d.parent
	for name := range d.children {
		path := backup.Join(d.path, name)
		if d.wanted && !p.r.excluded(path, true) {
			p.r.problem(path, "restore directory", errors.New("it could not be read when it was backed up"))
		}
	}
	p.listed -= len(d.children)
	d.children = nil
	d.done()
}

// entries takes a run of the current directory's entries.
func (p *planner) entries(entries []backup.Entry) {
	d := p.current
	for i := range entries {
		e := &entries[i]
		path := backup.Join(d.path, e.Name)
		if err := backup.CheckName(e.Name); err != nil {
			p.r.problem(path, "restore", err)
			continue
		}
		d.remember(e.Name)
		if e.Kind == backup.Directory {
			p.listed += d.list(e.Name, p.listed)
			continue
		}
		if p.r.excluded(path, false) || !d.wanted && !p.r.included(path) {
			continue
		}
		if !p.r.enter(d) {
			continue
		}
		p.entry(e)
	}
}

// entry takes one entry that is not a directory, whose directory is there.
func (p *planner) entry(e *backup.Entry) {
	f := newFile(p.r, p.current, e)
	if e.Flags&backup.Unreadable != 0 && e.Size > 0 && len(e.Content.Refs) == 0 {
		f.fail("restore", errors.New("it could not be read when it was backed up, and there is no earlier copy"))
		f.arrive()
		return
	}
	if p.r.links.join(f) {
		return // done when the first of its names is
	}
	p.window.add(f)
}

func (r *restorer) excluded(path string, directory bool) bool {
	return r.o.Exclude != nil && r.o.Exclude.Excluded(path, directory)
}

func (r *restorer) included(path string) bool {
	return r.o.Include == nil || r.o.Include.Excluded(path, false)
}

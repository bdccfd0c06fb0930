package restore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/hardlink"
	"github.com/bctl/bctl/internal/listing"
)

// Operations of Problems that report missing or damaged listings.
const (
	OpListing = "read listing"
	OpOrphan  = "restore directory"
)

// A planner reads the pages of a snapshot in walk order. It belongs to one goroutine.
type planner struct {
	r       *restorer
	bundles *errgroup.Group
	bundle  *bundle
	keyer   *hardlink.Keyer

	current *directory // directory of the last page; its ancestors follow through parent
	listed  int        // names in all children sets from current up to the root
	volumes int        // file systems that begin below the top
	skipped string     // path of a directory that is left out with everything below it
	skip    bool

	pages    backup.PageSet // that were read
	reported bool           // a directory was reported because its pages are missing or damaged
	stale    bool           // everything that is restored is as an earlier snapshot had it
	planned  Amount
}

// plan restores the entry at o.Path.
func (p *planner) plan(ctx context.Context, entry backup.Entry) error {
	if entry.Kind == backup.Directory {
		if err := p.planTree(ctx); err != nil {
			return err
		}
	} else {
		// A single file is written into the target. The target's attributes are not part of the
		// restore.
		if !p.r.isNewer(&entry) {
			return nil
		}
		p.current = &directory{r: p.r, attributesUnknown: true, partial: true, wanted: true}
		p.current.pending.Store(1)
		if p.r.makeDirectory(p.current) {
			if err := p.planEntry(ctx, &entry); err != nil {
				return err
			}
		}
	}
	p.r.total.Store(&p.planned)
	if err := p.flush(ctx); err != nil {
		return err
	}
	for p.current != nil {
		p.leave()
	}
	return nil
}

func (p *planner) planTree(ctx context.Context) error {
	for v, err := range p.readPages(ctx) {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := p.planPage(ctx, &v); err != nil {
			return err
		}
	}
	if p.current == nil && !p.skip {
		return fmt.Errorf("directory %q: %w", p.r.o.Path, (&browse.Chain{}).Err())
	}
	for d := p.current; d != nil; d = d.parent {
		p.complete(d)
	}
	p.checkPages()
	return nil
}

// knowsPages reports whether the complete page set of what is restored is known.
func (p *planner) knowsPages() bool {
	return p.r.o.Pages.Pages > 0 && p.r.o.Path == "" && p.r.reportsPages()
}

// checkPages compares all pages that were read with those that the snapshot was committed with. It
// skips snapshots for which a directory with missing pages was reported.
func (p *planner) checkPages() {
	want := p.r.o.Pages
	if !p.knowsPages() || p.pages == want || p.reported {
		return
	}
	err := fmt.Errorf("the index has %s of the snapshot, which was committed with %d", english.Plural(int(p.pages.Pages), "page", ""), want.Pages)
	if p.pages.Pages == want.Pages {
		err = errors.New("the index has pages of the snapshot that differ from those it was committed with")
	}
	p.r.problem("", OpListing, fmt.Errorf("%w: the restored files may be incomplete, or belong to another snapshot; compare with another snapshot. On one machine, move the index away and run bctl index rebuild: the copy in the store may be complete: %w", err, backup.ErrCorrupt))
	for d := p.current; d != nil; d = d.parent {
		d.partial = true // nothing more is deleted
	}
}

// relative returns path relative to what is restored. It is false for a path outside that.
func (r *restorer) relative(path string) (string, bool) {
	top := r.o.Path
	if top == "" || path == top {
		return strings.TrimPrefix(path, top), true
	}
	rest, ok := strings.CutPrefix(path, top+"/")
	return rest, ok
}

// planPage plans what the next page lists.
func (p *planner) planPage(ctx context.Context, v *backup.PageVersion) error {
	path, ok := p.r.relative(v.Path)
	if !ok {
		return fmt.Errorf("page of %q in a listing of %q: %w", v.Path, p.r.o.Path, backup.ErrCorrupt)
	}
	if p.knowsPages() {
		digest := v.Digest // DecodePage checks the page against it
		if digest == (backup.PageDigest{}) {
			digest = listing.Digest(v)
		}
		p.pages.Add(digest)
	}
	if p.skip && (path == p.skipped || backup.IsBelow(path, p.skipped)) {
		return nil
	}
	p.skip = false
	page, err := listing.DecodePage(*v)
	page.Key = v.Key
	if (p.current == nil || p.current.path != path) && !p.enter(path, &page, err != nil) {
		p.skip, p.skipped = true, path
		return nil
	}
	if p.current.above {
		return nil
	}
	if err != nil {
		p.reportIncomplete(path, err)
		p.current.partial = true
	}
	p.current.chain.Add(page.Key, page.Next)
	return p.planEntries(ctx, page.Entries)
}

// reportIncomplete reports a directory that is not completely known.
func (p *planner) reportIncomplete(path string, err error) {
	p.reported = true
	if p.r.reportsPages() {
		p.r.problem(path, OpListing, err)
	}
}

// enter makes path the current directory. It is false if the directory is not restored; then
// nothing below it is restored either.
func (p *planner) enter(path string, page *backup.Page, damaged bool) bool {
	parentPath, name := backup.Split(path)
	for p.current != nil && (path == "" || p.current.path != parentPath) {
		p.leave()
	}
	if p.current != nil {
		p.ownPagesEnd(p.current)
	}
	if path != "" && p.r.excluded(path, true) {
		return false
	}
	d := &directory{r: p.r, parent: p.current, path: path, name: name, attributesUnknown: damaged, stale: p.stale}
	d.place(backup.Join(p.r.o.Path, path))
	switch {
	case path != "" && p.current == nil:
		return p.orphan(path, "its parent is not in the snapshot")
	case path != "" && backup.CheckName(name) != nil:
		return p.orphan(path, "its name is not valid")
	case path != "" && !p.current.expects(name):
		return p.orphan(path, "its parent does not list it")
	case damaged: // planPage reports it
	case page.Key != 0 || page.Self == nil:
		p.reportIncomplete(path, fmt.Errorf("the index lacks its first page; its attributes, and some names in it, are not restored: %w", backup.ErrCorrupt))
		d.attributesUnknown, d.partial = true, true
	default:
		d.self = *page.Self
		p.r.o.mapOwners(&d.self)
		d.attributesUnknown = d.self.Flags&backup.AttributesUnknown != 0
	}
	if path != "" {
		p.listed -= p.current.saw(name)
		if d.self.HadVanished() {
			if !p.r.reportsPages() {
				return false
			}
			p.r.flaw(path, "it vanished, or was replaced, before the backup could look at it; the snapshot has nothing of it")
			return false
		}
		d.inherit(p)
	}
	d.flaw = d.flawOf()
	d.stale = d.stale || d.self.Flags&(backup.Unreadable|backup.AttributesUnknown) != 0
	d.pending.Store(1)
	p.current = d
	// Include is also called for paths in a directory that it has selected, because the caller may
	// report patterns that match nothing.
	d.wanted = p.r.o.Include == nil || d.parent != nil && (p.r.o.Include.Matches(path, true) || d.parent.wanted)
	if p.r.o.Part != nil {
		d.wanted = d.makes()
	}
	if d.wanted && p.r.o.Newer.IsZero() && !p.r.makeDirectory(d) {
		p.pop()
		return false
	}
	if !p.r.o.Part.shared() || !d.split {
		p.bundle.addDirectory(d)
	}
	return true
}

// inherit copies from the parent what d inherits, and makes the parent wait for d.
func (d *directory) inherit(p *planner) {
	d.parent.pending.Add(1)
	d.stale = d.parent.stale
	d.volume = d.parent.volume
	if d.self.Flags&backup.Boundary != 0 || d.attributesUnknown {
		p.volumes++
		d.volume = p.volumes
	}
}

func (p *planner) orphan(path, why string) bool {
	p.reported = true
	if !p.r.reportsPages() {
		return false
	}
	p.r.problem(path, OpOrphan, fmt.Errorf("%s: %w", why, backup.ErrCorrupt))
	return false
}

// leave ends the planner's work in the current directory, after all of its pages and of those below
// it.
func (p *planner) leave() {
	p.complete(p.current)
	p.pop()
}

// ownPagesEnd reports, at most once, that a directory lacks pages. A directory's own pages come
// before those below it.
func (p *planner) ownPagesEnd(d *directory) {
	if err := d.chain.Err(); err != nil && !d.partial {
		p.reportIncomplete(d.path, err)
		d.partial = true
	}
}

// complete reports, at most once, the pages that a directory and its subdirectories lack.
func (p *planner) complete(d *directory) {
	p.ownPagesEnd(d)
	for name := range d.children {
		p.reportIncomplete(backup.Join(d.path, name), (&browse.Chain{}).Err())
		d.expected.remove(name)
	}
	if !d.partial && d.expected != (nameSet{}) {
		p.reportIncomplete(d.path, fmt.Errorf("the index lacks the pages of subdirectories (%d or more); another snapshot may have what is missing: %w",
			max(d.expected.count, 1), backup.ErrCorrupt))
	}
	p.forget(d)
	d.expected = nameSet{}
}

// forget drops the subdirectories whose pages have not come.
func (p *planner) forget(d *directory) {
	p.listed -= len(d.children)
	d.children = nil
}

// pop makes the parent of the current directory the current one.
func (p *planner) pop() {
	d := p.current
	p.current = d.parent
	p.forget(d)
	d.done()
}

// planEntries plans a run of the current directory's entries.
func (p *planner) planEntries(ctx context.Context, entries []backup.Entry) error {
	d := p.current
	for i := range entries {
		e := &entries[i]
		path := backup.Join(d.path, e.Name)
		if err := backup.CheckName(e.Name); err != nil {
			p.r.problem(path, "restore", err)
			continue
		}
		d.remember(e.Name)
		d.makeRoom(e.Name)
		excluded := p.r.excluded(path, e.Kind == backup.Directory)
		switch {
		case excluded:
		case e.Kind == backup.Directory:
			p.listed += d.list(e.Name, p.listed)
		case !p.r.o.Part.has(e):
		case (p.r.included(path) || d.wanted) && p.r.isNewer(e):
			if !p.r.makeDirectory(d) {
				continue
			}
			if err := p.planEntry(ctx, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// planEntry plans one entry that is not a directory. The directory that contains it exists at the
// target.
func (p *planner) planEntry(ctx context.Context, e *backup.Entry) error {
	f := newFile(p.r, p.current, e)
	p.planned.Files++
	p.planned.Bytes += e.Size
	if e.Kind == backup.File && e.Flags&hardlink.Missing != 0 {
		p.r.flawed.Add(1)
		f.fail(OpBackup, browse.ErrContentMissing)
		f.arrive()
		return nil
	}
	if p.join(f) {
		return nil // settled with the first of its names
	}
	p.bundle.add(f)
	if p.bundle.full() {
		return p.flush(ctx)
	}
	return nil
}

func (r *restorer) excluded(path string, directory bool) bool {
	for _, p := range r.o.Protected {
		if path == p || backup.IsBelow(path, p) {
			return true
		}
	}
	return r.o.Exclude != nil && r.o.Exclude.Matches(path, directory)
}

func (r *restorer) included(path string) bool {
	return r.o.Include == nil || r.o.Include.Matches(path, false)
}

// isNewer reports whether Newer selects an entry.
func (r *restorer) isNewer(e *backup.Entry) bool {
	return r.o.Newer.IsZero() || e.Mtime.Compare(r.o.Newer) > 0
}

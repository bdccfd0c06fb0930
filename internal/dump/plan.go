package dump

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/hardlink"
	"github.com/bctl/bctl/internal/restore"
)

// maxGroups bounds the files with several names that wait for further names. Names of files beyond
// it become files of their own, and each is reported.
const maxGroups = 1 << 18

// A planner visits the tree and makes batches. It implements browse.Visitor, and belongs to one
// goroutine.
type planner struct {
	*dumper
	ctx    context.Context
	g      *errgroup.Group // of the fetches
	single string          // name of the only file that is dumped; "": a directory is
	batch  *batch

	pages   backup.PageSet // that were read
	lacking bool           // a directory was reported because its pages are missing or damaged
	skipped string         // path of a directory that is left out with everything below it
	skip    bool
	stale   string // path of a directory that could not be read; all below is of an earlier snapshot
	isStale bool

	volumes []volume // of the directories from the top to the current one
	last    uint64   // number of the last volume
	keyer   *hardlink.Keyer
	groups  map[hardlink.Key]*group
	number  int // of groups
}

// A volume is a file system of the shard.
type volume struct {
	dir    string
	number uint64
}

// A group is one file with several names. It is forgotten when all of them have been seen.
type group struct {
	path string // of the first name
	born backup.Time
	seen uint32
	keys []hardlink.Key
	lost bool // the archive does not have the first name; of the writer
}

// plan sends everything to the writer.
func (d *dumper) plan(ctx context.Context, g *errgroup.Group, entry *backup.Entry) error {
	p := &planner{
		dumper: d, ctx: ctx, g: g, batch: &batch{},
		keyer: hardlink.NewKeyer(d.key, d.o.Compare), groups: map[hardlink.Key]*group{},
	}
	if err := p.flawAbove(); err != nil {
		return err
	}
	if entry.Kind != backup.Directory {
		p.single = entry.Name
		if err := p.Entry(d.o.Path, entry); err != nil {
			return err
		}
		return p.flush()
	}
	if err := browse.Walk(ctx, d.cat, d.o.Snapshot, d.o.Path, p); err != nil {
		return err
	}
	if d.o.Path == "" && !p.lacking {
		if err := browse.Differs(p.pages, d.o.Pages); err != nil {
			p.problem(&p.planned, "", restore.OpListing, err)
		}
	}
	return p.flush()
}

// flawAbove reports a directory above what is dumped that could not be read.
func (p *planner) flawAbove() error {
	if p.o.Path == "" {
		return nil
	}
	parent, _ := backup.Split(p.o.Path)
	dir, stale, err := browse.Unread(p.ctx, p.cat, p.o.Snapshot, parent)
	switch {
	case errors.Is(err, backup.ErrCorrupt):
		p.problem(&p.planned, "", restore.OpListing, fmt.Errorf("it is not known whether this could be read when the snapshot was taken: %w", err))
	case err != nil:
		return err
	case stale:
		p.flaw("", fmt.Sprintf("the directory %q could not be read when the snapshot was taken; this is from an earlier snapshot", "/"+dir))
		p.isStale, p.stale = true, p.o.Path
	}
	return nil
}

// flaw reports a flaw, unless text is empty.
func (p *planner) flaw(path, text string) {
	if text != "" {
		p.problem(&p.planned, path, restore.OpBackup, errors.New(text))
	}
}

// relative returns the path of an entry in the archive.
func (p *planner) relative(path string) string {
	if p.single != "" {
		return p.single
	}
	if p.o.Path == "" {
		return path
	}
	return strings.TrimPrefix(strings.TrimPrefix(path, p.o.Path), "/")
}

// Page implements browse.Visitor.
func (p *planner) Page(v *backup.PageVersion) { p.pages.Add(browse.DigestOf(v)) }

// Incomplete implements browse.Visitor.
func (p *planner) Incomplete(path string, err error) {
	p.lacking = true
	p.problem(&p.planned, p.relative(path), restore.OpListing, err)
}

// Absent implements browse.Visitor: Incomplete has reported the directory.
func (p *planner) Absent(string, *backup.Entry) error { return nil }

// leaveOut leaves out a directory with everything below it.
func (p *planner) leaveOut(path string) {
	p.skip, p.skipped = true, path
}

// Directory implements browse.Visitor.
func (p *planner) Directory(path string, self *backup.Entry, listed bool) error {
	if p.skip && backup.IsAtOrBelow(path, p.skipped) {
		return nil
	}
	p.skip = false
	if p.isStale && !backup.IsAtOrBelow(path, p.stale) && p.stale != "" {
		p.isStale = false
	}
	rel := p.relative(path)
	_, name := backup.Split(path)
	switch {
	case !listed:
		p.lacking = true
		p.problem(&p.planned, rel, restore.OpOrphan, fmt.Errorf("its parent does not list it: %w", backup.ErrCorrupt))
		p.leaveOut(path)
		return nil
	case path != p.o.Path && backup.CheckName(name) != nil:
		p.problem(&p.planned, rel, restore.OpOrphan, fmt.Errorf("its name is not valid: %w", backup.ErrCorrupt))
		p.leaveOut(path)
		return nil //nolint:nilerr // it was reported
	case self == nil: // Incomplete has reported it
		self = &backup.Entry{Kind: backup.Directory, Flags: backup.AttributesUnknown | backup.Unreadable}
	case self.HadVanished():
		p.flaw(rel, "it vanished, or was replaced, before the backup could look at it; the snapshot has nothing of it")
		p.leaveOut(path)
		return nil
	default:
		p.flaw(rel, browse.DirectoryFlaw(self, p.isStale, ""))
	}
	p.enterVolume(path, self)
	if !p.isStale && self.Flags&(backup.Unreadable|backup.AttributesUnknown) != 0 {
		p.isStale, p.stale = true, path
	}
	e := *self
	if e.Flags&backup.AttributesUnknown != 0 {
		e.Mode = 0o700
	}
	return p.add(&part{path: rel, e: e, first: true, last: true})
}

// enterVolume determines the file system of a directory.
func (p *planner) enterVolume(path string, self *backup.Entry) {
	for n := len(p.volumes); n > 0; n = len(p.volumes) {
		if dir := p.volumes[n-1].dir; path == dir || backup.IsBelow(path, dir) {
			break
		}
		p.volumes = p.volumes[:n-1]
	}
	if len(p.volumes) == 0 || self.Flags&(backup.Boundary|backup.AttributesUnknown) != 0 {
		p.last++
		p.volumes = append(p.volumes, volume{path, p.last})
	}
}

// Entry implements browse.Visitor.
func (p *planner) Entry(path string, e *backup.Entry) error {
	dir, _ := backup.Split(path)
	if p.skip && backup.IsAtOrBelow(dir, p.skipped) {
		return nil
	}
	rel := p.relative(path)
	if err := backup.CheckName(e.Name); err != nil {
		p.problem(&p.planned, rel, "dump", err)
		return nil
	}
	if e.Kind == backup.File && e.Flags&hardlink.Missing != 0 {
		p.flaw(rel, browse.ErrContentMissing.Error())
		return nil
	}
	p.flaw(rel, browse.Flaw(e))
	it := &part{path: rel, e: *e, first: true}
	if p.o.Format == Tar && p.single == "" && hardlink.HasOthers(e) {
		p.join(it)
	}
	if e.Kind != backup.File || it.further {
		it.last = true
		return p.add(it)
	}
	return p.addContent(it)
}

// join makes the entry a further name of a file, or the first one.
func (p *planner) join(it *part) {
	keys := p.keyer.Keys(p.volumes[len(p.volumes)-1].number, &it.e)
	for _, key := range keys {
		g := p.groups[key]
		if g == nil || g.born != it.e.Btime && !g.born.IsZero() && !it.e.Btime.IsZero() {
			continue
		}
		it.group, it.further = g, true
		if g.seen++; g.seen >= it.e.Nlink {
			for _, key := range g.keys {
				delete(p.groups, key)
			}
			p.number--
		}
		return
	}
	if p.number >= maxGroups {
		p.problem(&p.planned, it.path, "link", errors.New("too many files with hard links at a time; this name becomes a copy"))
		return
	}
	p.number++
	it.group = &group{path: it.path, born: it.e.Btime, seen: 1}
	for _, key := range keys {
		if p.groups[key] == nil {
			p.groups[key] = it.group
			it.group.keys = append(it.group.keys, key)
		}
	}
}

// add adds a part without content.
func (p *planner) add(it *part) error {
	p.batch.add(it)
	if p.batch.full() {
		return p.flush()
	}
	return nil
}

// addContent adds a file, in as many parts as its content needs.
func (p *planner) addContent(it *part) error {
	if it.e.Size > batchBytes-p.batch.bytes { // what fits into one batch is left out whole if it is damaged
		if err := p.flush(); err != nil {
			return err
		}
	}
	p.batch.add(it)
	refs := fetch.NewRefs(it.e.Size, it.e.Content)
	for {
		ref, offset, list, ok, err := refs.Peek()
		switch {
		case err != nil:
			it.failed = err
			fallthrough
		case !ok:
			it.last = true
			if p.batch.full() {
				return p.flush()
			}
			return nil
		case list:
			if err := p.fetch.Load(p.ctx, []*fetch.Refs{&refs}); err != nil {
				return err
			}
			continue
		}
		if p.batch.full() {
			if err := p.flush(); err != nil {
				return err
			}
			it = &part{path: it.path, e: it.e, group: it.group}
			p.batch.add(it)
		}
		p.batch.want(ref, offset)
		refs.Advance()
	}
}

// flush starts to fetch the batch, and passes it to the writer.
func (p *planner) flush() error {
	b := p.batch
	p.batch = &batch{}
	if len(b.parts) == 0 {
		return nil
	}
	b.done = make(chan struct{})
	p.g.Go(func() error { return b.fetch(p.ctx, p.fetch) })
	select {
	case p.batches <- b:
		return nil
	case <-p.ctx.Done():
		return context.Cause(p.ctx)
	}
}

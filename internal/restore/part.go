package restore

import (
	"bytes"
	"context"
	"iter"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/hardlink"
	"github.com/bctl/bctl/internal/restore/target"
)

// A restore of one directory may be cut into parts, which several processes restore at a time, in
// any order, and a last part, which one of them restores after all others. A part is a run of
// directories in walk order: those whose path keys are in [From, To).
//
//	                            parts                       last part
//	files with one name         restored                    -
//	files with several names    -                           restored and linked (I18)
//	whole directories           made and finished           finished again, if it links a name there
//	split directories           made, and left usable       finished
//	missing pages               -                           reported (I12)
//
// A directory is split if another part begins below it. The target is always split.

// A Part is one part of a restore.
type Part struct {
	From, To []byte // path keys within the shard; To is nil in the part that ends the restore
	// Last makes this the last part. From and To are not used.
	Last bool
	// Cuts are the path keys at which the parts begin, except the first, in order.
	Cuts [][]byte
	// Before has the mode and mtime that the target had before the first part; only for the last.
	Before *backup.Entry
	// Target is how the target is opened.
	Target target.Joined
	// Pages yields the pages of the restored snapshot whose path keys are in [from, to).
	Pages func(ctx context.Context, from, to []byte) iter.Seq2[backup.PageVersion, error]
}

// Begin makes or finds the target of a restore in parts, and leaves the restore's mark in it. It
// returns what the target was before: its inode, mode and mtime.
func Begin(o Options, mark string) (before backup.Entry, err error) {
	root, err := target.Open(target.Options{Path: o.Target, Salt: o.Snapshot[:], Mark: true, Fault: o.fault})
	if err != nil {
		return backup.Entry{}, err
	}
	defer root.Close()
	if _, before, err = root.MakeUsable(); err != nil {
		return backup.Entry{}, err
	}
	before.Inode, err = root.Claim(mark)
	return before, err
}

// unclaim removes the mark of a restore in parts. If the target existed before the restore, it
// keeps the mode and mtime that it had before the first part.
func (d *directory) unclaim() {
	r := d.r
	if err := r.root.Unclaim(); err != nil {
		r.problem("", "remove mark", err)
	}
	if before := d.made.Before; before != nil && r.o.Part.Before != nil {
		before.Mode, before.Mtime = r.o.Part.Before.Mode, r.o.Part.Before.Mtime
	}
}

// cuts returns where parts begin, as far as this part needs to know.
func (p *Part) cuts() [][]byte {
	if p.Last {
		return p.Cuts
	}
	cuts := [][]byte{p.From}
	if p.To != nil {
		cuts = append(cuts, p.To)
	}
	return cuts
}

// splits reports whether a directory of the shard is split, or is the directory top, which is
// restored.
func (p *Part) splits(path, top string) bool {
	if path == top {
		return true
	}
	key, end := backup.PathKey(path), backup.PathKeyEnd(path)
	cuts := p.cuts()
	// The first cut below the directory, if there is one, is the first after its own key.
	i, found := slices.BinarySearchFunc(cuts, key, bytes.Compare)
	if found {
		i++
	}
	return i < len(cuts) && bytes.Compare(cuts[i], end) < 0
}

// has reports whether an entry that is not a directory belongs to the part. A nil Part has all.
func (p *Part) has(e *backup.Entry) bool { return p == nil || hardlink.HasOthers(e) == p.Last }

// shared reports whether other processes may work on the same directories.
func (p *Part) shared() bool { return p != nil && !p.Last }

// reportsPages reports whether this run reports what the index lacks.
func (r *restorer) reportsPages() bool { return !r.o.Part.shared() }

// pages yields the pages that the run reads, in walk order. For a part, the first pages of the
// directories above it come first.
func (p *planner) readPages(ctx context.Context) iter.Seq2[backup.PageVersion, error] {
	part, o := p.r.o.Part, &p.r.o
	if !part.shared() {
		return p.r.cat.Pages(ctx, o.Snapshot, o.Path)
	}
	return func(yield func(backup.PageVersion, error) bool) {
		first, err := backup.PathOfKey(part.From)
		if err != nil {
			yield(backup.PageVersion{}, err)
			return
		}
		for _, dir := range directoriesAbove(first, o.Path) {
			for v, err := range p.r.cat.Pages(ctx, o.Snapshot, dir) {
				if !yield(v, err) || err != nil {
					return
				}
				break
			}
		}
		part.Pages(ctx, part.From, part.To)(yield)
	}
}

// directoriesAbove returns top and the directories below it that contain path, from the top.
func directoriesAbove(path, top string) (above []string) {
	for path != top && backup.IsBelow(path, top) {
		path, _ = backup.Split(path)
		above = append(above, path)
	}
	slices.Reverse(above)
	return above
}

// place determines what this run does with the directory at path, which is within the shard.
func (d *directory) place(path string) {
	part := d.r.o.Part
	if part == nil {
		return
	}
	d.split = part.splits(path, d.r.o.Path)
	d.above = part.shared() && bytes.Compare(backup.PathKey(path), part.From) < 0
	d.partial = d.partial || d.above
}

// makes reports whether this run makes the directory, also if it restores no entry there.
func (d *directory) makes() bool {
	if d.r.o.Part.Last {
		return d.split
	}
	return !d.above
}

// finishedElsewhere reports whether another run gives the directory its attributes, and counts it.
func (d *directory) finishedElsewhere() bool {
	part := d.r.o.Part
	return part != nil && d.split == part.shared()
}

// Needs calls do for each entry on a page whose chunks the part needs, with the same rules as the
// restore itself. top is the path within the shard that is restored.
func (p *Part) Needs(page *backup.Page, top string, do func(*backup.Entry)) {
	if page.Key == 0 && page.Self != nil && (p.Last || !p.splits(page.Path, top)) {
		do(page.Self)
	}
	for i := range page.Entries {
		if e := &page.Entries[i]; e.Kind != backup.Directory && p.has(e) && e.Flags&hardlink.Missing == 0 {
			do(e)
		}
	}
}

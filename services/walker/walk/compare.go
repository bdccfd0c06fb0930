package walk

import (
	"context"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// A page is one of a directory's pages that differs from the last snapshot.
type page struct {
	key, next   backup.PageKey
	self        *backup.Entry // on page 0
	entries     []backup.Entry
	fingerprint backup.Fingerprint // as it will be stored: zero if the page must be looked at again
}

// comparePages cuts the sorted entries into pages, and keeps in w.pages those whose fingerprints
// differ from the last snapshot's.
func (w *visit) comparePages(ctx context.Context) {
	rest := w.entries
	self, key := &w.self, backup.PageKey(0)
	var keys listing.Keys
	for {
		w.keys = append(w.keys, key)
		n := listing.Cut(rest, false)
		p := page{key: key, self: self, entries: rest[:n]}
		if rest = rest[n:]; len(rest) > 0 {
			p.next = keys.Next(rest[0].Name)
		}
		w.comparePage(ctx, p)
		if len(rest) == 0 {
			return
		}
		self, key = nil, p.next
	}
}

// comparePage keeps the page, to be sent, unless its fingerprint equals the last snapshot's.
// Nothing is sent of an equal page: the row that the index has of it is valid in this snapshot, too
// (package index, page versions). A page that the next snapshot must look at again is always kept.
func (w *visit) comparePage(ctx context.Context, p page) {
	p.fingerprint = w.fingerprint.Of(w.slice.task.Job.Compare, p.self, p.entries, p.next)
	flagged := isProvisional(&p)
	if !flagged && w.unchanged(ctx, &p) && !w.isBroken(p.key) {
		w.countUnchanged(p.entries)
		return
	}
	if flagged || len(w.problems) > 0 {
		p.fingerprint = backup.Fingerprint{}
	}
	w.pages = append(w.pages, p)
}

func (w *visit) unchanged(ctx context.Context, p *page) bool {
	if w.slice.svc.opts.Reread {
		return false
	}
	for i := range w.marks {
		if w.marks[i].Key == p.key {
			last := w.marks[i].Fingerprint
			return last.Matches(p.fingerprint) || last.Matches(listing.OfUnshown(p.fingerprint)) && !w.shown.In(ctx, w.dir)
		}
	}
	return false
}

func (w *visit) countUnchanged(entries []backup.Entry) {
	for i := range entries {
		if entries[i].Kind != backup.Directory {
			w.counts.FilesUnchanged++
		}
	}
}

// isProvisional reports whether the next snapshot must look at the page again.
func isProvisional(p *page) bool {
	if p.self != nil && p.self.Flags&backup.Provisional != 0 {
		return true
	}
	return slices.ContainsFunc(p.entries, func(e backup.Entry) bool { return e.Flags&backup.Provisional != 0 })
}

func (w *visit) marked(key backup.PageKey) bool {
	return slices.ContainsFunc(w.marks, func(m index.PageMark) bool { return m.Key == key })
}

// endedKeys returns the keys of pages that the directory no longer has.
func (w *visit) endedKeys() (keys []backup.PageKey) {
	if len(w.marks) <= 1 {
		return nil // page 0 never ends alone
	}
	now := make(map[backup.PageKey]bool, len(w.keys))
	for _, key := range w.keys {
		now[key] = true
	}
	return w.marksWithout(now)
}

// marksWithout returns the keys of the last snapshot's pages that are not among these.
func (w *visit) marksWithout(keys map[backup.PageKey]bool) (ended []backup.PageKey) {
	for i := range w.marks {
		if !keys[w.marks[i].Key] {
			ended = append(ended, w.marks[i].Key)
		}
	}
	return ended
}

package sizes

import (
	"context"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/shares"
)

// A decoded is what the order of pages matters for: the directories that a page lists, and its sum.
type decoded struct {
	page backup.Page // with only those of its Entries that are directories, and no Path
	err  error       // the page is damaged
	sum  Sum
}

// A worker adds up pages. It is used by one goroutine.
type worker struct {
	options *Options
	decoder listing.Decoder
	groups  groups
	files   largest
	ids     []backup.ChunkID // of one page
	bytes   []int64          // of these, those that are not used yet
}

func newWorker(o *Options) *worker {
	return &worker{options: o, groups: groups{sums: map[Key]*Sum{}}, files: largest{most: o.Most}}
}

// page decodes a page and adds it up.
func (w *worker) page(ctx context.Context, v *backup.PageVersion) (d decoded, err error) {
	page, damaged := w.decoder.DecodePage(*v)
	if damaged != nil { // neither its entries nor its next page are known
		return decoded{page: backup.Page{Key: v.Key}, err: damaged}, nil //nolint:nilerr // it is in the result, and does not end the reading
	}
	if err := w.weigh(ctx, &page); err != nil {
		return d, err
	}
	d.page = backup.Page{Key: page.Key, Next: page.Next}
	if page.Self != nil {
		self := *page.Self
		d.page.Self = &self
		w.entry(&d.sum, v.Path, &self)
	}
	for n := range page.Entries {
		e := &page.Entries[n]
		if e.Kind == backup.Directory { // its own first page has its attributes
			d.page.Entries = append(d.page.Entries, *e)
			continue
		}
		w.entry(&d.sum, v.Path, e)
	}
	return d, nil
}

// weigh finds the bytes of all chunks that a page names, except for lists.
func (w *worker) weigh(ctx context.Context, page *backup.Page) (err error) {
	if w.options.Weights == nil {
		return nil
	}
	w.ids = w.ids[:0]
	add := func(e *backup.Entry) {
		if e.XattrChunk.Length > 0 {
			w.ids = append(w.ids, e.XattrChunk.Chunk)
		}
		if e.Content.Depth == 0 {
			for n := range e.Content.Refs {
				w.ids = append(w.ids, e.Content.Refs[n].Chunk)
			}
		}
	}
	if page.Self != nil {
		add(page.Self)
	}
	for n := range page.Entries {
		add(&page.Entries[n])
	}
	w.bytes, err = w.options.Weights.Of(ctx, w.ids)
	return err
}

// stored returns what an entry takes in the store, or shares.Unknown. It takes the bytes of its
// chunks in the order of weigh.
func (w *worker) stored(e *backup.Entry) (sum int64) {
	if w.options.Weights == nil {
		return 0
	}
	unknown := false
	add := func(bytes int64) {
		unknown = unknown || bytes == shares.Unknown
		sum += bytes
	}
	next := func() {
		add(w.bytes[0])
		w.bytes = w.bytes[1:]
	}
	if e.XattrChunk.Length > 0 {
		next()
	}
	for n := range e.Content.Refs {
		if e.Content.Depth == 0 {
			next()
		} else {
			add(w.options.Weights.List(e.Content.Refs[n].Chunk))
		}
	}
	if unknown {
		return shares.Unknown
	}
	return sum
}

// entry adds an entry to the sum of its page and to its group.
func (w *worker) entry(page *Sum, dir string, e *backup.Entry) {
	stored := w.stored(e)
	page.add(e, stored)
	switch by := w.options.By; {
	case by == Directory:
	case by == Owner:
		w.groups.of(Key{Number: ownerOf(e)}).add(e, stored)
	case e.Kind == backup.Directory:
	case by == Extension:
		w.groups.of(Key{Text: ExtensionOf(e.Name)}).add(e, stored)
	case by == Class:
		w.groups.of(Key{Number: ClassOf(e.Size)}).add(e, stored)
	case by == File:
		w.file(dir, e, stored)
	}
}

// file adds a file to the largest ones.
func (w *worker) file(dir string, e *backup.Entry, stored int64) {
	var sum Sum
	sum.add(e, stored)
	if w.files.tooSmall(sum.Bytes) {
		w.files.leaveOut(&sum)
		return
	}
	w.files.add(Row{Key{Text: backup.Join(dir, e.Name)}, sum})
}

// groupOf returns the directory that a directory at or below top counts for: the one with at most
// depth names below top.
func groupOf(top, path string, depth int) string {
	end := len(top)
	for ; depth > 0 && end < len(path); depth-- {
		if end > 0 {
			end++ // the slash
		}
		n := strings.IndexByte(path[end:], '/')
		if n < 0 {
			return path
		}
		end += n
	}
	return path[:end]
}

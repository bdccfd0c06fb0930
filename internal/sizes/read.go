package sizes

import (
	"context"
	"iter"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/shares"
)

// An Index is what is read. index.Index implements it.
type Index interface {
	Pages(ctx context.Context, id backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error]
}

// Options say what to add up.
type Options struct {
	By    By
	Depth int // of the directories of By Directory, below the path: what is deeper counts for them
	Most  int // number of rows
	// Pages are those that the snapshot was committed with.
	Pages backup.PageSet
	// Weights are asked what entries take in the store; nil: that is not wanted.
	Weights *shares.Weights
}

// A Result is what is in a snapshot. The rows, the largest first, and Others add up to Total,
// except for directories that are in no group.
type Result struct {
	Rows   []Row
	Others Sum   // of the groups that are in no row
	Groups int64 // number of all groups
	// Full means that there are more groups than were kept apart: the sums of rows are lower
	// bounds, and Groups is one of the number.
	Full  bool
	Total Sum
	// Incomplete are the directories with pages that are missing or damaged: the first few.
	Incomplete []string
	// Differs wraps backup.ErrCorrupt if the pages of the whole snapshot are not those that it was
	// committed with; otherwise it is nil.
	Differs error
}

// maxIncomplete is the maximum length of Result.Incomplete.
const maxIncomplete = 10

// Of adds up what is at a path of a committed snapshot, and below it. The path must be that of a
// directory. What is on pages that are missing or damaged is left out, and Result.Incomplete is not
// empty.
func Of(ctx context.Context, x Index, id backup.SnapshotID, path string, o Options) (Result, error) {
	if o.Weights != nil {
		if err := weighLists(ctx, x, id, path, o.Weights); err != nil {
			return Result{}, err
		}
	}
	t := &tally{options: &o, top: path, rows: largest{most: o.Most}}
	t.tree = browse.NewTree(x, id, path, t)
	workers := make([]*worker, runtime.GOMAXPROCS(0))
	for n := range workers {
		workers[n] = newWorker(&o)
	}
	if err := read(ctx, x.Pages(ctx, id, path), workers, t.page); err != nil {
		return Result{}, err
	}
	if err := t.tree.End(); err != nil {
		return Result{}, err
	}
	result := t.result(workers)
	if path == "" {
		result.Differs = browse.Differs(t.pages, o.Pages)
	}
	return result, nil
}

// weighLists weighs the list chunks of a snapshot. They are few: those of large files.
func weighLists(ctx context.Context, x Index, id backup.SnapshotID, path string, to *shares.Weights) error {
	lists := map[backup.ChunkID]struct{}{}
	var chunks listing.Chunks
	for v, err := range x.Pages(ctx, id, path) {
		if err != nil {
			return err
		}
		chunks, err = listing.AppendChunks(listing.Chunks{Lists: chunks.Lists[:0], Other: chunks.Other[:0]}, v.Listing)
		if err != nil {
			continue // the page is reported when it is decoded
		}
		for _, list := range chunks.Lists {
			lists[list] = struct{}{}
		}
	}
	return to.AddLists(ctx, lists)
}

// A job is pages that one worker decodes.
type job struct {
	versions []backup.PageVersion
	bytes    int // of their listings
	decoded  []decoded
	done     chan struct{}
}

// The pages of a job have about jobBytes, which take a worker about a millisecond.
const (
	jobPages = 64
	jobBytes = 256 << 10
)

// read has the workers decode pages, and calls do with each page in order. The number of pages in
// memory is bounded by the number of workers.
func read(ctx context.Context, pages iter.Seq2[backup.PageVersion, error], workers []*worker, do func(context.Context, *backup.PageVersion, *decoded) error) error {
	g, ctx := errgroup.WithContext(ctx)
	work, order := make(chan *job), make(chan *job, 2*len(workers))
	g.Go(func() error {
		defer close(work)
		defer close(order)
		return split(ctx, pages, work, order)
	})
	for _, w := range workers {
		g.Go(func() error {
			for j := range work {
				for n := range j.versions {
					d, err := w.page(ctx, &j.versions[n])
					if err != nil {
						return err
					}
					j.versions[n].Listing = nil
					j.decoded = append(j.decoded, d)
				}
				close(j.done)
			}
			return nil
		})
	}
	g.Go(func() error {
		for j := range order {
			select {
			case <-j.done:
			case <-ctx.Done():
				return ctx.Err()
			}
			for n := range j.versions {
				if err := do(ctx, &j.versions[n], &j.decoded[n]); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return g.Wait()
}

// split makes jobs of pages.
func split(ctx context.Context, pages iter.Seq2[backup.PageVersion, error], work, order chan<- *job) error {
	next := &job{done: make(chan struct{})}
	send := func() error {
		for _, to := range []chan<- *job{order, work} {
			select {
			case to <- next:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		next = &job{done: make(chan struct{})}
		return nil
	}
	for v, err := range pages {
		if err != nil {
			return err
		}
		next.versions = append(next.versions, v)
		next.bytes += len(v.Listing)
		if len(next.versions) == jobPages || next.bytes >= jobBytes {
			if err := send(); err != nil {
				return err
			}
		}
	}
	if len(next.versions) == 0 {
		return nil
	}
	return send()
}

// A tally adds up pages in their order, and notices what is missing. It implements browse.Visitor.
type tally struct {
	options    *Options
	tree       *browse.Tree
	top        string
	pages      backup.PageSet
	total      Sum
	rows       largest // of By Directory
	group      *Row    // the directory that pages count for at present
	incomplete []string
}

// page adds a page.
func (t *tally) page(ctx context.Context, v *backup.PageVersion, d *decoded) error {
	d.page.Path = v.Path
	t.pages.Add(v.Digest)
	if d.err != nil {
		t.Incomplete(v.Path, d.err)
	}
	if err := t.tree.Add(ctx, &d.page, d.err != nil); err != nil {
		return err
	}
	t.total.Add(&d.sum)
	if t.options.By != Directory {
		return nil
	}
	// The pages that count for a directory follow one another: those of a directory come before
	// those below it.
	path := groupOf(t.top, v.Path, t.options.Depth)
	if t.group == nil || t.group.Text != path {
		t.endGroup()
		t.group = &Row{Key: Key{Text: path}}
	}
	t.group.Add(&d.sum)
	return nil
}

func (t *tally) endGroup() {
	if t.group != nil {
		t.rows.add(*t.group)
	}
}

// result joins what the workers have added up.
func (t *tally) result(workers []*worker) Result {
	t.endGroup()
	all := groups{sums: map[Key]*Sum{}}
	for _, w := range workers {
		all.join(&w.groups)
		t.rows.join(&w.files)
	}
	for key, sum := range all.sums {
		t.rows.add(Row{key, *sum})
	}
	t.rows.others.Add(&all.further)
	return Result{Rows: t.rows.sorted(), Others: t.rows.others, Groups: t.rows.count, Full: all.full, Total: t.total, Incomplete: t.incomplete}
}

// Page implements browse.Visitor.
func (t *tally) Page(*backup.PageVersion) {}

// Directory implements browse.Visitor.
func (t *tally) Directory(string, *backup.Entry, bool) error { return nil }

// Entry implements browse.Visitor: files were added up when their page was decoded.
func (t *tally) Entry(string, *backup.Entry) error { return nil }

// Absent implements browse.Visitor.
func (t *tally) Absent(string, *backup.Entry) error { return nil }

// Incomplete implements browse.Visitor.
func (t *tally) Incomplete(path string, _ error) {
	if len(t.incomplete) < maxIncomplete {
		t.incomplete = append(t.incomplete, path)
	}
}

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
	// Weights are asked what entries take in the store; nil: that is not wanted. They have weighed
	// what AddLists adds.
	Weights *shares.Weights
}

// A Result is what was added up. The rows, the largest first, and Others add up to Total, except
// for directories that are in no group.
type Result struct {
	Rows   []Row
	Others Sum   // of the groups that are in no row
	Groups int64 // number of all groups
	// Full means that there are more groups than were kept apart: the sums of rows are lower
	// bounds, and Groups is one of the number.
	Full  bool
	Total Sum
}

// Flaws are what was left out because it is missing from the index, or damaged there.
type Flaws struct {
	// Directories are those with pages that are missing or damaged: the first few.
	Directories []string
	// Differs wraps backup.ErrCorrupt if the pages of the whole snapshot are not those that it was
	// committed with; otherwise it is nil.
	Differs error
}

// maxFlaws is the maximum length of Flaws.Directories.
const maxFlaws = 10

// A Tally adds up snapshots. It is used by one goroutine.
type Tally struct {
	options Options
	workers []*worker
	rows    largest // of By Directory
	total   Sum
}

// NewTally returns a Tally to which nothing was added.
func NewTally(o Options) *Tally {
	t := &Tally{options: o, rows: largest{most: o.Most}}
	for range runtime.GOMAXPROCS(0) {
		t.workers = append(t.workers, newWorker(&t.options))
	}
	return t
}

// Add adds what is at a path of a committed snapshot, and below it. The path must be that of a
// directory. pages are those with which the snapshot was committed.
func (t *Tally) Add(ctx context.Context, x Index, id backup.SnapshotID, path string, pages backup.PageSet) (Flaws, error) {
	r := &reading{tally: t, top: path}
	r.tree = browse.NewTree(x, id, path, r)
	if err := read(ctx, x.Pages(ctx, id, path), t.workers, r.page); err != nil {
		return Flaws{}, err
	}
	if err := r.tree.End(); err != nil {
		return Flaws{}, err
	}
	r.endGroup()
	if path == "" {
		r.flaws.Differs = browse.Differs(r.pages, pages)
	}
	return r.flaws, nil
}

// Result returns what was added up, after the last Add.
func (t *Tally) Result() Result {
	all := groups{sums: map[Key]*Sum{}}
	for _, w := range t.workers {
		all.join(&w.groups)
		t.rows.join(&w.files)
	}
	for key, sum := range all.sums {
		t.rows.add(Row{key, *sum})
	}
	t.rows.others.Add(&all.further)
	return Result{Rows: t.rows.sorted(), Others: t.rows.others, Groups: t.rows.count, Full: all.full, Total: t.total}
}

// AddLists adds the list chunks of what is below a path of a snapshot. They are few: large files
// have them. Pages that are damaged are left out: they are reported when they are added up.
func AddLists(ctx context.Context, x Index, id backup.SnapshotID, path string, to map[backup.ChunkID]struct{}) error {
	var chunks listing.Chunks
	for v, err := range x.Pages(ctx, id, path) {
		if err != nil {
			return err
		}
		chunks, err = listing.AppendChunks(listing.Chunks{Lists: chunks.Lists[:0], Other: chunks.Other[:0]}, v.Listing)
		if err != nil {
			continue
		}
		for _, list := range chunks.Lists {
			to[list] = struct{}{}
		}
	}
	return nil
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

// A reading adds up the pages of one snapshot in their order, and notices what is missing. It
// implements browse.Visitor.
type reading struct {
	tally *Tally
	tree  *browse.Tree
	top   string
	pages backup.PageSet
	group *Row // the directory that pages count for at present
	flaws Flaws
}

// page adds a page.
func (r *reading) page(ctx context.Context, v *backup.PageVersion, d *decoded) error {
	d.page.Path = v.Path
	r.pages.Add(v.Digest)
	if d.err != nil {
		r.Incomplete(v.Path, d.err)
	}
	if err := r.tree.Add(ctx, &d.page, d.err != nil); err != nil {
		return err
	}
	r.tally.total.Add(&d.sum)
	if r.tally.options.By != Directory {
		return nil
	}
	// The pages that count for a directory follow one another: those of a directory come before
	// those below it.
	path := groupOf(r.top, v.Path, r.tally.options.Depth)
	if r.group == nil || r.group.Text != path {
		r.endGroup()
		r.group = &Row{Key: Key{Text: path}}
	}
	r.group.Add(&d.sum)
	return nil
}

func (r *reading) endGroup() {
	if r.group != nil {
		r.tally.rows.add(*r.group)
	}
}

// Page implements browse.Visitor.
func (r *reading) Page(*backup.PageVersion) {}

// Directory implements browse.Visitor.
func (r *reading) Directory(string, *backup.Entry, bool) error { return nil }

// Entry implements browse.Visitor: files were added up when their page was decoded.
func (r *reading) Entry(string, *backup.Entry) error { return nil }

// Absent implements browse.Visitor.
func (r *reading) Absent(string, *backup.Entry) error { return nil }

// Incomplete implements browse.Visitor.
func (r *reading) Incomplete(path string, _ error) {
	if len(r.flaws.Directories) < maxFlaws {
		r.flaws.Directories = append(r.flaws.Directories, path)
	}
}

package walk

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// Size limits of results. A message may have flow.MaxMessageBytes.
const (
	maxListingBytes = 400 << 10
	partBytes       = 420 << 10 // of a message's pages, paths and problems

	// A read batch is large enough that a reader's round trips do not matter, and small enough to
	// spread the work.
	batchFiles   = 2000
	batchContent = 64 << 20
	batchBytes   = 160 << 10 // of listings

	// Batches of a slow filer are small, too: a reader reads the files of a batch one after the
	// other, and waits for each about as long as the walker waited for readWaits stats.
	batchWait = time.Second
	readWaits = 4 // open, two fstats, read

	// Child tasks per slice: early slices make many, to spread the tree; later slices make only as
	// many as keep walkers busy.
	earlyChildren      = 32
	laterChildren      = 8
	earlyGenerations   = 2
	laterChildMinimum  = 16 // the fewest directories that a child of a later slice starts from
	pageOverheadBytes  = 64
	pathOverheadBytes  = 8
	nameOverheadBytes  = 24 // of a page's name: its key is long
	problemOverhead    = 64
	maxProblemsPerPart = 1000
)

// A contribution is what one directory adds to the result.
type contribution struct {
	path     string
	pages    []backup.PageVersion
	toRead   []pageToRead
	counts   backup.Counts
	problems []backup.Problem
	answers  time.Duration // time that the source took for counts.StatCalls
	latency  time.Duration // of a stat, the mean of the whole directory
}

// A pageToRead is complete except for the content of some files.
type pageToRead struct {
	backup.PageVersion
	files int
	bytes int64
}

// A result collects the findings of a slice and sends them, in as many messages as needed. Its
// methods may be called concurrently.
type result struct {
	svc     *Service
	answers time.Duration // time that the source took for the stats of part
	// Source snapshot that was taken, for the last part of a root task's result.
	source string
	root   backup.Root  // identity of the walked root; for the last part as well
	mounts *mountPoints // of the slice
	// Returns an error unless the findings can be trusted; nil: they can.
	check func(context.Context) error

	mu        sync.Mutex
	part      *backup.SliceWalked
	partBytes int
	total     int

	batch                    []backup.PageVersion
	batchFiles, batchListing int
	batchContent             int64
	// Expected time to read the batch, counting only the filer's answers.
	batchWait time.Duration
}

func newResult(svc *Service, task *backup.WalkTask) *result {
	return &result{svc: svc, mounts: &mountPoints{}, part: &backup.SliceWalked{
		Snapshot: task.Job.Snapshot, Task: task.ID, Attempt: task.Attempt, Run: rand.Uint64(),
	}}
}

// bytes returns the approximate size of the result so far.
func (r *result) bytes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total + r.batchListing
}

func (r *result) walked(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.part.Counts.WalkSeconds += d.Seconds()
}

func (r *result) add(ctx context.Context, c contribution) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report(&c)
	r.part.Counts.Add(c.counts)
	r.answers += c.answers
	for i := range c.pages {
		if err := r.room(ctx, pageBytes(&c.pages[i])); err != nil {
			return err
		}
		r.part.Pages = append(r.part.Pages, c.pages[i])
	}
	for i := range c.toRead {
		if err := r.addToBatch(ctx, &c.toRead[i], c.latency); err != nil {
			return err
		}
	}
	for _, p := range c.problems {
		if err := r.room(ctx, len(p.Path)+len(p.Err)+problemOverhead); err != nil {
			return err
		}
		r.part.Problems = append(r.part.Problems, p)
	}
	return nil
}

// report reports progress; files that need not be read count as done.
func (r *result) report(c *contribution) {
	p := backup.Progress{
		FilesFound: c.counts.Files, BytesFound: c.counts.Bytes, Errors: c.counts.Errors, Path: c.path,
		FilesDone: c.counts.Files, BytesDone: c.counts.Bytes,
		Stats: c.counts.StatCalls, StatSeconds: c.answers.Seconds(),
	}
	for i := range c.toRead {
		p.FilesDone -= int64(c.toRead[i].files)
		p.BytesDone -= c.toRead[i].bytes
	}
	r.svc.report.Add(r.part.Snapshot, p)
}

func pageBytes(p *backup.PageVersion) int { return len(p.Path) + len(p.Listing) + pageOverheadBytes }

// addToBatch adds the page to the current batch, ending the batch first if the page would make it
// too large. latency is the source's mean time per stat.
func (r *result) addToBatch(ctx context.Context, p *pageToRead, latency time.Duration) error {
	size := pageBytes(&p.PageVersion)
	if r.batchListing > 0 && r.batchListing+size > batchBytes {
		if err := r.endBatch(ctx); err != nil {
			return err
		}
	}
	r.batch = append(r.batch, p.PageVersion)
	r.batchListing += size
	r.batchFiles += p.files
	r.batchContent += p.bytes
	r.batchWait += time.Duration(p.files*readWaits) * latency
	if r.batchFiles >= batchFiles || r.batchContent >= batchContent || r.batchListing >= batchBytes || r.batchWait >= batchWait {
		return r.endBatch(ctx)
	}
	return nil
}

func (r *result) endBatch(ctx context.Context) error {
	if len(r.batch) == 0 {
		return nil
	}
	paths := make([]string, len(r.batch))
	for i := range r.batch {
		paths[i] = r.batch[i].Path
	}
	mounts := r.mounts.above(paths...)
	if err := r.room(ctx, r.batchListing+pathsBytes(mounts)); err != nil {
		return err
	}
	r.part.Batches = append(r.part.Batches, backup.PagesToRead{Pages: r.batch, Mounts: mounts})
	r.batch, r.batchListing, r.batchFiles, r.batchContent, r.batchWait = nil, 0, 0, 0, 0
	return nil
}

func pathsBytes(paths []string) (n int) {
	for _, path := range paths {
		n += len(path) + pathOverheadBytes
	}
	return n
}

func (r *result) ended(ctx context.Context, page backup.PageName) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.room(ctx, len(page.Path)+nameOverheadBytes); err != nil {
		return err
	}
	r.part.Ended = append(r.part.Ended, page)
	return nil
}

// vanished ends the last snapshot's content of a directory that disappeared before it could be
// read; known reports that there is such content. Its parent still lists the directory, so it gets
// a page, which records that its attributes are unknown.
func (r *result) vanished(ctx context.Context, path string, known bool) error {
	page, err := pageOf(path, backup.Entry{Kind: backup.Directory, Flags: backup.AttributesUnknown})
	if err != nil {
		return err
	}
	err = r.add(ctx, contribution{path: path, pages: []backup.PageVersion{page}, counts: backup.Counts{Vanished: 1}})
	if err != nil || !known {
		return err
	}
	return r.removed(ctx, path)
}

func (r *result) removed(ctx context.Context, path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.room(ctx, len(path)+pathOverheadBytes); err != nil {
		return err
	}
	r.part.Removed = append(r.part.Removed, path)
	return nil
}

// children makes child tasks of directories, after sorting them by their path keys: concurrent
// workers leave them almost in that order.
func (r *result) children(ctx context.Context, directories []string, generation int32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(directories)
	if n == 0 {
		return nil
	}
	children := earlyChildren
	if generation >= earlyGenerations || r.svc.opts.Alone {
		children = min(laterChildren, (n+laterChildMinimum-1)/laterChildMinimum)
	}
	size := min((n+children-1)/children, childDirectories)
	slices.SortFunc(directories, comparePaths)
	for len(directories) > 0 {
		child, bytes := make([]string, 0, size), 0
		for len(directories) > 0 && len(child) < size && bytes < partBytes/2 {
			child = append(child, directories[0])
			bytes += len(directories[0]) + pathOverheadBytes
			directories = directories[1:]
		}
		mounts := r.mounts.above(child...)
		if err := r.room(ctx, bytes+pathsBytes(mounts)); err != nil {
			return err
		}
		r.part.Children = append(r.part.Children, backup.Child{Directories: child, Mounts: mounts})
	}
	return nil
}

// comparePaths compares paths in the order of backup.PathKey.
func comparePaths(a, b string) int {
	for i := range min(len(a), len(b)) {
		switch {
		case a[i] == b[i]:
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		default:
			return cmp.Compare(a[i], b[i])
		}
	}
	return cmp.Compare(len(a), len(b))
}

// room sends the current part if size more bytes would be too much.
func (r *result) room(ctx context.Context, size int) error {
	if r.partBytes > 0 && (r.partBytes+size > partBytes || len(r.part.Problems) > maxProblemsPerPart) {
		if err := r.send(ctx, false); err != nil {
			return err
		}
	}
	r.partBytes += size
	r.total += size
	return nil
}

func (r *result) send(ctx context.Context, last bool) error {
	if r.check != nil {
		if err := r.check(ctx); err != nil {
			return err
		}
	}
	if r.part.Last = last; last {
		r.part.Source, r.part.Root = r.source, r.root
	}
	if err := r.svc.send(ctx, r.part); err != nil {
		return err
	}
	r.svc.opts.Metrics.Part(r.part, r.answers)
	r.answers = 0
	r.part = &backup.SliceWalked{
		Snapshot: r.part.Snapshot, Task: r.part.Task, Attempt: r.part.Attempt, Run: r.part.Run, Part: r.part.Part + 1,
	}
	r.partBytes = 0
	return nil
}

// finish sends the last message, after which the attempt can be accepted.
func (r *result) finish(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.endBatch(ctx); err != nil {
		return err
	}
	return r.send(ctx, true)
}

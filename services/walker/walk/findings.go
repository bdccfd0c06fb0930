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
	earlyChildren    = 32
	laterChildren    = 8
	earlyGenerations = 2
	// The fewest directories that a child of a later slice starts from, unless they would take
	// longer than this, one after another.
	laterChildMinimum = 16
	laterChildTime    = 2 * time.Second

	pageOverheadBytes  = 64
	pathOverheadBytes  = 8
	nameOverheadBytes  = 24 // of a page's name: its key is long
	problemOverhead    = 64
	maxProblemsPerPart = 1000
)

// A contribution is what one directory adds to the findings.
type contribution struct {
	path     string
	pages    []backup.PageVersion
	toRead   []pageToRead
	counts   backup.Counts
	problems []backup.Problem
	answers  time.Duration // time that the stats of counts.StatCalls took
	latency  time.Duration // of a stat, the mean of the whole directory
}

// A pageToRead is complete except for the content of some files.
type pageToRead struct {
	backup.PageVersion
	files int
	bytes int64
}

// findings collects what a slice finds and sends it, in as many messages as needed. Its methods may
// be called concurrently.
type findings struct {
	svc     *Service
	answers time.Duration // time that the source took for the stats of part
	// Source snapshot that was taken, for the last part of a root task's result.
	source string
	root   backup.Root  // identity of the walked root; for the last part as well
	mounts *mountPoints // of the slice
	// check returns an error unless the findings can be trusted; nil: they can.
	check func(context.Context) error

	mu        sync.Mutex
	part      *backup.SliceWalked // the message to be sent next
	partBytes int
	total     int // bytes of all parts

	// The read batch to be added to part next, and its size.
	batch                    []backup.PageVersion
	batchFiles, batchListing int
	batchContent             int64
	// Expected time to read the batch, counting only the filer's answers.
	batchWait time.Duration

	directories int // that were walked, and how long that took
	took        time.Duration
}

func newFindings(svc *Service, task *backup.WalkTask) *findings {
	return &findings{svc: svc, mounts: &mountPoints{}, part: &backup.SliceWalked{
		Snapshot: task.Job.Snapshot, Task: task.ID, Attempt: task.Attempt, Run: rand.Uint64(),
	}}
}

// bytes returns the approximate size of the findings so far.
func (f *findings) bytes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.total + f.batchListing
}

func (f *findings) walked(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.part.Counts.WalkSeconds += d.Seconds()
	f.directories++
	f.took += d
}

func (f *findings) add(ctx context.Context, c contribution) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.report(&c)
	f.part.Counts.Add(c.counts)
	f.answers += c.answers
	for i := range c.pages {
		if err := f.makeRoom(ctx, pageBytes(&c.pages[i])); err != nil {
			return err
		}
		f.part.Pages = append(f.part.Pages, c.pages[i])
	}
	for i := range c.toRead {
		if err := f.addToBatch(ctx, &c.toRead[i], c.latency); err != nil {
			return err
		}
	}
	for _, p := range c.problems {
		if err := f.makeRoom(ctx, len(p.Path)+len(p.Err)+problemOverhead); err != nil {
			return err
		}
		f.part.Problems = append(f.part.Problems, p)
	}
	return nil
}

// report reports progress; files that need not be read count as done.
func (f *findings) report(c *contribution) {
	p := backup.Progress{
		FilesFound: c.counts.Files, BytesFound: c.counts.Bytes, Errors: c.counts.Errors, Path: c.path,
		FilesDone: c.counts.Files, BytesDone: c.counts.Bytes,
		Stats: c.counts.StatCalls, StatSeconds: c.answers.Seconds(),
	}
	for i := range c.toRead {
		p.FilesDone -= int64(c.toRead[i].files)
		p.BytesDone -= c.toRead[i].bytes
	}
	f.svc.report.Add(f.part.Snapshot, p)
}

func pageBytes(p *backup.PageVersion) int { return len(p.Path) + len(p.Listing) + pageOverheadBytes }

// addToBatch adds the page to the current batch, ending the batch first if the page would make it
// too large. latency is the source's mean time per stat.
func (f *findings) addToBatch(ctx context.Context, p *pageToRead, latency time.Duration) error {
	size := pageBytes(&p.PageVersion)
	if f.batchListing > 0 && f.batchListing+size > batchBytes {
		if err := f.endBatch(ctx); err != nil {
			return err
		}
	}
	f.batch = append(f.batch, p.PageVersion)
	f.batchListing += size
	f.batchFiles += p.files
	f.batchContent += p.bytes
	f.batchWait += time.Duration(p.files*readWaits) * latency
	if f.batchFiles >= batchFiles || f.batchContent >= batchContent || f.batchListing >= batchBytes || f.batchWait >= batchWait {
		return f.endBatch(ctx)
	}
	return nil
}

// endBatch puts the current batch into the current part.
func (f *findings) endBatch(ctx context.Context) error {
	if len(f.batch) == 0 {
		return nil
	}
	paths := make([]string, len(f.batch))
	for i := range f.batch {
		paths[i] = f.batch[i].Path
	}
	mounts := f.mounts.above(paths...)
	if err := f.makeRoom(ctx, f.batchListing+pathsBytes(mounts)); err != nil {
		return err
	}
	f.part.Batches = append(f.part.Batches, backup.PagesToRead{Pages: f.batch, Mounts: mounts})
	f.batch, f.batchListing, f.batchFiles, f.batchContent, f.batchWait = nil, 0, 0, 0, 0
	return nil
}

func pathsBytes(paths []string) (n int) {
	for _, path := range paths {
		n += len(path) + pathOverheadBytes
	}
	return n
}

func (f *findings) ended(ctx context.Context, page backup.PageName) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.makeRoom(ctx, len(page.Path)+nameOverheadBytes); err != nil {
		return err
	}
	f.part.Ended = append(f.part.Ended, page)
	return nil
}

// vanished ends the last snapshot's content of a directory that disappeared before it could be
// read; known reports that there is such content. Its parent still lists the directory, so it gets
// a page, which records that its attributes are unknown.
func (f *findings) vanished(ctx context.Context, path string, known bool) error {
	page, err := pageOf(path, backup.Entry{Kind: backup.Directory, Flags: backup.AttributesUnknown})
	if err != nil {
		return err
	}
	err = f.add(ctx, contribution{path: path, pages: []backup.PageVersion{page}, counts: backup.Counts{Vanished: 1}})
	if err != nil || !known {
		return err
	}
	return f.removed(ctx, path)
}

func (f *findings) removed(ctx context.Context, path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.makeRoom(ctx, len(path)+pathOverheadBytes); err != nil {
		return err
	}
	f.part.Removed = append(f.part.Removed, path)
	return nil
}

// children makes child tasks of directories, after sorting them by their path keys: concurrent
// workers leave them almost in that order.
func (f *findings) children(ctx context.Context, directories []string, generation int32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(directories)
	if n == 0 {
		return nil
	}
	children := earlyChildren
	if generation >= earlyGenerations || f.svc.opts.Alone {
		least := laterChildMinimum
		if f.took > 0 {
			least = max(min(least, int(laterChildTime*time.Duration(f.directories)/f.took)), 1)
		}
		children = min(laterChildren, (n+least-1)/least)
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
		mounts := f.mounts.above(child...)
		if err := f.makeRoom(ctx, bytes+pathsBytes(mounts)); err != nil {
			return err
		}
		f.part.Children = append(f.part.Children, backup.Child{Directories: child, Mounts: mounts})
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

// makeRoom counts size more bytes in the current part. It sends the part first if they do not fit.
func (f *findings) makeRoom(ctx context.Context, size int) error {
	if f.partBytes > 0 && (f.partBytes+size > partBytes || len(f.part.Problems) > maxProblemsPerPart) {
		if err := f.send(ctx, false); err != nil {
			return err
		}
	}
	f.partBytes += size
	f.total += size
	return nil
}

// send sends the current part to the committers (Service.receive of package commit), and begins the
// next one.
func (f *findings) send(ctx context.Context, last bool) error {
	if f.check != nil {
		if err := f.check(ctx); err != nil {
			return err
		}
	}
	if f.part.Last = last; last {
		f.part.Source, f.part.Root = f.source, f.root
	}
	if err := f.svc.send(ctx, f.part); err != nil {
		return err
	}
	f.svc.opts.Metrics.Part(f.part, f.answers)
	f.answers = 0
	f.part = &backup.SliceWalked{
		Snapshot: f.part.Snapshot, Task: f.part.Task, Attempt: f.part.Attempt, Run: f.part.Run, Part: f.part.Part + 1,
	}
	f.partBytes = 0
	return nil
}

// finish sends the last message, after which the attempt can be accepted.
func (f *findings) finish(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.endBatch(ctx); err != nil {
		return err
	}
	return f.send(ctx, true)
}

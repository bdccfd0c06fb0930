package read

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/stall"
	"github.com/bctl/bctl/internal/telemetry"
)

// A batch is one attempt at a read batch.
type batch struct {
	svc      *Service
	msg      *backup.ReadBatch
	delivery delivery
	looks    int // deliveries at this attempt, to any reader
	started  time.Time
	trace    telemetry.Parent
	work     *stall.Work
	counted  atomic.Bool          // it has a place in svc.inHand
	pages    []page               // while it is read
	complete []backup.PageVersion // afterwards

	// Used by the reading goroutine:
	hash   *chunk.Hasher
	cutter *chunk.Cutter
	window *window
	short  bool                // a read of this file returned less than its size
	links  map[link]linkedFile // files that have several names
	tree   source.Tree
	file   openFile
	pace   *pace
	at     advance

	counts       backup.Counts
	problems     []backup.Problem
	problemBytes int
	inlineBytes  int // of extended attributes in the listings
	racyFrom     backup.Time
	lists        []backup.ChunkList // not yet reported to the committer
	listBytes    int

	// Results of the store workers, guarded by mu:
	storing sync.WaitGroup // windows that are not stored yet
	mu      sync.Mutex
	packs   map[*packRef]struct{} // that contain the content
	stage   backup.Counts         // of the stages after reading
	err     error
}

// A page of a batch while it is being completed.
type page struct {
	backup.Page
	version backup.PageVersion
	again   bool     // the next snapshot must look at it again
	old     *oldPage // nil until it is needed
}

// Limits on what a batch adds to its pages, so that they still fit into one message.
const (
	// inlineXattrBytes is the room for extended attributes in the batch's listings; further ones
	// are stored as chunks.
	inlineXattrBytes = 48 << 10
	// maxProblemBytes is the room for reported problems; all problems are counted and flagged.
	maxProblemBytes = 96 << 10
	problemOverhead = 64
)

func newBatch(s *Service, msg *backup.ReadBatch, d delivery) *batch {
	b := &batch{svc: s, msg: msg, delivery: d, started: time.Now(), packs: map[*packRef]struct{}{}, pace: newPace(msg.Job.ReadBytesPerSecond)}
	if d != nil { // nil in tests
		b.looks = d.Attempts()
	}
	return b
}

func (b *batch) filer() backup.FilerID { return b.msg.Job.Filer }

func (b *batch) decode() error {
	b.pages = make([]page, len(b.msg.Pages))
	for i, v := range b.msg.Pages {
		p, err := listing.DecodePage(v)
		if err != nil {
			return fmt.Errorf("read batch %d: %w", b.msg.ID, err)
		}
		b.pages[i] = page{Page: p, version: v}
	}
	return nil
}

// read reads all wanted files, and passes their chunks to the store workers.
func (b *batch) read(ctx context.Context) error {
	if err := b.decode(); err != nil {
		return err
	}
	b.expect()
	b.hash = chunk.NewHasher(b.svc.Key.Dedup)
	job := &b.msg.Job
	tree, err := source.OpenRoot(ctx, b.work.Source(b.svc.Source), job.Source, job.Root, job.Compare)
	if err != nil {
		return err
	}
	b.tree = tree
	defer tree.Close()
	defer b.giveBack()
	now, behind := tree.Clock()
	b.racyFrom = backup.TimeOf(now.Add(-behind))
	for i := range b.pages {
		if err := b.readPage(ctx, &b.pages[i]); err != nil {
			return err
		}
	}
	// The data is trusted only if all mounts of the tree are still mounted.
	if err := source.Believe(ctx, tree, b.msg.Mounts); err != nil {
		return err
	}
	if err := b.flush(ctx); err != nil {
		return err
	}
	return b.encode()
}

// A place is the open directory of a page, or the reason why it could not be opened.
type place struct {
	dir    source.Directory // nil if err is not
	err    error
	proven bool // another entry proved that it is of the tree that was walked (believeGone)

	// gone: the directory is not at its path any more. stays: it was still there after an entry in
	// it had vanished.
	gone, stays bool
}

func (b *batch) openPlace(ctx context.Context, path string) (at place) {
	dir, err := b.tree.OpenDirectory(ctx, path)
	if path == "" && source.IsGone(err) {
		// The tree is open, so its root exists, whatever this call returns.
		err = fmt.Errorf("the root of %s cannot be opened: %v: %w", b.msg.Job.Source, err, backup.ErrUnavailable) //nolint:errorlint // it must not count as gone
	}
	if err != nil {
		return place{err: err}
	}
	return place{dir: dir}
}

func (at *place) close() {
	if at.dir != nil {
		_ = at.dir.Close() // it was only read
		at.dir = nil
	}
}

func (b *batch) readPage(ctx context.Context, p *page) error {
	at := b.openPlace(ctx, p.Path)
	defer func() { at.close() }()
	if p.Self != nil && p.Self.Flags&backup.XattrsWanted != 0 {
		if _, err := b.readOwnXattrs(ctx, &at, p, p.Self); err != nil {
			return err
		}
	}
	kept := p.Entries[:0]
	for i := range p.Entries {
		if err := b.svc.opts.Refused(); err != nil {
			return err
		}
		e := &p.Entries[i]
		keep := true
		var err error
		switch {
		case e.Flags&backup.Wanted != 0:
			keep, err = b.readEntry(ctx, &at, p, e)
		case e.Flags&backup.XattrsWanted != 0 && e.Kind == backup.File:
			keep, err = b.readXattrsAlone(ctx, &at, p, e)
		case e.Flags&backup.XattrsWanted != 0:
			keep, err = b.readOwnXattrs(ctx, &at, p, e)
		}
		if err != nil {
			return err
		}
		if keep {
			kept = append(kept, *e)
		}
	}
	clear(p.Entries[len(kept):])
	p.Entries = kept
	b.report(backup.Progress{Path: p.Path})
	return nil
}

// readEntry reads a wanted file, or settles how it is recorded. keep is false if the file no longer
// exists.
func (b *batch) readEntry(ctx context.Context, at *place, p *page, e *backup.Entry) (keep bool, err error) {
	e.Flags &^= backup.Wanted | backup.XattrsWanted
	size := e.Size
	b.fileBegins(size)
	err = b.again(ctx, at, p, func(last bool) error { return b.readFile(ctx, at, p, e, last) })
	if keep, err = b.settle(ctx, at, p, e, err); err != nil {
		return false, err
	}
	b.fileEnds(keep, e.Size)
	if !keep {
		b.counts.Bytes -= size
		return false, nil
	}
	b.counts.AddBytes(min(e.Size, backup.MaxCount) - min(size, backup.MaxCount))
	return true, nil
}

// again calls read, unless the directory could not be opened. If the file server reports a stale
// handle, the directory is opened once more, by its path, and read is called for the last time.
func (b *batch) again(ctx context.Context, at *place, p *page, read func(last bool) error) error {
	err := at.err
	if err == nil {
		err = read(false)
	}
	if !errors.Is(err, source.ErrStale) {
		return err
	}
	at.close()
	if *at = b.openPlace(ctx, p.Path); at.err != nil {
		return at.err
	}
	return read(true)
}

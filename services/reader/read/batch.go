package read

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/time/rate"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/telemetry"
)

// A batch is one attempt at a read batch.
type batch struct {
	svc      *Service
	msg      *backup.ReadBatch
	delivery delivery
	started  time.Time
	trace    telemetry.Parent
	pages    []page               // while it is read
	complete []backup.PageVersion // then

	// What the goroutine that reads uses:
	hash   *chunk.Hasher
	cutter *chunk.Cutter
	window *window
	links  map[link]backup.Content // of files that have several names
	tree   source.Tree
	file   watchedFile   // the one that is open
	pace   *rate.Limiter // nil: there is no limit

	// What the filer took, and was not told yet:
	opens, largeOpens int64
	openSeconds       float64

	// What the watch goes by:
	call    atomic.Int64 // tick at which the call of the source began; 0: there is none
	stalled bool         // under the watch's mu
	counted bool         // as in hand; under the watch's mu

	counts       backup.Counts
	problems     []backup.Problem
	problemBytes int
	inlineBytes  int // of xattrs that the listings hold

	// What store workers tell, under mu:
	storing sync.WaitGroup // windows that are not stored yet
	mu      sync.Mutex
	packs   map[*packRef]struct{} // what the content is in
	stage   backup.Counts         // of the stages after reading
	err     error
}

// A page of a batch, on its way to being complete.
type page struct {
	backup.Page
	version backup.PageVersion
	again   bool                     // the next snapshot must look at it again
	old     map[string]*backup.Entry // of the page's names, in the last snapshot; nil until it is needed
}

// What a batch may add to its pages, so that they still fit one message.
const (
	// inlineXattrBytes is what xattrs may take in the batch's listings; those
	// that come after are stored as chunks.
	inlineXattrBytes = 48 << 10
	// maxProblemBytes is what is told of problems; all are counted, and flagged.
	maxProblemBytes = 96 << 10
	problemOverhead = 64
)

func newBatch(s *Service, msg *backup.ReadBatch, d delivery) *batch {
	return &batch{svc: s, msg: msg, delivery: d, started: time.Now(), packs: map[*packRef]struct{}{}}
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

// read reads all wanted files, and gives their chunks to the store workers.
func (b *batch) read(ctx context.Context) error {
	if err := b.decode(); err != nil {
		return err
	}
	b.hash = chunk.NewHasher(b.svc.Key.Dedup)
	b.pace = newPace(b.msg.Job.ReadBytesPerSecond)
	tree, err := b.openTree(ctx)
	if err != nil {
		return err
	}
	b.tree = tree
	defer tree.Close()
	defer b.giveBack()
	for i := range b.pages {
		if err := b.readPage(ctx, &b.pages[i]); err != nil {
			return err
		}
	}
	if err := b.flush(ctx); err != nil {
		return err
	}
	// What was read of a source snapshot that expired meanwhile may be of another.
	if err := tree.Check(ctx); err != nil {
		return err
	}
	return b.encode()
}

func (b *batch) readPage(ctx context.Context, p *page) error {
	dir, err := b.tree.OpenDirectory(ctx, p.Path)
	if err != nil {
		dir = nil
		if ctx.Err() != nil || errors.Is(err, backup.ErrUnavailable) {
			return err
		}
	} else {
		defer dir.Close()
	}
	kept := p.Entries[:0]
	for i := range p.Entries {
		e := &p.Entries[i]
		if e.Flags&backup.Wanted == 0 {
			kept = append(kept, *e)
			continue
		}
		e.Flags &^= backup.Wanted
		size := e.Size
		openErr := err
		if dir != nil && !b.isRead(e) {
			openErr = b.readFile(ctx, dir, p, e)
		}
		keep, err := b.settle(ctx, p, e, openErr)
		if err != nil {
			return err
		}
		if !keep {
			b.counts.Files--
			b.counts.Bytes -= size
			continue
		}
		b.counts.Bytes += e.Size - size
		kept = append(kept, *e)
		b.svc.Report.Add(b.msg.Job.Snapshot, b.progress(backup.Progress{FilesDone: 1, BytesDone: e.Size}))
	}
	clear(p.Entries[len(kept):])
	p.Entries = kept
	b.svc.Report.Add(b.msg.Job.Snapshot, b.progress(backup.Progress{Path: p.Path}))
	return nil
}

// progress adds what the filer took since it was told last.
func (b *batch) progress(p backup.Progress) backup.Progress {
	p.Opens, p.OpenSeconds = b.opens, b.openSeconds
	b.opens, b.openSeconds = 0, 0
	return p
}

// settle decides what becomes of a file that was read, or could not be. keep
// is false where it is not there any more.
func (b *batch) settle(ctx context.Context, p *page, e *backup.Entry, err error) (keep bool, fatal error) {
	switch {
	case err == nil:
		if e.Flags != 0 {
			p.again = true
		}
		return true, nil
	case ctx.Err() != nil, errors.Is(err, backup.ErrUnavailable):
		return false, err
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, backup.ErrOutside), errors.Is(err, syscall.ENOTDIR), errors.Is(err, source.ErrStale):
		if err := b.tree.Check(ctx); err != nil {
			return false, err // it is not gone: all is
		}
		p.again = true
		return false, nil // what is at this name now is for the next snapshot
	}
	p.again = true
	b.problem(p, e.Name, "read", err)
	return true, b.carryForward(ctx, p, e)
}

// carryForward puts the last good copy in the place of a file that cannot be read.
func (b *batch) carryForward(ctx context.Context, p *page, e *backup.Entry) error {
	e.Content, e.Xattrs, e.XattrChunk = backup.Content{}, nil, backup.Ref{}
	if err := b.readOld(ctx, p); err != nil {
		return err
	}
	old := p.old[e.Name]
	if old != nil && old.Kind == backup.File && (len(old.Content.Refs) > 0 || old.Flags&backup.Unreadable == 0) {
		*e = *old
		if err := b.placeXattrs(ctx, e, old.Xattrs); err != nil {
			return err
		}
	}
	e.Flags |= backup.Unreadable
	return nil
}

// readOld fetches what the last snapshot has of the page's names: on the page
// of the same key most of the time, else on others of the directory, of which one
// is held at a time.
func (b *batch) readOld(ctx context.Context, p *page) error {
	if p.old != nil {
		return nil
	}
	old := make(map[string]*backup.Entry, len(p.Entries))
	for i := range p.Entries {
		old[p.Entries[i].Name] = nil
	}
	job := &b.msg.Job
	if job.Base > 0 {
		keys, err := b.svc.Index.PageKeys(ctx, job.Shard, job.Base, p.Path)
		if err != nil {
			return err
		}
		if i := slices.Index(keys, p.Key); i > 0 {
			keys[0], keys[i] = keys[i], keys[0]
		}
		missing := len(old)
		for i := 0; i < len(keys) && missing > 0; i++ {
			found, err := b.readOldPage(ctx, backup.PageName{Path: p.Path, Key: keys[i]}, old)
			if err != nil {
				return err
			}
			missing -= found
		}
	}
	p.old = old
	return nil
}

// readOldPage puts the entries of one page whose names are wanted into old.
func (b *batch) readOldPage(ctx context.Context, name backup.PageName, old map[string]*backup.Entry) (found int, err error) {
	job := &b.msg.Job
	listings, err := b.svc.Index.Listings(ctx, job.Shard, job.Base, []backup.PageName{name})
	if err != nil || len(listings) == 0 || listings[0] == nil {
		return 0, err
	}
	page, err := listing.DecodePage(backup.PageVersion{Path: name.Path, Key: name.Key, Listing: listings[0]})
	if err != nil {
		return 0, err
	}
	for i := range page.Entries {
		e := page.Entries[i]
		if before, wanted := old[e.Name]; wanted && before == nil {
			old[e.Name] = &e
			found++
		}
	}
	return found, nil
}

func (b *batch) problem(p *page, name, op string, err error) {
	b.counts.Errors++
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	path := backup.Join(p.Path, name)
	b.problemBytes += len(path) + len(err.Error()) + problemOverhead
	if b.problemBytes > maxProblemBytes {
		return
	}
	b.problems = append(b.problems, backup.Problem{Path: path, Op: op, Err: err.Error()})
}

package read

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"syscall"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
)

// A batch is one attempt at a read batch.
type batch struct {
	svc   *Service
	msg   *backup.ReadBatch
	pages []page

	// What the goroutine that reads uses:
	hash   *chunk.Hasher
	cutter *chunk.Cutter
	window *window

	counts   backup.Counts
	problems []backup.Problem

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
	again   bool // the next snapshot must look at it again
	inline  int  // bytes of xattrs that the listing holds
	old     []backup.Entry
	oldRead bool
}

// inlineXattrBytes is what the xattrs of a page's files may take in its
// listing; those that come after are stored as chunks.
const inlineXattrBytes = 48 << 10

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
	b.hash = chunk.NewHasher(b.svc.Key.Dedup)
	tree, err := b.svc.Source.Open(ctx, b.msg.Job.Source)
	if err != nil {
		return err
	}
	defer tree.Close()
	defer b.giveBack()
	for i := range b.pages {
		if err := b.readPage(ctx, tree, &b.pages[i]); err != nil {
			return err
		}
	}
	return b.flush(ctx)
}

func (b *batch) readPage(ctx context.Context, tree source.Tree, p *page) error {
	dir, err := tree.OpenDirectory(ctx, p.Path)
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
		if dir != nil {
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
		b.svc.Report.Add(b.msg.Job.Snapshot, backup.Progress{FilesDone: 1, BytesDone: e.Size})
	}
	clear(p.Entries[len(kept):])
	p.Entries = kept
	b.svc.Report.Add(b.msg.Job.Snapshot, backup.Progress{Path: p.Path})
	return nil
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
	i, ok := slices.BinarySearchFunc(p.old, e.Name, func(o backup.Entry, name string) int {
		switch {
		case o.Name < name:
			return -1
		case o.Name > name:
			return 1
		}
		return 0
	})
	if ok && p.old[i].Kind == backup.File && (len(p.old[i].Content.Refs) > 0 || p.old[i].Flags&backup.Unreadable == 0) {
		*e = p.old[i]
	}
	e.Flags |= backup.Unreadable
	return nil
}

// readOld fetches what the last snapshot has of the page's directory.
func (b *batch) readOld(ctx context.Context, p *page) error {
	if p.oldRead || b.msg.Job.Base == 0 {
		return nil
	}
	job := &b.msg.Job
	keys, err := b.svc.Index.PageKeys(ctx, job.Shard, job.Base, p.Path)
	if err != nil {
		return err
	}
	names := make([]backup.PageName, len(keys))
	for i, key := range keys {
		names[i] = backup.PageName{Path: p.Path, Key: key}
	}
	listings, err := b.svc.Index.Listings(ctx, job.Shard, job.Base, names)
	if err != nil {
		return err
	}
	for i, data := range listings {
		if data == nil {
			continue
		}
		old, err := listing.DecodePage(backup.PageVersion{Path: p.Path, Key: keys[i], Listing: data})
		if err != nil {
			return err
		}
		p.old = append(p.old, old.Entries...)
	}
	p.old = listing.Sort(p.old)
	p.oldRead = true
	return nil
}

func (b *batch) problem(p *page, name, op string, err error) {
	b.counts.Errors++
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	b.problems = append(b.problems, backup.Problem{Path: backup.Join(p.Path, name), Op: op, Err: err.Error()})
}

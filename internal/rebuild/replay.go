package rebuild

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

const (
	changesAtOnce = 1000   // changes that are applied in one transaction
	maxReplaced   = 200000 // pages whose old digests are kept for the end of the segment
)

// A replay applies the segment of one snapshot to the pages of the shard.
type replay struct {
	*shard
	record *record
	pages  backup.PageSet // so far
	bytes  int64          // of the segment
	// replaced are the digests of the base's versions of pages that were added: the segment ends
	// them later.
	replaced map[backup.PageName]backup.PageDigest
}

// replay applies the segment of a snapshot, and compares the digest of all pages with that of the
// record (I12).
func (s *shard) replay(ctx context.Context, r *record) error {
	p := &replay{shard: s, record: r, pages: s.at.pages, replaced: map[backup.PageName]backup.PageDigest{}}
	apply := p.segment
	if r.Segment.Checkpoint {
		apply, p.pages = p.checkpoint, backup.PageSet{}
	}
	if err := apply(ctx); err != nil {
		return err
	}
	if p.pages != r.Pages {
		return fmt.Errorf("its segment makes %d pages, and its record gives %d, or other ones: %w", p.pages.Pages, r.Pages.Pages, backup.ErrCorrupt)
	}
	if r.Segment.Checkpoint {
		s.checkpointBytes, s.segmentBytes = p.bytes, 0
	} else {
		s.segmentBytes += p.bytes
	}
	return nil
}

// segment applies the changes since the base.
func (p *replay) segment(ctx context.Context) error {
	return p.pipe(ctx, func(ctx context.Context, write func(context.Context, []index.RecoveredChange) error) error {
		var changes []index.RecoveredChange
		for c, err := range p.stored(ctx) {
			if err != nil {
				return err
			}
			changes = append(changes, index.RecoveredChange{Change: c.PageChange, Patched: c.Patched})
			if len(changes) == changesAtOnce {
				if err := p.apply(ctx, changes, write); err != nil {
					return err
				}
				changes = nil
			}
		}
		return p.apply(ctx, changes, write)
	})
}

// pipe calls prepare, whose changes are written while it prepares the next ones.
func (p *replay) pipe(ctx context.Context, prepare func(ctx context.Context, write func(context.Context, []index.RecoveredChange) error) error) error {
	working, ctx := errgroup.WithContext(ctx)
	prepared := make(chan []index.RecoveredChange, 1)
	working.Go(func() error {
		defer close(prepared)
		return prepare(ctx, func(ctx context.Context, changes []index.RecoveredChange) error {
			if len(changes) == 0 {
				return nil
			}
			if err := p.Index.PreparePages(ctx, p.ID, p.at.number, changes); err != nil {
				return err
			}
			select {
			case prepared <- changes:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	})
	working.Go(func() error {
		for changes := range prepared {
			if err := p.write(ctx, changes); err != nil {
				return err
			}
		}
		return nil
	})
	return working.Wait()
}

// apply applies changes of a segment, and adds up the digests of all pages.
func (p *replay) apply(ctx context.Context, changes []index.RecoveredChange, write func(context.Context, []index.RecoveredChange) error) error {
	for i := range changes {
		c := &changes[i]
		name := backup.PageName{Path: c.Path, Key: c.Key}
		if digest, ok := p.replaced[name]; ok && c.Ended {
			c.Digest = digest
			delete(p.replaced, name)
		}
	}
	if err := write(ctx, changes); err != nil {
		return err
	}
	for i := range changes {
		c := &changes[i]
		if c.Ended {
			p.pages.Remove(c.Digest)
			continue
		}
		p.pages.Add(c.Digest)
		if c.Replaces && len(p.replaced) < maxReplaced {
			p.replaced[backup.PageName{Path: c.Path, Key: c.Key}] = c.Replaced
		}
	}
	return nil
}

// checkpoint makes the pages those of a checkpoint. What the pages so far have, too, does not
// change.
func (p *replay) checkpoint(ctx context.Context) error {
	if p.at.number == 0 {
		return p.segment(ctx)
	}
	return p.pipe(ctx, func(ctx context.Context, write func(context.Context, []index.RecoveredChange) error) error {
		var changes []index.RecoveredChange
		for c, err := range difference(p.Index.Subtree(ctx, p.ID, p.at.number, ""), p.added(ctx)) {
			if err != nil {
				return err
			}
			if changes = append(changes, index.RecoveredChange{Change: c}); len(changes) == changesAtOnce {
				if err := write(ctx, changes); err != nil {
					return err
				}
				changes = nil
			}
		}
		return write(ctx, changes)
	})
}

// added yields the pages of the checkpoint, and adds up their digests.
func (p *replay) added(ctx context.Context) iter.Seq2[backup.PageVersion, error] {
	return func(yield func(backup.PageVersion, error) bool) {
		for c, err := range p.stored(ctx) {
			p.pages.Add(c.Digest)
			c.PageVersion.Digest = c.Digest
			if !yield(c.PageVersion, err) {
				return
			}
		}
	}
}

// difference yields the changes from old to pages. Both are in the order of their path keys.
func difference(old, pages iter.Seq2[backup.PageVersion, error]) iter.Seq2[index.Change, error] {
	return func(yield func(index.Change, error) bool) {
		next, stop := iter.Pull2(old)
		defer stop()
		before, oldErr, more := next()
		// endBefore ends the old pages before a page, or all of them.
		endBefore := func(page *backup.PageVersion) bool {
			for more && oldErr == nil && (page == nil || comparePages(&before, page) < 0) {
				if !yield(index.Change{Ended: true, Digest: before.Digest, PageVersion: before}, nil) {
					return false
				}
				before, oldErr, more = next()
			}
			if oldErr != nil {
				yield(index.Change{}, oldErr)
			}
			return oldErr == nil
		}
		var last backup.PageVersion
		for page, err := range pages {
			if err == nil && last.Listing != nil && comparePages(&last, &page) >= 0 {
				err = fmt.Errorf("the pages of the checkpoint are not in the order of their paths: %w", backup.ErrCorrupt)
			}
			if err != nil {
				yield(index.Change{}, err)
				return
			}
			if last = page; !endBefore(&page) {
				return
			}
			same := more && comparePages(&before, &page) == 0
			if !same || before.Digest != page.Digest {
				if !yield(index.Change{Digest: page.Digest, PageVersion: page}, nil) {
					return
				}
			}
			if same {
				before, oldErr, more = next()
			}
		}
		endBefore(nil)
	}
}

// comparePages compares pages in the order of the index.
func comparePages(a, b *backup.PageVersion) int {
	if a.Path == b.Path {
		return cmp.Compare(a.Key, b.Key)
	}
	return slices.Compare(backup.PathKey(a.Path), backup.PathKey(b.Path))
}

// write writes changes to the index, after the lists to which they refer.
func (p *replay) write(ctx context.Context, changes []index.RecoveredChange) error {
	if len(changes) == 0 {
		return nil
	}
	var lists []backup.ChunkID
	for i := range changes {
		if changes[i].Ended {
			continue
		}
		p.result.Pages++
		chunks, err := listing.ReadChunks(changes[i].Listing)
		if err != nil {
			return fmt.Errorf("page %d of %q: %w", changes[i].Key, changes[i].Path, err)
		}
		lists = append(lists, chunks.Lists...)
	}
	if err := p.readLists(ctx, lists); err != nil {
		return err
	}
	return p.Index.RecoverPages(ctx, p.ID, p.record.Number, changes)
}

// stored yields the changes in the segment of the snapshot.
func (p *replay) stored(ctx context.Context) iter.Seq2[journal.StoredChange, error] {
	return func(yield func(journal.StoredChange, error) bool) {
		for part, err := range p.parts(ctx) {
			if err != nil {
				yield(journal.StoredChange{}, err)
				return
			}
			for c, err := range part.StoredChanges() {
				if !yield(c, err) || err != nil {
					return
				}
			}
		}
	}
}

// An openedPart is the result of getPart.
type openedPart struct {
	part  *journal.SegmentPart
	bytes int64
	err   error
}

// parts yields the parts of the segment. It reads one part ahead.
func (p *replay) parts(ctx context.Context) iter.Seq2[*journal.SegmentPart, error] {
	return func(yield func(*journal.SegmentPart, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		opened := make(chan openedPart)
		defer func() {
			cancel()
			for range opened { // until the goroutine has ended
			}
		}()
		go func() {
			defer close(opened)
			for n := range p.record.Segment.Parts {
				part, bytes, err := p.getPart(ctx, n)
				select {
				case opened <- openedPart{part, bytes, err}:
				case <-ctx.Done():
					return
				}
			}
		}()
		for o := range opened {
			p.bytes += o.bytes
			if !yield(o.part, o.err) || o.err != nil {
				return
			}
		}
		if err := ctx.Err(); err != nil {
			yield(nil, err)
		}
	}
}

func (p *replay) getPart(ctx context.Context, n int) (_ *journal.SegmentPart, bytes int64, err error) {
	g := &p.record.Segment
	name := store.SegmentName(p.record.ID, g.Attempt, n)
	data, err := p.Store.Get(ctx, name, pack.MaxBytes)
	if err != nil {
		return nil, 0, err
	}
	part, err := journal.OpenSegment(data, p.record.ID, g.Attempt, n, p.Trust)
	if err != nil {
		return nil, 0, err
	}
	if h := &part.Header; h.Checkpoint != g.Checkpoint || h.Last != (n == g.Parts-1) {
		return nil, 0, fmt.Errorf("%s: it is not part %d of %d of the segment: %w", name, n, g.Parts, backup.ErrCorrupt)
	}
	return part, int64(len(data)), nil
}

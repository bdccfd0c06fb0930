package check

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// maxMissing bounds the missing chunks and lists that are remembered.
const maxMissing = 1 << 20

// A part is a part of the chunks, by their ids, with the places that they have.
type part struct {
	*checker
	in    func(*backup.ChunkID) bool
	has   *idSet     // the chunks in packs that exist
	lists *markedSet // all known lists; those that pages need are marked
	mu    sync.Mutex // of missing, unknown and needs
}

// checkIndex checks the pages of all shards, and the places of what they refer to.
func (c *checker) checkIndex(ctx context.Context) error {
	lists := newIDSet(0)
	for list, err := range c.Index.ChunkLists(ctx) {
		if err != nil {
			return err
		}
		lists.add(&list.List)
	}
	known := newMarkedSet(lists)
	total := int64(0)
	for i := range c.packs {
		total += c.packs[i].Chunks
	}
	parts := 1
	for total/int64(parts)*slotBytes > c.MemoryBytes && parts < 1<<16 {
		parts *= 2
	}
	if c.Only != nil {
		c.needs = newIDSet(0)
	}
	for n := range parts {
		p := &part{checker: c, has: newIDSet(total/int64(parts) + total/int64(parts)/16), lists: known}
		p.in = inPart(n, parts)
		if err := p.run(ctx, n == 0); err != nil {
			return err
		}
	}
	return c.confirmMissing(ctx)
}

// inPart selects the chunks of a part.
func inPart(n, parts int) func(*backup.ChunkID) bool {
	if parts == 1 {
		return func(*backup.ChunkID) bool { return true }
	}
	return func(id *backup.ChunkID) bool { return (int(id[0])<<8|int(id[1]))*parts>>16 == n }
}

// run checks the places of the part and, with the first part, the pages.
func (p *part) run(ctx context.Context, first bool) error {
	p.step("reading the places of chunks", 0, 0)
	for place, err := range p.Index.Places(ctx, nil) {
		if err != nil {
			return err
		}
		if first {
			p.report.Chunks++
		}
		if _, exists := p.rows[place.Pack]; exists && p.in(&place.Chunk) {
			p.has.add(&place.Chunk)
		}
	}
	for n, s := range p.shards {
		p.step("checking the pages of "+s.Filer.Name+" "+s.Name, int64(n), int64(len(p.shards)))
		if err := p.shard(ctx, s, first); err != nil {
			return err
		}
	}
	return p.below(ctx)
}

// shard scans a shard. What seems wrong with its pages is reported if it is wrong twice: the
// snapshots may have been forgotten and pruned, or purged, meanwhile.
func (p *part) shard(ctx context.Context, s *shard, structure bool) error {
	first := scan{checker: p.checker, shard: s, structure: structure, part: p}
	if err := first.run(ctx); err != nil || !structure {
		return err
	}
	p.report.Versions += first.versions
	findings, err := first.judge(ctx)
	if err != nil || len(findings) == 0 {
		return err
	}
	now := &shard{ShardStatus: s.ShardStatus}
	needed, err := p.Index.Needed(ctx, nil)
	if err != nil {
		return err
	}
	now.numbers = needed[s.ID]
	if err := p.loadSnapshots(ctx, now); err != nil {
		return err
	}
	again := scan{checker: p.checker, shard: now, structure: true}
	if err := again.run(ctx); err != nil {
		return err
	}
	if findings, err = again.judge(ctx); err != nil {
		return err
	}
	for _, f := range findings {
		if f.First != 0 && f.First <= s.numbers[len(s.numbers)-1] {
			p.find(f)
		}
	}
	return nil
}

// references notes what a version refers to, and what of it is missing. It does not look again for
// chunks that the version before it has at the same position: the versions of a page have most of
// their chunks in common.
func (p *part) references(v *index.Version, w *worker) {
	w.chunks, w.before = w.before, w.chunks
	var err error
	if w.chunks, err = listing.AppendChunks(listing.Chunks{Lists: w.chunks.Lists[:0], Other: w.chunks.Other[:0]}, v.Listing); err != nil {
		return // the page is reported as damaged
	}
	for i := range w.chunks.Lists {
		if !p.lists.mark(&w.chunks.Lists[i]) {
			p.note(p.unknown, &w.chunks.Lists[i])
		}
	}
	p.look(w.chunks.Lists, w.before.Lists)
	p.look(w.chunks.Other, w.before.Other)
}

// look notes which of the chunks have no place, except those that are at the same position of seen.
func (p *part) look(ids, seen []backup.ChunkID) {
	for i := range ids {
		if i < len(seen) && ids[i] == seen[i] {
			continue
		}
		if p.in(&ids[i]) && !p.has.has(&ids[i]) {
			p.note(p.missing, &ids[i])
		}
	}
	if p.needs != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		for i := range ids {
			p.needs.add(&ids[i])
		}
	}
}

func (p *part) note(in map[backup.ChunkID]bool, id *backup.ChunkID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(in) < maxMissing {
		in[*id] = true
	}
}

// below does for the chunks in needed lists what references does. Lists of lists come first.
func (p *part) below(ctx context.Context) error {
	if p.lists.n == 0 {
		return nil
	}
	for more := true; more; {
		more = false
		for list, err := range p.Index.ChunkLists(ctx) {
			if err != nil {
				return err
			}
			if !list.Nested || !p.lists.marked(&list.List) {
				continue
			}
			for i := range list.Chunks {
				switch {
				case p.lists.marked(&list.Chunks[i]):
				case p.lists.mark(&list.Chunks[i]):
					more = true
				default:
					p.note(p.unknown, &list.Chunks[i])
				}
			}
		}
	}
	for list, err := range p.Index.ChunkLists(ctx) {
		if err != nil {
			return err
		}
		if p.lists.marked(&list.List) {
			p.look(list.Chunks, nil)
		}
	}
	return nil
}

// confirmMissing looks for missing chunks and lists again: they may have been stored since their
// places were read, and packs may have moved.
func (c *checker) confirmMissing(ctx context.Context) error {
	for ids := range slices.Chunk(slices.Collect(maps.Keys(c.missing)), 1000) {
		at, err := c.Index.LocateReadable(ctx, ids)
		if err != nil {
			return err
		}
		for i := range ids {
			if at[i] != (index.Location{}) {
				delete(c.missing, ids[i])
			}
		}
	}
	if len(c.unknown) == 0 {
		return nil
	}
	for list, err := range c.Index.ChunkLists(ctx) {
		if err != nil {
			return err
		}
		delete(c.unknown, list.List)
	}
	return nil
}

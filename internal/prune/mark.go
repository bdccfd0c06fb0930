package prune

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// listsAtOnce bounds the list chunks that are looked up at a time.
const listsAtOnce = 10_000

// mark marks a chunk of a pack.
func (p *pass) mark(place index.PlaceOf) {
	i, ok := p.rows[place.Pack]
	if !ok {
		return
	}
	k := &p.packs[i]
	k.marked++
	if n := int(place.Frame); n < k.frames {
		p.frames[(k.frame+n)/64] |= 1 << ((k.frame + n) % 64)
	}
}

// unmark takes back the marks of a pack.
func (p *pass) unmark(k *packState) {
	k.marked = 0
	for n := k.frame; n < k.frame+k.frames; n++ {
		p.frames[n/64] &^= 1 << (n % 64)
	}
}

// measure computes how much of each pack is unused.
func (p *pass) measure(ctx context.Context) error {
	for f, err := range p.Index.Frames(ctx) {
		if err != nil {
			return err
		}
		i, ok := p.rows[f.Row]
		if !ok {
			continue
		}
		k := &p.packs[i]
		switch {
		case k.Running: // what its snapshot needs is not known yet
		case k.marked == 0:
			k.unused = k.Bytes
		default:
			for n := range min(k.frames, len(f.Bytes)) {
				if p.frames[(k.frame+n)/64]&(1<<((k.frame+n)%64)) == 0 {
					k.unused += int64(f.Bytes[n])
				}
			}
		}
	}
	return nil
}

// marks are the chunks that are marked. has is never false for a chunk that was added.
type marks interface {
	add(id *backup.ChunkID)
	has(id *backup.ChunkID) bool
}

// count adds up how many chunks of each pack needed versions refer to, of the chunks that in
// selects.
func (p *pass) count(ctx context.Context, needed map[backup.ShardID][]backup.SnapshotNumber, in func(*backup.ChunkID) bool, marked marks) error {
	if err := p.addReferences(ctx, needed, in, marked); err != nil {
		return err
	}
	return p.countPlaces(ctx, in, marked)
}

func (p *pass) addReferences(ctx context.Context, needed map[backup.ShardID][]backup.SnapshotNumber, in func(*backup.ChunkID) bool, marked marks) error {
	return p.references(ctx, nil, needed, func(id *backup.ChunkID) error {
		if in(id) {
			marked.add(id)
		}
		return nil
	})
}

func (p *pass) countPlaces(ctx context.Context, in func(*backup.ChunkID) bool, marked marks) error {
	for place, err := range p.Index.Places(ctx, nil) {
		switch {
		case err != nil:
			return err
		case !in(&place.Chunk):
		case marked.has(&place.Chunk):
			p.mark(place)
		default:
			p.addFree(place)
		}
	}
	return nil
}

// countExactly is count for all chunks, with a set of them. It reports whether the set sufficed. If
// it did not, nothing was counted.
func (p *pass) countExactly(ctx context.Context, needed map[backup.ShardID][]backup.SnapshotNumber, chunks int64) (bool, error) {
	all := newSet(chunks)
	err := p.addReferences(ctx, needed, everything, all)
	if err != nil || all.full {
		return false, err
	}
	limit := min(p.MemoryBytes/freeShare, chunks)
	p.free = &freePlaces{places: make([]index.PlaceOf, 0, limit), limit: int(limit), known: true}
	err = p.countPlaces(ctx, everything, all)
	if setBytes(chunks) >= largeSet {
		debug.FreeOSMemory() // of the set: the index is about to need memory for the deletions
	}
	return true, err
}

// partsFor returns how many parts of that many chunks there must be so that what is kept of one
// part fits into memory: bytes returns its size.
func (p *pass) partsFor(chunks int64, bytes func(chunks int64) int64) int {
	parts := 1
	for bytes(chunks/int64(parts)) > p.MemoryBytes && parts < 256 {
		parts *= 2
	}
	return parts
}

// inPart selects the chunks of one of at most 256 parts, by their ids.
func inPart(n, parts int) func(*backup.ChunkID) bool {
	return func(id *backup.ChunkID) bool { return int(id[0])*parts>>8 == n }
}

func everything(*backup.ChunkID) bool { return true }

// largeSet is the size of a set whose memory is given back at once, which takes a garbage
// collection.
const largeSet = 16 << 20

// freeShare is for how many bytes of memory freePlaces hold one place.
const freeShare = 512

// freePlaces are the places in packs without marked chunks.
type freePlaces struct {
	places []index.PlaceOf
	limit  int
	known  bool // places has all of them, and perhaps some in packs that were marked later
}

// addFree adds the place of a chunk that is not marked.
func (p *pass) addFree(place index.PlaceOf) {
	f := p.free
	if f == nil || !f.known || !p.isFree(place) {
		return
	}
	if len(f.places) == f.limit {
		f.places = slices.DeleteFunc(f.places, func(place index.PlaceOf) bool { return !p.isFree(place) })
		if len(f.places) > f.limit/2 { // otherwise it would soon be full again
			f.places, f.known = nil, false
			return
		}
	}
	f.places = append(f.places, place)
}

func (p *pass) isFree(place index.PlaceOf) bool {
	i, ok := p.rows[place.Pack]
	return ok && p.packs[i].marked == 0
}

// eachFreePlace calls do for each place in packs without marked chunks. Their snapshots had ended
// when the pass read the packs. Since then these have got no further places, because the places of
// a pack are registered together with it.
func (p *pass) eachFreePlace(ctx context.Context, rows []int64, do func(index.PlaceOf)) error {
	if p.free == nil || !p.free.known {
		return p.eachPlace(ctx, rows, do)
	}
	of := make(map[int64]bool, len(rows))
	for _, row := range rows {
		of[row] = true
	}
	for _, place := range p.free.places {
		if of[place.Pack] {
			do(place)
		}
	}
	return nil
}

// suspects returns the rows of the packs whose marked chunks may all be errors of the filter.
func (p *pass) suspects() (suspects []int64) {
	for i := range p.packs {
		if k := &p.packs[i]; k.marked > 0 && k.marked <= 8+k.Chunks/500 && !k.Running {
			suspects = append(suspects, k.Row)
		}
	}
	return suspects
}

// verify counts the marked chunks of suspects again, exactly.
func (p *pass) verify(ctx context.Context, needed map[backup.ShardID][]backup.SnapshotNumber, suspects []int64) error {
	if len(suspects) == 0 {
		return nil
	}
	p.step("verifying packs that seem to be needed")
	chunks := int64(0)
	for _, row := range suspects {
		chunks += p.packs[p.rows[row]].Chunks
	}
	// The chunks of suspects, so that few of the others are held in memory.
	of := p.boundedFilter(chunks)
	if err := p.eachPlace(ctx, suspects, func(place index.PlaceOf) { of.add(&place.Chunk) }); err != nil {
		return err
	}
	exact := map[backup.ChunkID]bool{}
	limit := p.exactChunks()
	err := p.references(ctx, nil, needed, func(id *backup.ChunkID) error {
		if len(exact) < limit && of.has(id) {
			exact[*id] = true
		}
		return nil
	})
	if err != nil || len(exact) >= limit {
		p.incomplete = true
		return err // too many of them are needed: these packs stay
	}
	for _, row := range suspects {
		p.unmark(&p.packs[p.rows[row]])
	}
	return p.eachPlace(ctx, suspects, func(place index.PlaceOf) {
		if exact[place.Chunk] {
			p.mark(place)
		}
	})
}

// boundedFilter returns a filter for n chunks. If memory does not suffice, it has more errors.
func (p *pass) boundedFilter(n int64) *filter { return newFilter(min(n, p.MemoryBytes/filterBits*8)) }

// exactChunks is how many chunks are held in memory, one by one.
func (p *pass) exactChunks() int { return int(p.MemoryBytes / 64) }

// eachPlace calls do for each place in one of the packs.
func (p *pass) eachPlace(ctx context.Context, rows []int64, do func(index.PlaceOf)) error {
	for place, err := range p.Index.Places(ctx, rows) {
		if err != nil {
			return err
		}
		do(place)
	}
	return nil
}

var errUnknownLists = fmt.Errorf("the index does not know the chunks of some large files, so nothing can be deleted safely: %w", backup.ErrCorrupt)

// references calls do for each chunk to which a page refers, directly or through list chunks. from
// and needed are as in index.Pruning.References, by shard; if nil, they stand for all pages. It may
// call do several times for a chunk, and for a few chunks to which only an unneeded list refers. It
// fails if it cannot find all references.
func (p *pass) references(ctx context.Context, from map[backup.ShardID]backup.SnapshotNumber, needed map[backup.ShardID][]backup.SnapshotNumber, do func(id *backup.ChunkID) error) error {
	return p.referencesBy(ctx, newFilter(p.lists), from, needed, do)
}

// referencesBy is references with marks for the list chunks. With a set, it calls do for no chunk
// to which only an unneeded list refers.
func (p *pass) referencesBy(ctx context.Context, found marks, from map[backup.ShardID]backup.SnapshotNumber, needed map[backup.ShardID][]backup.SnapshotNumber, do func(id *backup.ChunkID) error) error {
	shards, err := p.Index.Fence(ctx)
	if err != nil {
		return err
	}
	lists := &listsFound{pass: p, filter: found}
	var chunks listing.Chunks
	for _, shard := range slices.Sorted(maps.Keys(shards)) {
		var of []backup.SnapshotNumber
		if needed != nil {
			of = append([]backup.SnapshotNumber{}, needed[shard]...)
		}
		for data, err := range p.Index.References(ctx, shard, from[shard], of) {
			if err != nil {
				return err
			}
			chunks, err = listing.AppendChunks(listing.Chunks{Lists: chunks.Lists[:0], Other: chunks.Other[:0]}, data)
			if err != nil {
				return fmt.Errorf("cannot find the chunks of a page of shard %d: %w", shard, err)
			}
			if err := lists.add(ctx, chunks.Lists); err != nil {
				return err
			}
			for _, ids := range [][]backup.ChunkID{chunks.Lists, chunks.Other} {
				for i := range ids {
					if err := do(&ids[i]); err != nil {
						return err
					}
				}
			}
		}
	}
	return lists.below(ctx, do)
}

// listsFound are the list chunks to which pages refer.
type listsFound struct {
	*pass
	filter  marks
	found   int              // how many were added
	pending []backup.ChunkID // not looked up yet
}

// add adds list chunks. The index must know each of them, and thereby the chunks that it lists.
func (l *listsFound) add(ctx context.Context, ids []backup.ChunkID) error {
	for i := range ids {
		if !l.filter.has(&ids[i]) {
			l.filter.add(&ids[i])
			l.pending = append(l.pending, ids[i])
			l.found++
		}
	}
	if len(l.pending) < listsAtOnce {
		return nil
	}
	return l.lookUp(ctx)
}

func (l *listsFound) lookUp(ctx context.Context) error {
	known, err := l.Index.HasLists(ctx, l.pending)
	if err == nil && !known {
		err = errUnknownLists
	}
	l.pending = l.pending[:0]
	return err
}

// below calls do for each chunk to which the lists refer, also through other lists. Lists of lists
// are followed first, level by level.
func (l *listsFound) below(ctx context.Context, do func(id *backup.ChunkID) error) error {
	if err := l.lookUp(ctx); err != nil || l.found == 0 {
		return err
	}
	for more := true; more; {
		more = false
		for list, err := range l.Index.ChunkLists(ctx) {
			if err != nil {
				return err
			}
			if !list.Nested || !l.filter.has(&list.List) {
				continue
			}
			before := l.found
			if err := l.add(ctx, list.Chunks); err != nil {
				return err
			}
			more = more || l.found > before
		}
		if err := l.lookUp(ctx); err != nil {
			return err
		}
	}
	for list, err := range l.Index.ChunkLists(ctx) {
		if err != nil {
			return err
		}
		if !l.filter.has(&list.List) {
			continue
		}
		for i := range list.Chunks {
			if err := do(&list.Chunks[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

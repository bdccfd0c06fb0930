package prune

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// If only a part of a pack must be locked for longer, it may cost less to split the pack than to
// lock all of it. The frames that must be locked for longer are copied into a new object, as
// compaction copies frames. The other needed frames stay in the old object, which is deleted when
// its lock has ended.
//
// In the index, the pack is replaced by two: the copy, and the pack itself with the chunks that are
// not copied. Both have new ids, so that a batch that relies on the pack for a chunk in the copy is
// refused like one that relies on a pack that was thinned.

// A split must leave at least an object's size divided by leastSplit in the old object: splitting
// is not free, because each pack has a table.
const leastSplit = 8

// chooseSplits chooses the objects to split: those for which storing a part twice until their locks
// end costs less than locking the other part for longer. The unit of the costs is a byte for a
// nanosecond.
func (p *pass) chooseSplits() {
	type cost struct {
		bytes, long int64
		need, end   time.Time
		fixed       bool
	}
	objects := map[backup.PackID]*cost{}
	for i := range p.packs {
		k := &p.packs[i]
		if objects[k.Object] == nil {
			objects[k.Object] = &cost{end: p.locks.Now}
		}
		o := objects[k.Object]
		o.bytes, o.long = o.bytes+k.Bytes, o.long+k.long
		o.need, o.end = laterOf(o.need, k.need), laterOf(o.end, k.LockedUntil)
		o.fixed = o.fixed || k.Running || k.Deleting
	}
	for i := range p.packs {
		k := &p.packs[i]
		o := objects[k.Object]
		k.split = !k.need.IsZero() && k.long > 0 && !o.fixed && o.bytes-o.long > o.bytes/leastSplit &&
			float64(o.bytes-o.long)*float64(o.need.Sub(o.end)) > float64(o.long)*float64(o.end.Sub(p.locks.Now))
	}
}

// measureLong finds out how much of each pack must be locked for longer.
func (p *pass) measureLong(ctx context.Context) error {
	for f, err := range p.Index.Frames(ctx) {
		if err != nil {
			return err
		}
		i, ok := p.rows[f.Row]
		if !ok || p.packs[i].need.IsZero() {
			continue
		}
		k := &p.packs[i]
		for n := range min(k.frames, len(f.Bytes)) {
			if at := k.frame + n; p.long[at/64]&(1<<(at%64)) != 0 {
				k.long += int64(f.Bytes[n])
			}
		}
	}
	return nil
}

// noteLong notes the frames of a pack that are marked in a class.
func (p *pass) noteLong(k *packState, marked []uint64) {
	for n := k.frame; n < k.frame+k.frames; n++ {
		p.long[n/64] |= marked[n/64] & (1 << (n % 64))
	}
}

// split splits the packs that planLocks has chosen because splitting costs less. Those that it
// cannot split are locked as a whole afterwards.
func (p *pass) split(ctx context.Context) error {
	var packs []int
	chunks, bytes := int64(0), int64(0)
	flush := func() error {
		if len(packs) == 0 || p.refused {
			return nil
		}
		err := p.splitRound(ctx, packs)
		packs, chunks, bytes = packs[:0], 0, 0
		return err
	}
	for i := range p.packs {
		k := &p.packs[i]
		if !k.split || k.Deleting {
			continue
		}
		if chunks+k.Chunks > int64(p.exactChunks()/2) || bytes+k.long > roundBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		packs, chunks, bytes = append(packs, i), chunks+k.Chunks, bytes+k.long
	}
	return flush()
}

// splitRound splits some packs, as round thins some objects.
func (p *pass) splitRound(ctx context.Context, packs []int) error {
	p.step("condemning packs of which a part must be locked for longer")
	contents, fence, ok, err := p.condemnContents(ctx, packs)
	if err == nil && ok {
		ok, err = p.findLong(ctx, fence, contents, packs)
	}
	if err != nil {
		return err
	}
	if !ok { // too little memory
		return p.Index.Acquit(ctx, p.term, p.rowsOf(packs))
	}
	p.step("copying what must be locked for longer")
	c := copying{pass: p, contents: contents, joined: map[backup.PackID]bool{}}
	first := map[backup.PackID]int64{}
	for i := range p.packs {
		k := &p.packs[i]
		if row, ok := first[k.Object]; ok && row != k.Row {
			c.joined[k.Object] = true
		}
		first[k.Object] = k.Row
	}
	for _, i := range packs {
		k := &p.packs[i]
		if !slices.Contains(contents[k.Row].long, true) { // the filter was wrong
			k.need = time.Time{}
			c.stay = append(c.stay, i)
			continue
		}
		if err := c.add(ctx, &object{packs: []int{i}}); err != nil {
			return err
		}
	}
	return c.end(ctx)
}

// findLong finds the frames of condemned packs that must be locked for longer than the packs are:
// those that wanted snapshots need, and those to which a version refers that may have appeared
// since the fence, because nobody knows yet how long it is kept. ok is false if memory does not
// suffice.
func (p *pass) findLong(ctx context.Context, fence map[backup.ShardID]backup.SnapshotNumber, contents map[int64]*content, packs []int) (ok bool, err error) {
	chunks := int64(0)
	for _, i := range packs {
		chunks += int64(len(contents[p.packs[i].Row].places))
	}
	of := p.boundedFilter(chunks)
	for _, c := range contents {
		for i := range c.places {
			of.add(&c.places[i].Chunk)
		}
	}
	until := map[backup.ChunkID]time.Time{}
	limit := p.exactChunks()
	note := func(end time.Time) func(*backup.ChunkID) error {
		return func(id *backup.ChunkID) error {
			if len(until) < limit && of.has(id) {
				until[*id] = laterOf(until[*id], end)
			}
			return nil
		}
	}
	for _, c := range p.classes() {
		if err := p.references(ctx, nil, c.needed, note(c.until)); err != nil {
			return false, err
		}
	}
	if err := p.references(ctx, fence, nil, note(time.Unix(math.MaxInt32, 0))); err != nil {
		return false, err
	}
	for _, i := range packs {
		k := &p.packs[i]
		c := contents[k.Row]
		c.long = make([]bool, len(c.needed))
		for _, place := range c.places {
			if until[place.Chunk].After(k.LockedUntil) {
				c.long[place.Frame] = true
			}
		}
	}
	return len(until) < limit, nil
}

// stays returns the pack itself, with the chunks that are needed and not copied. ok is false if
// there are none.
func (c *content) stays(k *packState) (stays index.PackCopy, ok bool) {
	if c.long == nil {
		return stays, false
	}
	stays = index.PackCopy{
		Row: k.Row, Pack: backup.NewPackID(), Offset: k.Offset, Bytes: k.Bytes, FrameBytes: c.frameBytes, PackSums: c.PackSums, Stays: true,
	}
	for _, place := range c.places {
		if c.needed[place.Frame] && !c.long[place.Frame] {
			stays.Chunks = append(stays.Chunks, place.Chunk)
		}
	}
	return stays, len(stays.Chunks) > 0
}

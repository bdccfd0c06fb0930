package prune

import (
	"context"
	"math"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/store"
)

// The frames of a pack may be needed for different times: one chunk for a year, and the others for
// a day. Then it may cost less to split the pack than to lock all of it for the longest time. The
// frames that are needed for longest are copied into new objects, as compaction copies frames, one
// object for each time until which frames must be locked. The other frames stay in the old object,
// which is locked until the last of them is not needed any more.
//
// In the index, the pack is replaced by the copies, and by itself with the chunks that are not
// copied. All have new ids, so that a batch that relies on the pack for a chunk in a copy is
// refused like one that relies on a pack that was thinned.

// A split must save at least the costs of the whole object divided by leastSplit: it takes requests
// and time.
const leastSplit = 8

// A lockCost is what it costs to lock an object. The unit of costs is a byte for a nanosecond.
type lockCost struct {
	bytes     int64
	copies    [maxClasses]int64 // of the frames that are needed until an end, with tables of their own
	need, end time.Time         // of the lock that it must have, and of the one that it has
	fixed     bool
}

// chooseSplits chooses the objects to split.
func (p *pass) chooseSplits(ctx context.Context) error {
	objects := map[backup.PackID]*lockCost{}
	for i := range p.packs {
		if k := &p.packs[i]; !k.need.IsZero() {
			objects[k.Object] = &lockCost{end: p.locks.Now}
		}
	}
	for i := range p.packs {
		if o, k := objects[p.packs[i].Object], &p.packs[i]; o != nil {
			o.bytes += k.Bytes
			o.need, o.end = laterOf(o.need, k.need), laterOf(o.end, p.lockedAbout(k))
			o.fixed = o.fixed || k.Running || k.Deleting
		}
	}
	for f, err := range p.Index.Frames(ctx) {
		if err != nil {
			return err
		}
		if i, ok := p.rows[f.Row]; ok && objects[p.packs[i].Object] != nil {
			p.addCopies(objects[p.packs[i].Object], &p.packs[i], f.Bytes)
		}
	}
	rests := map[backup.PackID]time.Time{}
	for id, o := range objects {
		if rest, ok := o.split(p.until, p.locks.Now); ok {
			rests[id] = rest
		}
	}
	for i := range p.packs {
		k := &p.packs[i]
		if rest, ok := rests[k.Object]; ok && k.need.After(rest) {
			k.split, k.rest = true, rest
		}
	}
	return nil
}

// lockedAbout returns until when the object of a pack is locked. The index does not note the lock
// of its PUT. A new object counts as if it was put now, because its copies would be.
func (p *pass) lockedAbout(k *packState) time.Time {
	if p.isFresh(k.Snapshot) {
		return laterOf(k.LockedUntil, p.locks.Now.Add(store.InitialLock))
	}
	return k.LockedUntil
}

// addCopies adds the frames of a pack to those that may be copied.
func (p *pass) addCopies(o *lockCost, k *packState, frames []uint32) {
	var copies [maxClasses]int64
	table := k.Bytes
	for n, length := range frames[:min(k.frames, len(frames))] {
		table -= int64(length)
		if end := p.endOf[k.frame+n]; end > 0 {
			copies[end-1] += int64(length)
		}
	}
	for n, bytes := range copies {
		if bytes > 0 {
			o.copies[n] += bytes + max(table, 0)
		}
	}
}

// split returns until when an object should be locked if the frames that are needed for longer are
// copied; zero: not for longer than it is. ok is false if it should not be split.
func (o *lockCost) split(until []time.Time, now time.Time) (rest time.Time, ok bool) {
	if o.fixed {
		return rest, false
	}
	whole := float64(o.bytes) * float64(o.need.Sub(now))
	least := whole - whole/leastSplit
	for last := range len(until) + 1 { // classes of which the frames are copied
		stay := time.Time{}
		for n := last; n < len(until); n++ {
			if o.copies[n] > 0 {
				stay = laterOf(stay, until[n])
			}
		}
		cost := float64(o.bytes) * float64(laterOf(o.end, stay).Sub(now))
		for n := range last {
			cost += float64(o.copies[n]) * float64(until[n].Sub(now))
		}
		if cost < least {
			least, rest, ok = cost, stay, true
		}
	}
	return rest, ok
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
		if chunks+k.Chunks > int64(p.exactChunks()/2) || bytes+k.Bytes > roundBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		packs, chunks, bytes = append(packs, i), chunks+k.Chunks, bytes+k.Bytes
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
		if len(contents[k.Row].parts()) == 0 { // the filter was wrong
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
		c.until = make([]time.Time, len(c.needed))
		for _, place := range c.places {
			if end := earlierOf(until[place.Chunk], k.need); end.After(k.LockedUntil) {
				c.until[place.Frame] = laterOf(c.until[place.Frame], end)
			}
		}
	}
	return len(until) < limit, nil
}

func earlierOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// stays returns the pack itself, with the chunks that are needed and not copied. ok is false if
// there are none.
func (c *content) stays(k *packState) (stays index.PackCopy, ok bool) {
	if c.until == nil {
		return stays, false
	}
	stays = index.PackCopy{
		Row: k.Row, Pack: backup.NewPackID(), Offset: k.Offset, Bytes: k.Bytes, FrameBytes: c.frameBytes, PackSums: c.PackSums, Stays: true,
		LockedUntil: k.LockedUntil,
	}
	for _, place := range c.places {
		if c.needed[place.Frame] && c.until[place.Frame].IsZero() {
			stays.Chunks = append(stays.Chunks, place.Chunk)
		}
	}
	return stays, len(stays.Chunks) > 0
}

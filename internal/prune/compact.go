package prune

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/store"
)

// DefaultMaxUnused is the share of the stored bytes that may stay unused in packs that are needed
// in part.
const DefaultMaxUnused = 0.1

// roundBytes bounds the bytes that one round copies, because batches cannot rely on the packs of a
// round until it ends.
const roundBytes = 8 << 30

// An object of the store has packs with unneeded frames.
type object struct {
	packs                 []int // positions in pass.packs, by offset
	bytes, unused, chunks int64
}

// compact thins packs until at most MaxUnused of what is stored is unused.
func (p *pass) compact(ctx context.Context) error {
	for {
		objects := p.choose(int64(p.exactChunks()/2), roundBytes)
		if len(objects) == 0 || p.refused {
			p.incomplete = p.incomplete || float64(p.result.Unused) > p.MaxUnused*float64(p.result.KeptBytes)
			return nil
		}
		if err := p.round(ctx, objects); err != nil {
			return err
		}
	}
}

// choose returns the objects to thin next, those with the largest unused share first, and remembers
// that they were chosen.
func (p *pass) choose(maxChunks, maxBytes int64) (chosen []*object) {
	unused, kept := p.result.Unused, p.result.KeptBytes
	tooMuch := func() bool { return float64(unused) > p.MaxUnused*float64(kept) }
	if !tooMuch() {
		return nil
	}
	byID := map[backup.PackID]*object{}
	for i := range p.packs {
		if k := &p.packs[i]; k.unused > 0 && !k.fixed() {
			byID[k.Object] = &object{}
		}
	}
	for i := range p.packs {
		k := &p.packs[i]
		o := byID[k.Object]
		switch {
		case o == nil:
		case k.fixed():
			delete(byID, k.Object)
		default:
			o.packs = append(o.packs, i)
			o.bytes, o.unused, o.chunks = o.bytes+k.Bytes, o.unused+k.unused, o.chunks+k.Chunks
		}
	}
	objects := make([]*object, 0, len(byID))
	for _, o := range byID {
		objects = append(objects, o)
	}
	slices.SortFunc(objects, func(a, b *object) int {
		return cmp.Or(cmp.Compare(float64(b.unused)/float64(b.bytes), float64(a.unused)/float64(a.bytes)),
			cmp.Compare(p.packs[a.packs[0]].Row, p.packs[b.packs[0]].Row))
	})
	for _, o := range objects {
		maxChunks, maxBytes = maxChunks-o.chunks, maxBytes-(o.bytes-o.unused)
		if !tooMuch() || maxChunks < 0 || maxBytes < 0 {
			break
		}
		slices.SortFunc(o.packs, func(a, b int) int { return cmp.Compare(p.packs[a].Offset, p.packs[b].Offset) })
		chosen = append(chosen, o)
		unused, kept = unused-o.unused, kept-o.unused
		for _, i := range o.packs {
			p.packs[i].chosen = true
		}
	}
	return chosen
}

// fixed reports whether the object of the pack stays as it is in this pass.
func (k *packState) fixed() bool {
	return k.Running || k.Condemned || k.Deleting || k.chosen || k.locked || k.split
}

// round condemns the packs of objects, finds the frames that are needed nevertheless, and copies
// these into new objects. The packs are then deleted like those of which nothing is needed.
func (p *pass) round(ctx context.Context, objects []*object) error {
	p.step("condemning packs that are unused in part")
	var all []int
	for _, o := range objects {
		all = append(all, o.packs...)
	}
	contents, _, ok, err := p.condemnContents(ctx, all)
	if err != nil {
		return err
	}
	if !ok { // too little memory
		p.incomplete = true
		return p.Index.Acquit(ctx, p.term, p.rowsOf(all))
	}
	p.step("copying the needed parts of packs")
	c := copying{pass: p, contents: contents}
	for _, o := range objects {
		if err := c.add(ctx, o); err != nil {
			return err
		}
	}
	return c.end(ctx)
}

// condemnContents reads the fence, condemns packs, and returns the fence and the contents of the
// packs. ok is false if memory does not suffice.
func (p *pass) condemnContents(ctx context.Context, packs []int) (contents map[int64]*content, fence map[backup.ShardID]backup.SnapshotNumber, ok bool, err error) {
	if fence, err = p.Index.Fence(ctx); err != nil {
		return nil, nil, false, err
	}
	needed, err := p.Index.Needed(ctx, nil)
	if err != nil {
		return nil, nil, false, err
	}
	if err := p.Index.Condemn(ctx, p.term, p.rowsOf(packs)); err != nil {
		return nil, nil, false, err
	}
	contents, ok, err = p.contents(ctx, fence, needed, packs)
	return contents, fence, ok, err
}

// end moves what is left to be moved, acquits the packs that stay, and deletes the others.
func (c *copying) end(ctx context.Context) error {
	if err := c.flush(ctx); err != nil {
		return err
	}
	if err := c.Index.Acquit(ctx, c.term, c.rowsOf(c.stay)); err != nil {
		return err
	}
	return c.delete(ctx, c.gone)
}

// A content describes a pack that is being thinned.
type content struct {
	frameBytes []uint32
	index.PackSums
	needed []bool      // by frame
	until  []time.Time // by frame: until when its copy must be locked; zero: it is not copied. nil: not split
	places []index.PlaceOf
	live   []bool // by place: the chunk is needed
}

// A part is the frames of a pack that are copied into the same object.
type part struct {
	until  time.Time // until when they must be locked, if the pack is split
	frames []bool
}

// parts returns the frames of a pack that are copied.
func (c *content) parts() (parts []part) {
	if c.until == nil {
		if slices.Contains(c.needed, true) {
			parts = append(parts, part{frames: c.needed})
		}
		return parts
	}
	for n, until := range c.until {
		if until.IsZero() {
			continue
		}
		i := slices.IndexFunc(parts, func(p part) bool { return p.until.Equal(until) })
		if i < 0 {
			i = len(parts)
			parts = append(parts, part{until, make([]bool, len(c.until))})
		}
		parts[i].frames[n] = true
	}
	return parts
}

// copied reports whether a frame is copied.
func (c *content) copied(n int) bool {
	if c.until == nil {
		return c.needed[n]
	}
	return !c.until[n].IsZero()
}

// contents returns the contents of condemned packs. A frame is needed if a needed version of a page
// refers to one of its chunks, or a version that may have appeared since the fence. The fence was
// read before the packs were condemned. ok is false if memory does not suffice.
func (p *pass) contents(ctx context.Context, fence map[backup.ShardID]backup.SnapshotNumber, needed map[backup.ShardID][]backup.SnapshotNumber, packs []int) (contents map[int64]*content, ok bool, err error) {
	p.step("finding the needed parts of packs")
	contents = make(map[int64]*content, len(packs))
	rows, chunks := p.rowsOf(packs), int64(0)
	chosen := make(map[int64]bool, len(packs))
	for _, i := range packs {
		chosen[p.packs[i].Row] = true
		chunks += p.packs[i].Chunks
	}
	for f, err := range p.Index.Frames(ctx) {
		if err != nil {
			return nil, false, err
		}
		if chosen[f.Row] {
			contents[f.Row] = &content{frameBytes: f.Bytes, PackSums: f.PackSums, needed: make([]bool, len(f.Bytes))}
		}
	}
	of := p.boundedFilter(chunks)
	if err := p.eachPlace(ctx, rows, func(place index.PlaceOf) { of.add(&place.Chunk) }); err != nil {
		return nil, false, err
	}
	found := map[backup.ChunkID]bool{}
	limit := p.exactChunks()
	note := func(id *backup.ChunkID) error {
		if len(found) < limit && of.has(id) {
			found[*id] = true
		}
		return nil
	}
	if err := p.references(ctx, nil, needed, note); err != nil {
		return nil, false, err
	}
	if err := p.references(ctx, fence, nil, note); err != nil || len(found) >= limit {
		return nil, false, err
	}
	err = p.eachPlace(ctx, rows, func(place index.PlaceOf) {
		c := contents[place.Pack]
		if c == nil || int(place.Frame) >= len(c.needed) {
			return
		}
		c.places, c.live = append(c.places, place), append(c.live, found[place.Chunk])
		c.needed[place.Frame] = c.needed[place.Frame] || found[place.Chunk]
	})
	return contents, true, err
}

// A copying joins the copies of packs in new objects.
type copying struct {
	*pass
	contents map[int64]*content
	groups   map[string]*parity.Group // by member; nil: not read yet
	next     []joint                  // objects
	spare    []byte                   // a buffer for one of them
	move     index.Move
	snapshot backup.SnapshotID      // the next objects are named after it
	moving   []int                  // packs of which move has copies, or that are dead
	joined   map[backup.PackID]bool // objects of several packs, of which some are split

	gone []int // packs that were moved, or of which nothing is needed
	stay []int // packs that stay as they are
}

// A joint is a new object with copies of packs.
type joint struct {
	until  time.Time // until when it must be locked; zero: as long as the packs
	data   []byte
	copies []index.PackCopy
}

// size returns the bytes of the next objects.
func (c *copying) size() (bytes int64) {
	for i := range c.next {
		bytes += int64(len(c.next[i].data))
	}
	return bytes
}

// joint returns the position of the next object that is locked until a time.
func (c *copying) joint(until time.Time) int {
	i := slices.IndexFunc(c.next, func(j joint) bool { return j.until.Equal(until) })
	if i < 0 {
		i = len(c.next)
		c.next, c.spare = append(c.next, joint{until: until, data: c.spare}), nil
	}
	return i
}

// begin begins the next objects.
func (c *copying) begin() {
	c.spare = c.next[0].data[:0]
	c.next, c.move, c.moving = nil, index.Move{}, nil
}

// add adds the needed frames of an object's packs to the next objects.
func (c *copying) add(ctx context.Context, o *object) error {
	kept, gain := int64(0), false
	for _, i := range o.packs {
		k := &c.packs[i]
		gain = gain || c.joined[k.Object] // a pack that is copied whole leaves the others
		for n, length := range c.contents[k.Row].frameBytes {
			if c.contents[k.Row].copied(n) {
				kept += int64(length)
			} else {
				gain = gain || length > 0
			}
		}
	}
	switch {
	case !gain || c.refused:
		c.stay = append(c.stay, o.packs...)
		return nil
	case kept == 0: // by now nothing needs a frame of the object
		rows := c.rowsOf(o.packs)
		if err := c.Index.Deleting(ctx, c.term, rows); err != nil {
			return err
		}
		for _, i := range o.packs {
			c.deleted(&c.packs[i])
		}
		c.gone = append(c.gone, o.packs...)
		return nil
	}
	if size := c.size(); size > 0 && size+kept > pack.TargetBytes {
		if err := c.flush(ctx); err != nil {
			return err
		}
	}
	return c.read(ctx, o)
}

// read copies the needed frames of an object's packs. A missing or damaged object stays as it is,
// because pruning repairs nothing.
func (c *copying) read(ctx context.Context, o *object) error {
	next, stays, dead := slices.Clone(c.next), c.move.Copies, c.move.Dead
	changed := c.checkMember(ctx, o)
	for _, i := range o.packs {
		k := &c.packs[i]
		content := c.contents[k.Row]
		parts := content.parts()
		if len(parts) == 0 {
			dead = append(dead, k.Row)
			continue
		}
		err := changed
		for _, part := range parts {
			if err != nil {
				break
			}
			err = c.copyPack(ctx, k, part)
		}
		switch {
		case err == nil:
		case errors.Is(err, fs.ErrPermission):
			c.refuse(err)
			c.next, c.stay = next, append(c.stay, o.packs...)
			return nil
		case isOfObject(err):
			c.incomplete = true
			c.Log.Warn("a pack cannot be thinned, and stays as it is (bctl doctor says more)", "pack", k.PackPlace.Pack.String(), "error", err)
			c.next, c.stay = next, append(c.stay, o.packs...)
			return nil
		default:
			return err
		}
		if rest, ok := content.stays(k); ok {
			stays = append(stays, rest)
		}
	}
	if len(c.moving) == 0 {
		c.snapshot = c.packs[o.packs[0]].Snapshot
	}
	c.move.Copies, c.move.Dead = stays, dead
	c.moving = append(c.moving, o.packs...)
	return nil
}

// checkMember compares an object without known checksums with what its parity group was made of, if
// it has one. If it differs, parity can bring the sound bytes back, as long as it stays.
func (c *copying) checkMember(ctx context.Context, o *object) error {
	for _, i := range o.packs {
		if content := c.contents[c.packs[i].Row]; len(content.Sums) > 0 && !content.Adopted {
			return nil
		}
	}
	if c.groups == nil {
		groups, err := validGroups(ctx, c.Index)
		if err != nil {
			return err
		}
		c.groups = map[string]*parity.Group{}
		for n := range groups {
			for m := range groups[n].Members {
				c.groups[groups[n].Members[m].Name()] = &groups[n]
			}
		}
	}
	first := &c.packs[o.packs[0]]
	name := store.PackName(first.Snapshot, first.Object)
	if g := c.groups[name]; g != nil {
		return g.Check(ctx, c.Store, name)
	}
	return nil
}

// isOfObject reports whether an error concerns one object, which is missing, damaged or another
// one, and not the store.
func isOfObject(err error) bool {
	return errors.Is(err, backup.ErrNotFound) || errors.Is(err, backup.ErrCorrupt) || errors.Is(err, backup.ErrInvalid)
}

// copyPack appends a part of a pack to the next object that is locked as long. It fails with
// backup.ErrCorrupt if a frame does not match its checksum, so that damage never gets checksums
// that match it.
func (c *copying) copyPack(ctx context.Context, k *packState, of part) error {
	to := c.joint(of.until)
	content, data := c.contents[k.Row], c.next[to].data
	start := len(data)
	keep := func(n int) bool { return of.frames[n] }
	at := pack.Place{Object: store.PackName(k.Snapshot, k.Object), Offset: k.Offset, Bytes: k.Bytes}
	data, err := pack.ReadThin(ctx, data, c.Store, at, cmp.Or(k.Sealed, k.PackPlace.Pack), content.frameBytes, keep)
	copied := index.PackCopy{Row: k.Row, Pack: backup.NewPackID(), Offset: int64(start), Bytes: int64(len(data) - start), PackSums: content.PackSums}
	if err != nil {
		return err
	}
	for n, length := range content.frameBytes {
		if !keep(n) {
			length = 0
		}
		copied.FrameBytes = append(copied.FrameBytes, length)
	}
	sums, err := pack.SumsOf(data[start:], copied.FrameBytes)
	switch {
	case err != nil:
		return err
	case len(content.Sums) == 0:
		copied.Adopted = true
	case !bytes.Equal(sums, pack.Sums(content.Sums).Keep(keep)):
		return fmt.Errorf("a frame does not match its checksum: %w", backup.ErrCorrupt)
	}
	copied.Sums = sums
	for _, place := range content.places {
		if keep(int(place.Frame)) {
			copied.Chunks = append(copied.Chunks, place.Chunk)
		}
	}
	c.next[to].data, c.next[to].copies = data, append(c.next[to].copies, copied)
	return nil
}

// refuse records that the store does not let packs be copied now. The pass copies no more packs,
// but continues with its deletions.
func (c *copying) refuse(err error) {
	c.refused, c.incomplete = true, true
	c.Log.Warn("packs that are unused in part stay as they are, because the store does not let them be copied (renew the permissions of the pruner, or make room)", "error", err)
}

// flush writes the next objects, and moves the packs to them.
func (c *copying) flush(ctx context.Context) error {
	if len(c.moving) == 0 {
		return nil
	}
	c.step("copying the needed parts of packs")
	for i := range c.next {
		plan, err := c.write(ctx, &c.next[i])
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, store.ErrFull) {
			c.refuse(err)
			c.stay = append(c.stay, c.moving...)
			c.begin()
			return nil
		}
		if err != nil {
			return err
		}
		if i == 0 {
			c.move.Plan = plan
		}
		for n := range c.next[i].copies {
			c.next[i].copies[n].Plan = plan
		}
		c.move.Copies = append(c.move.Copies, c.next[i].copies...)
	}
	if err := c.Index.Move(ctx, c.term, c.move); err != nil {
		return err
	}
	c.moved()
	return nil
}

// write writes and locks an object, and returns the row of its plan. The index knows the object
// before the store has it. So if a pass ends in between, the next one finds the object.
func (c *copying) write(ctx context.Context, j *joint) (plan int64, err error) {
	id := backup.NewPackID()
	if plan, err = c.Index.Plan(ctx, c.term, c.snapshot, id); err != nil {
		return 0, err
	}
	name := store.PackName(c.snapshot, id)
	if err := c.Store.Put(ctx, name, j.data); err != nil {
		return 0, err
	}
	c.wrote(c.snapshot, id, j.data)
	return plan, c.lockCopies(ctx, name, j)
}

// lockCopies locks a new object for as long as it must be, or as the packs of which it has copies
// are.
func (c *copying) lockCopies(ctx context.Context, name string, j *joint) error {
	until := j.until
	for i := range j.copies {
		if k := &c.packs[c.rows[j.copies[i].Row]]; j.until.IsZero() {
			until = laterOf(until, laterOf(k.LockedUntil, k.need))
		}
	}
	if !c.ObjectLock || !until.After(c.locks.Now) {
		return nil
	}
	for i := range j.copies {
		j.copies[i].LockedUntil = laterOf(until, c.locks.Now.Add(store.InitialLock)) // by the PUT
	}
	c.result.Extended++
	return c.Store.Lock(ctx, name, until)
}

// moved adds what flush has moved to the result.
func (c *copying) moved() {
	for i := range c.move.Copies {
		copied := &c.move.Copies[i]
		k := &c.packs[c.rows[copied.Row]]
		if copied.Stays {
			c.stays[k.Object] = true
			c.result.KeptBytes += k.Bytes
			continue
		}
		c.result.Copied += copied.Bytes
		c.result.KeptBytes += copied.Bytes
		if !k.locked { // otherwise it is freed when its lock ends
			c.result.Freed -= copied.Bytes
		}
		if k.Deleting { // it has other copies
			continue
		}
		k.Deleting = true
		c.result.Thinned++
		c.result.KeptBytes -= k.Bytes
		c.result.Unused -= k.unused
		if !k.locked {
			c.result.Freed += k.Bytes
			k.counted = true
		}
	}
	for _, row := range c.move.Dead {
		c.deleted(&c.packs[c.rows[row]])
	}
	c.gone = append(c.gone, c.moving...)
	c.begin()
}

// wouldCompact adds to the result what compact would do, as far as that can be known beforehand.
func (p *pass) wouldCompact() {
	const all = 1 << 62
	for _, o := range p.choose(all, all) {
		for _, i := range o.packs {
			k := &p.packs[i]
			if k.marked == 0 {
				p.deleted(k)
				continue
			}
			p.result.Thinned++
			p.result.Copied += k.Bytes - k.unused
			p.result.Freed += k.unused
			p.result.KeptBytes -= k.unused
			p.result.Unused -= k.unused
		}
	}
}

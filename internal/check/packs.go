package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// buffers are those of one pack that is read.
type buffers struct {
	sealed, plain []byte
	hasher        *chunk.Hasher
}

// checkPacks checks packs, in this order, and returns those that are damaged.
func (c *checker) checkPacks(ctx context.Context, order []int) (damages []*Finding, err error) {
	atATime := objectsAtATime
	if c.Level >= Content {
		atATime = c.Workers
	}
	free := make(chan *buffers, atATime)
	for range atATime {
		b := &buffers{}
		if c.Level >= Content {
			b.hasher = chunk.NewHasher([32]byte(c.HashKey))
		}
		free <- b
	}
	all, done := int64(0), atomic.Int64{}
	for _, i := range order {
		all += c.packs[i].Bytes
	}
	step := "checking packs"
	if c.Level >= Content {
		step = "reading packs"
	}
	err = each(ctx, len(order), atATime, func(ctx context.Context, n int) error {
		k := &c.packs[order[n]]
		b := <-free
		defer func() { free <- b }()
		f, err := c.checkPack(ctx, k, b)
		if err != nil {
			return err
		}
		if f != nil {
			c.mu.Lock()
			damages = append(damages, f)
			c.mu.Unlock()
		}
		c.step(step, done.Add(k.Bytes), all)
		return nil
	})
	return damages, err
}

// checkEnds finds objects with other bytes after their last pack. A rebuild, which looks for the
// trailer of the last pack at the end, could not use them. An object may be longer because the
// index does not need its last pack any more.
func (c *checker) checkEnds(ctx context.Context, damages []*Finding) ([]*Finding, error) {
	known := map[string]bool{}
	for _, f := range damages {
		known[f.Object] = true
	}
	for _, k := range c.long {
		name := store.PackName(k.Snapshot, k.Object)
		if known[name] {
			continue
		}
		err := backup.ErrCorrupt
		if k.size <= pack.MaxBytes {
			var data []byte
			if data, err = c.Store.GetRange(ctx, nil, name, 0, k.size); err == nil {
				err = pack.InspectObject(data, c.Repository.ID)
			}
		}
		switch {
		case errors.Is(err, backup.ErrCorrupt), errors.Is(err, backup.ErrInvalid):
			damages = append(damages, &Finding{
				Kind: Pack, Object: name, Damage: &Damage{Row: k.Row, Pack: k.PackPlace, Ends: k.end()},
				Text: fmt.Sprintf("it has %d other bytes after its last pack, which ends at byte %d", k.size-k.end(), k.end()),
			})
		case errors.Is(err, backup.ErrNotFound): // a prune has deleted it
		case err != nil:
			return nil, err
		}
	}
	return damages, nil
}

// checkPack checks one pack, as far as the level demands.
func (c *checker) checkPack(ctx context.Context, k *packState, b *buffers) (*Finding, error) {
	name := store.PackName(k.Snapshot, k.Object)
	if !k.isThere() { // also if it was put since the list was made
		size, err := c.sizeOf(ctx, name)
		if err != nil {
			return nil, err
		}
		if k.size = size; !k.isThere() {
			f := k.damage(k.isShort(size))
			f.Damage.Missing = true
			return f, nil
		}
	}
	if p := c.noted[k.Row]; p != nil && !c.reads(k) {
		data, f, err := ProvePack(ctx, c.Store, c.Index, c.Repository.ID, p, b.sealed[:0])
		b.sealed = data
		if f != nil || err != nil {
			return f, err
		}
	}
	at := pack.Place{Object: name, Offset: k.Offset, Bytes: k.Bytes}
	sealed := cmp.Or(k.Sealed, k.PackPlace.Pack)
	var f *Finding
	var err error
	switch {
	case c.reads(k):
		f, err = c.readPack(ctx, k, at, sealed, b)
	case c.Level >= Tables:
		var r *pack.Reader
		if r, err = pack.Open(ctx, c.Store, at, c.Repository.ID, sealed, c.Opener); err == nil {
			f, err = c.compareTable(ctx, k, r)
		}
	default:
		err = pack.Inspect(ctx, c.Store, at, c.Repository.ID, sealed)
	}
	if err != nil && !fatal(err) {
		return unreadable(k.Row, k.PackPlace, err), nil
	}
	return f, err
}

// damage returns a finding of the whole pack.
func (k *packState) damage(text string) *Finding { return damageOf(k.Row, k.PackPlace, text) }

// readPack reads a pack with one request, and opens, decompresses and hashes all of it.
func (c *checker) readPack(ctx context.Context, k *packState, at pack.Place, sealed backup.PackID, b *buffers) (*Finding, error) {
	if k.Bytes > pack.MaxBytes {
		return nil, fmt.Errorf("the index says that it has %d bytes: %w", k.Bytes, backup.ErrCorrupt)
	}
	data, err := c.Store.GetRange(ctx, b.sealed[:0], at.Object, at.Offset, at.Bytes)
	if err != nil {
		return nil, err
	}
	b.sealed = data
	r, err := pack.OpenBytes(data, c.Repository.ID, sealed, c.Opener)
	if err != nil {
		return nil, err
	}
	f, err := c.compareTable(ctx, k, r)
	if err != nil {
		return nil, err
	}
	for n, frame := range r.Frames() {
		if frame.Removed {
			continue
		}
		plain, err := r.DecodeFrame(b.plain[:0], uint32(n), data[frame.Offset:][:frame.SealedLength], b.hasher)
		if err == nil {
			b.plain = plain
			continue
		}
		if f == nil || f.Damage.Frames == nil {
			f = k.damage(err.Error())
			f.Damage.Whole, f.Damage.Frames = false, map[uint32]bool{}
		}
		f.Damage.Frames[uint32(n)] = true
	}
	if f != nil && f.Kind == Pack {
		if f, err = needed(ctx, c.Index, f); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	c.report.PacksRead++
	c.report.ReadBytes += int64(len(data))
	if p := c.noted[k.Row]; f == nil && p != nil && p.Adopted && p.Damage != "" {
		c.report.Refuted = append(c.report.Refuted, k.Row)
	}
	c.mu.Unlock()
	if f == nil && c.Proven != nil {
		err = c.Proven.Add(k.PackPlace.Pack)
	}
	return f, err
}

// compareTable compares the table of a pack with what the index says. The index may have fewer
// places than the pack has chunks: some were dropped, or are in a copy of the pack.
func (c *checker) compareTable(ctx context.Context, k *packState, r *pack.Reader) (*Finding, error) {
	lengths := make([]uint32, len(r.Frames()))
	for i, f := range r.Frames() {
		if !f.Removed {
			lengths[i] = uint32(f.SealedLength)
		}
	}
	if hashFrames(lengths) != k.frames {
		if same, err := c.framesAre(ctx, k, lengths); err != nil || !same {
			f := k.damage("the index has other frames than the pack")
			f.Kind, f.Damage.Whole, f.Damage.Chunks = Places, false, map[backup.ChunkID]bool{}
			return f, err
		}
	}
	var has placeSum
	for _, info := range r.Chunks() {
		if lengths[info.Frame] != 0 {
			has.add(&index.ChunkLocation{PlaceOf: index.PlaceOf{Chunk: info.Hash.ID(), Frame: info.Frame}, Start: info.Offset, Length: info.Length})
		}
	}
	if has == k.places {
		return nil, nil
	}
	return c.comparePlaces(ctx, k, r, lengths)
}

// framesAre reads the frames of a pack again.
func (c *checker) framesAre(ctx context.Context, k *packState, lengths []uint32) (bool, error) {
	for f, err := range c.Index.Frames(ctx) {
		if err != nil {
			return false, err
		}
		if f.Row == k.Row {
			return slices.Equal(f.Bytes, lengths), nil
		}
	}
	return true, nil // it was deleted
}

// comparePlaces finds the places of the index that a pack does not have.
func (c *checker) comparePlaces(ctx context.Context, k *packState, r *pack.Reader, lengths []uint32) (*Finding, error) {
	type at struct{ frame, start, length uint32 }
	has := map[backup.ChunkID][]at{}
	for _, info := range r.Chunks() {
		if id := info.Hash.ID(); lengths[info.Frame] != 0 {
			has[id] = append(has[id], at{info.Frame, info.Offset, info.Length})
		}
	}
	wrong := map[backup.ChunkID]bool{}
	for place, err := range c.Index.Locations(ctx, []int64{k.Row}) {
		if err != nil {
			return nil, err
		}
		if !slices.Contains(has[place.Chunk], at{place.Frame, place.Start, place.Length}) {
			wrong[place.Chunk] = true
		}
	}
	if len(wrong) == 0 {
		return nil, nil
	}
	f := k.damage(fmt.Sprintf("the index has places of %d chunks where the pack has none, or others", len(wrong)))
	f.Kind, f.Damage.Whole, f.Damage.Chunks = Places, false, wrong
	return f, nil
}

// checkJournal reads the objects of the journal, and checks their signatures.
func (c *checker) checkJournal(ctx context.Context, journal []object) error {
	done := atomic.Int64{}
	c.report.Journal = int64(len(journal))
	return each(ctx, len(journal), objectsAtATime, func(ctx context.Context, i int) error {
		o := &journal[i]
		data, err := c.Store.Get(ctx, o.name, pack.MaxBytes)
		if err == nil {
			err = o.check(ctx, data)
		}
		c.step("checking the journal", done.Add(1), int64(len(journal)))
		switch {
		case err == nil:
			return nil
		case fatal(err):
			return err
		}
		if gone, failed := o.gone(ctx); gone || failed != nil {
			return failed
		}
		text := err.Error()
		if errors.Is(err, backup.ErrNotFound) {
			text = "it is missing"
		}
		f := o.finding
		f.Text = text
		c.find(&f)
		return nil
	})
}

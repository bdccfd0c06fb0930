package check

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// A packState is a pack of the index, and what is known of it in the store.
type packState struct {
	index.Pack
	wanted bool  // it is checked
	size   int64 // of its object in the store; absent: the list does not have it
	frames uint64
	places placeSum
}

// absent is the size of an object that is not there.
const absent = -1

// objectsAtATime is how many requests for small parts of objects are made at a time.
const objectsAtATime = 16

// loadPacks reads the packs of the index that are not being deleted.
func (c *checker) loadPacks(ctx context.Context) error {
	c.rows, c.deleting = map[int64]int{}, map[int64]bool{}
	for k, err := range c.Index.Packs(ctx) {
		switch {
		case err != nil:
			return err
		case k.Deleting || k.Gone:
			c.deleting[k.Row] = true
			continue
		}
		c.rows[k.Row] = len(c.packs)
		c.packs = append(c.packs, packState{Pack: k, wanted: c.Only == nil, size: absent})
	}
	noted, err := c.Index.DamagedPacks(ctx)
	if err != nil {
		return err
	}
	if c.Suspect != nil {
		var rows []int64
		for i := range c.packs {
			if c.Suspect(c.packs[i].Pack.Pack) {
				rows = append(rows, c.packs[i].Row)
			}
		}
		suspects, err := c.Index.PacksToProve(ctx, rows)
		if err != nil {
			return err
		}
		noted = append(noted, suspects...)
	}
	c.noted = make(map[int64]*index.PackToProve, len(noted))
	for i := range noted {
		c.noted[noted[i].Row] = &noted[i]
	}
	return nil
}

// An object is an object of the store that is read as a whole.
type object struct {
	name    string
	size    int64 // absent: the list does not have it
	check   func(ctx context.Context, data []byte) error
	finding Finding                                 // what is reported if it is damaged, but for the text
	gone    func(ctx context.Context) (bool, error) // whether the index does not need it any more
}

// objects are the objects to be read as a whole.
type objects struct {
	journal []object
}

// look lists the store, and finds the objects that the index names.
func (c *checker) look(ctx context.Context) (*objects, error) {
	if c.Only != nil {
		if err := c.wantOnly(ctx); err != nil {
			return nil, err
		}
	}
	o := &objects{}
	var err error
	if o.journal, err = c.journal(ctx); err != nil {
		return nil, err
	}
	if err := c.loadParity(ctx); err != nil {
		return nil, err
	}
	parityOf := c.parityOf()
	byObject := map[index.StoredObject][]int{}
	for i := range c.packs {
		k := &c.packs[i]
		if k.wanted {
			at := k.StoredObject()
			byObject[at] = append(byObject[at], i)
		}
	}
	byName := map[string]int{}
	for i := range o.journal {
		byName[o.journal[i].name] = i
	}
	listed := int64(0)
	for _, prefix := range []string{store.PacksPrefix, store.SegmentsPrefix, store.CommitsPrefix, store.CatalogPrefix, store.IndexPrefix, store.ParityPrefix} {
		if prefix == store.ParityPrefix && len(c.parity) == 0 {
			continue
		}
		n := int64(0)
		for at, err := range c.Store.List(ctx, prefix) {
			if err != nil {
				return nil, err
			}
			if n++; n%10_000 == 0 {
				c.step("listing the store", listed+n, 0)
			}
			if i, is := byName[at.Name]; is {
				o.journal[i].size = at.SizeBytes
			} else if of, id, is := store.ParsePackName(at.Name); is {
				for _, i := range byObject[index.StoredObject{Snapshot: of, ID: id}] {
					c.packs[i].size = at.SizeBytes
				}
			} else {
				c.lookForParity(parityOf, &at)
			}
		}
		listed += n
		c.report.Cost.Lists += max(1, (n+999)/1000)
	}
	c.report.Cost.Listed = listed
	c.long = c.longObjects()
	return o, nil
}

// longObjects returns the last pack of each object that is longer than its packs.
func (c *checker) longObjects() (long []*packState) {
	last := map[index.StoredObject]*packState{}
	for i := range c.packs {
		k := &c.packs[i]
		at := k.StoredObject()
		if l := last[at]; l == nil || l.end() < k.end() {
			last[at] = k
		}
	}
	for _, k := range last {
		if k.wanted && k.size > k.end() {
			long = append(long, k)
		}
	}
	return long
}

// cost returns what will be read.
func (c *checker) cost(o *objects) Cost {
	cost := c.report.Cost
	for i := range o.journal {
		if at := &o.journal[i]; at.size != absent {
			cost.Objects++
			cost.Requests++
			cost.Bytes += at.size
		}
	}
	for i := range c.packs {
		k := &c.packs[i]
		if !k.wanted || !k.isThere() {
			continue
		}
		requests, bytes := 1, k.Bytes
		switch {
		case c.reads(k):
		case c.Level >= Tables:
			requests, bytes = pack.OpenCost(k.Bytes)
		default:
			requests, bytes = pack.InspectCost(k.Bytes)
		}
		if c.noted[k.Row] != nil && !c.reads(k) {
			requests, bytes = requests+1, bytes+k.Bytes
		}
		cost.Objects++
		cost.Requests += int64(requests)
		cost.Bytes += bytes
	}
	for _, k := range c.long {
		if k.size <= pack.MaxBytes {
			cost.Requests++
			cost.Bytes += k.size
		}
	}
	for i := range c.parity {
		requests, bytes := c.parityCost(&c.parity[i])
		cost.Objects += int64(min(requests, 1))
		cost.Requests += int64(requests)
		cost.Bytes += bytes
	}
	return cost
}

// reads reports whether the content of a pack is read.
func (c *checker) reads(k *packState) bool {
	noted := c.noted[k.Row] // what it noted may be wrong
	return c.Level >= Content && (c.Read == nil || c.Read(k.PackPlace.Pack)) && (!c.proven(k) || noted != nil && noted.Adopted)
}

func (c *checker) proven(k *packState) bool { return c.Proven != nil && c.Proven.Has(k.PackPlace.Pack) }

// isThere reports whether the store has all bytes of a pack, according to its list.
func (k *packState) isThere() bool { return k.size != absent && k.end() <= k.size }

// end returns where a pack ends in its object.
func (k *packState) end() int64 { return k.Offset + k.Bytes }

// checkObjects checks the objects of the journal, and then the packs.
func (c *checker) checkObjects(ctx context.Context, o *objects) error {
	if err := c.checkJournal(ctx, o.journal); err != nil {
		return err
	}
	if c.Level >= Tables {
		if err := c.sumIndex(ctx); err != nil {
			return err
		}
	}
	order := make([]int, 0, len(c.packs))
	for i := range c.packs {
		if c.packs[i].wanted {
			order = append(order, i)
		}
	}
	// As they are in the store, so that objects with several packs are read in one go.
	slices.SortFunc(order, func(a, b int) int {
		x, y := &c.packs[a], &c.packs[b]
		return cmp.Or(slices.Compare(x.Snapshot[:], y.Snapshot[:]), slices.Compare(x.Object[:], y.Object[:]), cmp.Compare(x.Offset, y.Offset))
	})
	c.report.Packs = int64(len(order))
	damages, err := c.checkPacks(ctx, order)
	if err != nil {
		return err
	}
	if damages, err = c.checkEnds(ctx, damages); err != nil {
		return err
	}
	if err := c.confirm(ctx, damages); err != nil {
		return err
	}
	return c.checkParity(ctx)
}

// confirm reports the damage to packs that the index still has as they were.
func (c *checker) confirm(ctx context.Context, damages []*Finding) error {
	if len(damages) == 0 {
		return nil
	}
	byRow := make(map[int64]*Finding, len(damages))
	for _, f := range damages {
		byRow[f.Damage.Row] = f
	}
	for k, err := range c.Index.Packs(ctx) {
		if err != nil {
			return err
		}
		if f := byRow[k.Row]; f != nil && !k.Deleting && !k.Gone && k.PackPlace == f.Damage.Pack {
			c.find(f)
		}
	}
	return nil
}

// A placeSum is a sum of hashes of the places in a pack. Their order does not matter.
type placeSum struct {
	n   int64
	sum uint64
}

func (s *placeSum) add(p *index.ChunkLocation) {
	var b [28]byte
	copy(b[:], p.Chunk[:])
	binary.LittleEndian.PutUint32(b[16:], p.Frame)
	binary.LittleEndian.PutUint32(b[20:], p.Start)
	binary.LittleEndian.PutUint32(b[24:], p.Length)
	s.n++
	s.sum += maphash.Bytes(seed, b[:])
}

// hashFrames returns a hash of the stored lengths of a pack's frames, 0 for those that were
// removed.
func hashFrames(lengths []uint32) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	var b [4]byte
	for _, n := range lengths {
		binary.LittleEndian.PutUint32(b[:], n)
		h.Write(b[:])
	}
	return h.Sum64()
}

// sumIndex adds up what the index says of the frames and chunks of each pack.
func (c *checker) sumIndex(ctx context.Context) error {
	c.step("reading what the index says of packs", 0, 0)
	for f, err := range c.Index.Frames(ctx) {
		if err != nil {
			return err
		}
		if i, ok := c.rows[f.Row]; ok {
			c.packs[i].frames = hashFrames(f.Bytes)
		}
	}
	for place, err := range c.Index.Locations(ctx, nil) {
		if err != nil {
			return err
		}
		if i, ok := c.rows[place.Pack]; ok {
			c.packs[i].places.add(&place)
		}
	}
	return nil
}

// each calls do with the numbers below n, some at a time.
func each(ctx context.Context, n, atATime int, do func(ctx context.Context, i int) error) error {
	g, working := errgroup.WithContext(ctx)
	g.SetLimit(atATime)
	for i := range n {
		if working.Err() != nil {
			break
		}
		g.Go(func() error { return do(working, i) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// wantOnly selects the packs that the snapshots in Only need.
func (c *checker) wantOnly(ctx context.Context) error {
	if err := c.checkIndex(ctx); err != nil {
		return err
	}
	for place, err := range c.Index.Places(ctx, nil) {
		if err != nil {
			return err
		}
		if i, ok := c.rows[place.Pack]; ok && c.needs.has(&place.Chunk) {
			c.packs[i].wanted = true
		}
	}
	return nil
}

// isShort describes an object that is missing or too short.
func (k *packState) isShort(size int64) string { return sizeText(size, k.end()) }

// sizeText describes an object of a wrong size.
func sizeText(size, want int64) string {
	if size == absent {
		return "it is missing"
	}
	return fmt.Sprintf("it has %d bytes, and must have %d", size, want)
}

// sizeOf asks the store for the size of an object.
func (c *checker) sizeOf(ctx context.Context, name string) (int64, error) {
	size, err := c.Store.Stat(ctx, name)
	if errors.Is(err, backup.ErrNotFound) {
		return absent, nil
	}
	return size, err
}

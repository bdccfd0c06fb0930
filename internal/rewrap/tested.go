package rewrap

import (
	"cmp"
	"context"
	"errors"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// TestOptions are the options of Test.
type TestOptions struct {
	Index    Packs
	Store    store.Store
	Object   *repo.Object
	Opener   *seal.Opener
	Dedup    seal.DedupKey // with HasDedup, content is compared with its hashes
	HasDedup bool
	Packs    int // how many packs to test, spread over all; 0: all
}

// A Tested is the result of Test.
type Tested struct {
	Tested, Opened int64
	Rewrapped      int64 // of the opened ones, with a key that was wrapped again
	Damaged        int64 // missing or damaged, so that it is not known whether the identity opens them
	Problem        error // of the first pack that was not opened
}

// testAtOnce bounds the places of packs that are held in memory.
const testAtOnce = 1 << 16

// Test opens packs with an identity and restores the first frame of each.
func Test(ctx context.Context, o TestOptions) (t Tested, err error) {
	c := newTester(ctx, &o)
	_, total, err := c.chosen(ctx, 1, 0, 0)
	if err != nil {
		return t, err
	}
	step := int64(1)
	if o.Packs > 0 {
		step = max(1, (total+int64(o.Packs)-1)/int64(o.Packs))
	}
	for skip := int64(0); ; skip += testAtOnce {
		places, _, err := c.chosen(ctx, step, skip, total)
		if err != nil {
			return c.Tested, err
		}
		for _, at := range places {
			if err := c.test(ctx, at); err != nil {
				return c.Tested, err
			}
		}
		if len(places) < testAtOnce {
			return c.Tested, nil
		}
	}
}

// A tester tests packs, one after another.
type tester struct {
	Tested
	o      *TestOptions
	opener *seal.Opener
	hasher *chunk.Hasher // nil: hashes are not compared
	again  bool          // the last key was one that was wrapped again
}

func newTester(ctx context.Context, o *TestOptions) *tester {
	c := &tester{o: o}
	f := newFinder(o.Store, o.Object.ID, o.Object.Signer(), o.Opener)
	c.opener = o.Opener.WithRewrapped(func(id seal.KeyID) (seal.RawKey, error) {
		key, err := f.find(ctx, id)
		c.again = err == nil
		return key, err
	})
	if o.HasDedup {
		c.hasher = chunk.NewHasher([32]byte(o.Dedup))
	}
	return c
}

// chosen returns the places of every step-th of all packs, counted so that the newest one is among
// them, without the first skip and at most testAtOnce; and the number of all packs. It reads them
// before any is tested, so that no query waits for the store.
func (c *tester) chosen(ctx context.Context, step, skip, total int64) (places []index.PackPlace, n int64, err error) {
	for p, err := range c.o.Index.Packs(ctx) {
		if err != nil {
			return nil, n, err
		}
		if p.Deleting || p.Gone {
			continue
		}
		n++
		if total == 0 || n > total || (total-n)%step != 0 {
			continue
		}
		if skip--; skip < 0 && len(places) < testAtOnce {
			places = append(places, p.PackPlace)
		}
	}
	return places, n, nil
}

// test tests a pack. An error is one of the store.
func (c *tester) test(ctx context.Context, at index.PackPlace) error {
	c.again = false
	err := c.restore(ctx, at)
	if err != nil && !isOfPack(err) {
		return err
	}
	c.Tested.Tested++
	if err == nil {
		c.Opened++
		if c.again {
			c.Rewrapped++
		}
		return nil
	}
	if !errors.Is(err, backup.ErrWrongKey) {
		c.Damaged++
	}
	if c.Problem == nil {
		c.Problem = err
	}
	return nil
}

// restore opens a pack, and restores its first frame. If that is damaged, another one shows as well
// that the identity opens the pack: a repair may have dropped the damaged one.
func (c *tester) restore(ctx context.Context, at index.PackPlace) error {
	place := pack.Place{Object: store.PackName(at.Snapshot, at.Object), Offset: at.Offset, Bytes: at.Bytes}
	r, err := pack.Open(ctx, c.o.Store, place, c.o.Object.ID, cmp.Or(at.Sealed, at.Pack), c.opener)
	if err != nil {
		return err
	}
	var damaged error
	for n, f := range r.Frames() {
		if f.Removed {
			continue
		}
		sealed, err := c.o.Store.GetRange(ctx, nil, place.Object, place.Offset+f.Offset, f.SealedLength)
		if err == nil {
			_, err = r.DecodeFrame(nil, uint32(n), sealed, c.hasher)
		}
		if !errors.Is(err, backup.ErrCorrupt) {
			return err
		}
		damaged = err
	}
	return damaged
}

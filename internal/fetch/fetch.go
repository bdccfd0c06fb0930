package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// A Locator finds chunks: the index.
type Locator interface {
	// LocateReadable is as in index.Catalog.
	LocateReadable(ctx context.Context, ids []backup.ChunkID) ([]index.Location, error)
	// LocateReadableCopies is as in index.Catalog.
	LocateReadableCopies(ctx context.Context, ids []backup.ChunkID) ([][]index.Location, error)
}

// A Sink receives chunks. Its methods are called concurrently, once per Want, in any order.
type Sink interface {
	// Chunk receives the plaintext of the chunk of the want with this tag. data is valid only
	// during the call.
	Chunk(tag int64, data []byte)
	// Fail reports that the chunk of the want with this tag is not available.
	Fail(tag int64, err error)
}

// A Want is one chunk that is needed, and its receiver.
type Want struct {
	Chunk  backup.ChunkID
	Length int64 // bytes of its plaintext
	Tag    int64 // passed to Sink, which identifies the want by it
	Sink   Sink
}

// Options of a Fetcher; all except Concurrency must be set.
type Options struct {
	Index      Locator
	Store      store.Store
	Repository backup.RepositoryID // that the packs belong to
	Opener     *seal.Opener
	HashKey    seal.DedupKey // of the chunks' hashes
	// Concurrency is the maximum number of ranges that are read and decoded at a time; 0: a few per
	// CPU.
	Concurrency int
	// Frame, if not nil, receives each frame that was decoded, before its wanted chunks are passed
	// to their Sinks. It is called concurrently.
	Frame func(Frame)
}

// A Frame is one that was decoded. All of its chunks are verified.
type Frame struct {
	Plain  []byte           // valid only during the call
	Chunks []pack.ChunkInfo // by offset; they must not be changed
	Next   backup.Ref       // a chunk of the next frame in the pack; zero: there is none
}

// A Fetcher gets chunks. Its methods may be called concurrently.
type Fetcher struct {
	o       Options
	slots   chan *scratch // one is held per range in progress
	packs   chan struct{} // one per pack that a Get works on
	readers readerCache
}

// scratch has the buffers for one range.
type scratch struct {
	sealed, plain []byte
	hasher        *chunk.Hasher
}

// New returns a Fetcher.
func New(o Options) *Fetcher {
	if o.Concurrency <= 0 {
		o.Concurrency = min(max(2*runtime.GOMAXPROCS(0), 4), 16)
	}
	f := &Fetcher{o: o, slots: make(chan *scratch, o.Concurrency), packs: make(chan struct{}, 2*o.Concurrency)}
	for range o.Concurrency {
		f.slots <- &scratch{hasher: chunk.NewHasher([32]byte(o.HashKey))}
	}
	f.readers.open = f.openPack
	return f
}

// located is a Want and its location.
type located struct {
	Want
	at index.Location

	failed error            // why the first location failed; nil: it has not been tried
	others []index.Location // further locations, once one has failed
}

// Get delivers each want to its Sink, and returns when all have been delivered or failed. It
// changes the order of wants. On an error, the Sinks of the remaining wants are not called.
func (f *Fetcher) Get(ctx context.Context, wants []Want) error {
	if len(wants) == 0 {
		return nil
	}
	found, err := f.locate(ctx, wants)
	for err == nil && len(found) > 0 {
		var missed misses
		if err = f.getPacks(ctx, found, &missed); err == nil {
			found, err = f.elsewhere(ctx, missed.wants)
		}
	}
	return err
}

// getPacks delivers wants, which are sorted, and records those that it cannot deliver.
func (f *Fetcher) getPacks(ctx context.Context, found []located, missed *misses) error {
	g, ctx := errgroup.WithContext(ctx)
	for len(found) > 0 {
		n := 1
		for n < len(found) && found[n].at.Pack == found[0].at.Pack {
			n++
		}
		ofPack := found[:n]
		found = found[n:]
		select {
		case f.packs <- struct{}{}:
		case <-ctx.Done():
			return errors.Join(g.Wait(), context.Cause(ctx))
		}
		g.Go(func() error {
			defer func() { <-f.packs }()
			return f.getPack(ctx, ofPack, missed)
		})
	}
	return g.Wait()
}

// locate fails the wants that are in no pack, and returns the others sorted by pack, frame and
// offset.
func (f *Fetcher) locate(ctx context.Context, wants []Want) ([]located, error) {
	ids := make([]backup.ChunkID, len(wants))
	for i := range wants {
		ids[i] = wants[i].Chunk
	}
	slices.SortFunc(ids, func(a, b backup.ChunkID) int { return bytes.Compare(a[:], b[:]) })
	ids = slices.Compact(ids)
	at, err := f.o.Index.LocateReadable(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("locate %d chunks: %w", len(ids), err)
	}
	if len(at) != len(ids) {
		return nil, fmt.Errorf("located %d of %d chunks: %w", len(at), len(ids), backup.ErrCorrupt)
	}
	found := make([]located, 0, len(wants))
	for _, w := range wants {
		i, _ := slices.BinarySearchFunc(ids, w.Chunk, func(a, b backup.ChunkID) int { return bytes.Compare(a[:], b[:]) })
		switch loc := at[i]; {
		case loc == index.Location{}:
			w.Sink.Fail(w.Tag, fmt.Errorf("chunk %v is in no pack: %w", w.Chunk, backup.ErrNotFound))
		case int64(loc.Length) != w.Length:
			w.Sink.Fail(w.Tag, fmt.Errorf("chunk %v has %d bytes, not %d: %w", w.Chunk, loc.Length, w.Length, backup.ErrCorrupt))
		default:
			found = append(found, located{Want: w, at: loc})
		}
	}
	sortPlaces(found)
	return found, nil
}

func sortPlaces(found []located) {
	slices.SortFunc(found, func(a, b located) int {
		if c := bytes.Compare(a.at.Pack[:], b.at.Pack[:]); c != 0 {
			return c
		}
		if a.at.Frame != b.at.Frame {
			return int(int64(a.at.Frame) - int64(b.at.Frame))
		}
		return int(int64(a.at.Start) - int64(b.at.Start))
	})
}

// request makes a request for a part of a pack. fatal means that err concerns more than this pack.
// A store may refuse an object because it is missing. If it also refuses the configuration, which
// each repository has, it refuses the credentials. As that may have ended between the two requests,
// the first one is repeated.
func (f *Fetcher) request(ctx context.Context, do func() error) (fatal bool, err error) {
	for range 2 {
		if err = do(); !errors.Is(err, fs.ErrPermission) {
			return isFatal(err), err
		}
		_, other := f.o.Store.GetRange(ctx, nil, store.ConfigName, 0, 1)
		if errors.Is(other, fs.ErrPermission) || isFatal(other) {
			return true, other
		}
	}
	return false, err
}

func isFatal(err error) bool {
	return errors.Is(err, backup.ErrUnavailable) || errors.Is(err, backup.ErrWrongKey) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

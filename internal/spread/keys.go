package spread

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

const (
	// idsAtATime bounds the chunks that are located at a time.
	idsAtATime = 8192
	// listsAtATime bounds the files whose lists of chunks are loaded together.
	listsAtATime = 128
	// headersAtATime bounds the headers of packs that are read concurrently.
	headersAtATime = 16
	// maxKnownKeys bounds the data keys that are remembered.
	maxKnownKeys = 1 << 18
)

// A keyring finds the data keys that tasks need. It may be used concurrently.
type keyring struct {
	d     restore.Deps
	idx   index.Restoring
	of    index.Restore
	path  string
	fetch *fetch.Fetcher

	mu    sync.Mutex
	known map[seal.KeyID]seal.RawKey
}

func newKeyring(d restore.Deps, idx index.Restoring, of index.Restore, path string) *keyring {
	return &keyring{
		d: d, idx: idx, of: of, path: path, known: map[seal.KeyID]seal.RawKey{},
		fetch: fetch.New(fetch.Options{Index: d.Catalog, Store: d.Store, Repository: d.Repository, Opener: d.Opener, HashKey: d.HashKey}),
	}
}

// sealed returns the keys of the packs that hold chunks of a task, sealed to its recipient.
func (k *keyring) sealed(ctx context.Context, t *index.RestoreTask) ([]byte, error) {
	packs, err := k.packs(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("find the packs that a task needs: %w", err)
	}
	keys, err := k.keys(ctx, packs)
	if err != nil {
		return nil, fmt.Errorf("read the keys of packs: %w", err)
	}
	return seal.GivenKeys{Dedup: k.d.HashKey, Keys: keys}.SealTo(t.Recipient)
}

// A needed collects the packs that a task needs.
type needed struct {
	k     *keyring
	ids   map[backup.ChunkID]struct{}
	files []*fetch.Refs
	packs map[backup.PackID]index.PackPlace // by the id with which the pack was sealed
}

// packs returns the packs that hold a chunk of the task, all copies of it included.
func (k *keyring) packs(ctx context.Context, t *index.RestoreTask) (map[backup.PackID]index.PackPlace, error) {
	part := restore.Part{From: t.From, To: t.To, Last: t.Kind == index.RestoreLast}
	pages := k.idx.PagesIn(ctx, k.of.Snapshot, t.From, t.To)
	if part.Last {
		pages = k.d.Catalog.Pages(ctx, k.of.Snapshot, k.path)
	}
	n := &needed{k: k, ids: map[backup.ChunkID]struct{}{}, packs: map[backup.PackID]index.PackPlace{}}
	if err := n.collect(ctx, &part, pages); err != nil {
		return nil, err
	}
	return n.packs, nil
}

func (n *needed) collect(ctx context.Context, part *restore.Part, pages iter.Seq2[backup.PageVersion, error]) error {
	for v, err := range pages {
		if err != nil {
			return err
		}
		page, err := listing.DecodePage(v)
		if err != nil {
			continue // the restorer cannot decode it either
		}
		page.Path, page.Key = v.Path, v.Key
		part.Needs(&page, n.k.path, n.add)
		if len(n.files) >= listsAtATime || len(n.ids) >= idsAtATime {
			if err := n.expand(ctx); err != nil {
				return err
			}
		}
	}
	if err := n.expand(ctx); err != nil {
		return err
	}
	return n.locate(ctx)
}

// add adds the chunks of an entry. The lists of large files are expanded later.
func (n *needed) add(e *backup.Entry) {
	if e.XattrChunk.Length > 0 {
		n.ids[e.XattrChunk.Chunk] = struct{}{}
	}
	if e.Kind != backup.File || len(e.Content.Refs) == 0 {
		return
	}
	if e.Content.Depth > 0 {
		refs := fetch.NewRefs(e.Size, e.Content)
		n.files = append(n.files, &refs)
		return
	}
	for _, ref := range e.Content.Refs {
		n.ids[ref.Chunk] = struct{}{}
	}
}

// expand adds the chunks of files that have lists of chunks, and the lists themselves.
func (n *needed) expand(ctx context.Context) error {
	for len(n.files) > 0 {
		ref, _, list, ok, err := n.files[0].Peek()
		switch {
		case err != nil || !ok:
			n.files = n.files[1:] // the restorer reports what is wrong
			continue
		case list:
			group := n.files[:min(len(n.files), listsAtATime)]
			n.addLists(group)
			if err := n.k.fetch.Load(ctx, group); err != nil {
				return err
			}
			continue
		}
		n.ids[ref.Chunk] = struct{}{}
		n.files[0].Advance()
		if len(n.ids) >= idsAtATime {
			if err := n.locate(ctx); err != nil {
				return err
			}
		}
	}
	if len(n.ids) >= idsAtATime {
		return n.locate(ctx)
	}
	return nil
}

func (n *needed) addLists(files []*fetch.Refs) {
	for _, f := range files {
		if ref, _, list, ok, _ := f.Peek(); ok && list {
			n.ids[ref.Chunk] = struct{}{}
		}
	}
}

// locate turns the chunks that were collected into packs.
func (n *needed) locate(ctx context.Context) error {
	if len(n.ids) == 0 {
		return nil
	}
	ids := make([]backup.ChunkID, 0, len(n.ids))
	for id := range n.ids {
		ids = append(ids, id)
	}
	clear(n.ids)
	slices.SortFunc(ids, func(a, b backup.ChunkID) int { return slices.Compare(a[:], b[:]) })
	copies, err := n.k.d.Catalog.LocateReadableCopies(ctx, ids)
	if err != nil {
		return err
	}
	for _, places := range copies {
		for _, at := range places {
			n.packs[cmp.Or(at.Sealed, at.Pack)] = at.PackPlace
		}
	}
	return nil
}

// keys returns the data keys of packs. A pack that is missing or damaged is passed over: the
// restorer reports its files.
func (k *keyring) keys(ctx context.Context, packs map[backup.PackID]index.PackPlace) (map[seal.KeyID]seal.RawKey, error) {
	found := make(map[seal.KeyID]seal.RawKey, len(packs))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(headersAtATime)
	for id, at := range packs {
		k.mu.Lock()
		key, ok := k.known[seal.KeyID(id)]
		if ok {
			found[seal.KeyID(id)] = key
		}
		k.mu.Unlock()
		if ok {
			continue
		}
		g.Go(func() error {
			key, err := k.read(ctx, id, at)
			if errors.Is(err, backup.ErrCorrupt) || errors.Is(err, backup.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			found[seal.KeyID(id)] = key
			if len(k.known) < maxKnownKeys {
				k.known[seal.KeyID(id)] = key
			}
			return nil
		})
	}
	return found, g.Wait()
}

func (k *keyring) read(ctx context.Context, id backup.PackID, at index.PackPlace) (seal.RawKey, error) {
	place := pack.Place{Object: store.PackName(at.Snapshot, at.Object), Offset: at.Offset, Bytes: at.Bytes}
	wrapped, err := pack.ReadWrapped(ctx, k.d.Store, place, k.d.Repository, id)
	if err != nil {
		return seal.RawKey{}, err
	}
	return k.d.Opener.UnwrapRawPack(seal.KeyID(id), wrapped)
}

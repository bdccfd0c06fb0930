package rewrap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/keytext"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// maxOpened bounds the parts that a finder has opened: 768 KiB of keys each.
const maxOpened = 8

// Opener returns an opener that also opens the packs whose keys were wrapped again for one of its
// identities. The caller has checked the object's signer. Until a key is needed that a pack itself
// does not have, it makes no request. ctx is that of all its requests.
func Opener(ctx context.Context, s store.Store, o *repo.Object, opener *seal.Opener) *seal.Opener {
	f := newFinder(s, o.ID, o.Signer(), opener)
	return opener.WithRewrapped(func(id seal.KeyID) (seal.RawKey, error) { return f.find(ctx, id) })
}

// A rotation is what the names of its parts say.
type rotation struct {
	number int64
	firsts []seal.KeyID // of its parts, in order
	closed bool         // the identity does not open it, or it is of no interest
}

// partOf returns the name of the part that would cover id.
func (r *rotation) partOf(id seal.KeyID) (name string, ok bool) {
	i, found := slices.BinarySearchFunc(r.firsts, id, compareIDs)
	if !found {
		i--
	}
	if i < 0 {
		return "", false
	}
	return store.WrapsName(r.number, r.firsts[i]), true
}

// A finder finds keys in the parts of rotations. It is safe for concurrent use.
type finder struct {
	store      store.Store
	repository backup.RepositoryID
	signer     seal.Signer
	opener     *seal.Opener

	mu        sync.Mutex
	listed    bool
	rotations []*rotation // newest first
	opened    []*openedPart
}

// An openedPart is a part whose entries are known, or the error of opening it.
type openedPart struct {
	part
	entries []entry
	err     error
}

func newFinder(s store.Store, repository backup.RepositoryID, signer seal.Signer, opener *seal.Opener) *finder {
	return &finder{store: s, repository: repository, signer: signer, opener: opener}
}

// list reads the names of all parts.
func (f *finder) list(ctx context.Context) error {
	if f.listed {
		return nil
	}
	byNumber := map[int64]*rotation{}
	for o, err := range f.store.List(ctx, store.WrapsPrefix) {
		if err != nil {
			return err
		}
		number, first, ok := store.ParseWrapsName(o.Name)
		if !ok {
			continue
		}
		if byNumber[number] == nil {
			byNumber[number] = &rotation{number: number}
		}
		byNumber[number].firsts = append(byNumber[number].firsts, seal.KeyID(first))
	}
	f.rotations = f.rotations[:0]
	for _, r := range byNumber {
		slices.SortFunc(r.firsts, compareIDs)
		f.rotations = append(f.rotations, r)
	}
	slices.SortFunc(f.rotations, func(a, b *rotation) int { return int(min(max(b.number-a.number, -1), 1)) })
	f.listed = true
	return nil
}

// find returns the key with the given id, or backup.ErrNotFound. A part that is damaged, or that
// the signer has not signed, is not believed: another rotation may have the key.
func (f *finder) find(ctx context.Context, id seal.KeyID) (seal.RawKey, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.list(ctx); err != nil {
		return seal.RawKey{}, err
	}
	var damaged error
	for _, r := range f.rotations {
		name, ok := r.partOf(id)
		if r.closed || !ok {
			continue
		}
		p, err := f.open(ctx, name)
		switch {
		case err != nil:
			return seal.RawKey{}, err
		case errors.Is(p.err, backup.ErrWrongKey):
			r.closed = true // all parts are sealed to the same recipients
			continue
		case p.err != nil:
			damaged = p.err
			continue
		}
		if i, found := slices.BinarySearchFunc(p.entries, id, func(e entry, id seal.KeyID) int { return compareIDs(e.id, id) }); found {
			return p.entries[i].key, nil
		}
	}
	if damaged != nil {
		return seal.RawKey{}, damaged
	}
	return seal.RawKey{}, fmt.Errorf("key %s was not wrapped again: %w", id, backup.ErrNotFound)
}

// open returns a part. Its err says what is wrong with it; the error is that of the store.
func (f *finder) open(ctx context.Context, name string) (*openedPart, error) {
	if i := slices.IndexFunc(f.opened, func(p *openedPart) bool { return p.name() == name }); i >= 0 {
		p := f.opened[i]
		f.opened = append(slices.Delete(f.opened, i, i+1), p)
		return p, nil
	}
	p, err := f.read(ctx, name)
	if err != nil {
		return nil, err
	}
	if p.err == nil {
		if p.entries, p.err = f.entries(&p.part); p.err != nil {
			p.err = fmt.Errorf("%s: %w", name, p.err)
		}
	}
	p.sealed = nil
	if len(f.opened) >= maxOpened {
		f.opened = slices.Delete(f.opened, 0, 1)
	}
	f.opened = append(f.opened, p)
	return p, nil
}

// read is open for a part whose keys are not needed.
func (f *finder) read(ctx context.Context, name string) (*openedPart, error) {
	p := &openedPart{}
	data, err := f.store.Get(ctx, name, maxPartBytes)
	switch {
	case errors.Is(err, backup.ErrCorrupt), errors.Is(err, backup.ErrInvalid):
		p.err = err
	case err != nil:
		return nil, err
	default:
		p.part, p.err = parsePart(data, name, f.repository, f.signer)
	}
	if errors.Is(p.err, keytext.ErrVersion) {
		return nil, fmt.Errorf("%s: %w", name, p.err)
	}
	if p.err != nil {
		p.err = fmt.Errorf("%s: %w", name, p.err)
		rotation, first, _ := store.ParseWrapsName(name)
		p.rotation, p.first = rotation, seal.KeyID(first)
	}
	return p, nil
}

func (f *finder) entries(p *part) ([]entry, error) {
	text, err := f.opener.OpenBlob(p.sealed)
	if err != nil {
		return nil, err
	}
	return parseEntries(text, p.first, p.last)
}

// Parts returns the names of the parts of all rotations, and whether each is whole and signed by
// the signer.
func Parts(ctx context.Context, s store.Store, repository backup.RepositoryID, signer seal.Signer) (map[string]bool, error) {
	f := newFinder(s, repository, signer, nil)
	if err := f.list(ctx); err != nil {
		return nil, err
	}
	parts := map[string]bool{}
	for _, r := range f.rotations {
		for _, first := range r.firsts {
			name := store.WrapsName(r.number, first)
			p, err := f.read(ctx, name)
			if err != nil {
				return nil, err
			}
			parts[name] = p.err == nil
		}
	}
	return parts, nil
}

package pack

import (
	"context"
	"fmt"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
)

// An ObjectPack is one of the packs of an object.
type ObjectPack struct {
	Place
	ID backup.PackID // in its header
	*Reader
}

// OpenObject opens the data packs of an object of sizeBytes, without knowing how many there are. It
// returns them in the order of their offsets. It reads the object from its end, because the trailer
// of a pack gives its length, and makes the requests of Open for each. Errors: those of Open.
func OpenObject(ctx context.Context, r Ranger, object string, sizeBytes int64, repository backup.RepositoryID, opener *seal.Opener) ([]ObjectPack, error) {
	var packs []ObjectPack
	for end := sizeBytes; end > 0 || len(packs) == 0; {
		p, err := openLast(ctx, r, object, end, repository, opener)
		if err != nil {
			return nil, fmt.Errorf("open %s, up to byte %d: %w", object, end, err)
		}
		packs = append(packs, p)
		end = p.Offset
	}
	slices.Reverse(packs)
	return packs, nil
}

// openLast opens the pack that ends at offset end of an object.
func openLast(ctx context.Context, r Ranger, object string, end int64, repository backup.RepositoryID, opener *seal.Opener) (p ObjectPack, err error) {
	if end > MaxBytes || end < trailerBytes {
		return p, fmt.Errorf("%d bytes are no pack: %w", end, backup.ErrCorrupt)
	}
	length := min(end, tailBytes)
	tail, err := r.GetRange(ctx, nil, object, end-length, length)
	if err != nil {
		return p, err
	}
	t, err := parseTrailer(tail)
	if err != nil {
		return p, err
	}
	if t.packBytes > end {
		return p, fmt.Errorf("the trailer gives %d bytes: %w", t.packBytes, backup.ErrCorrupt)
	}
	p.Place = Place{Object: object, Offset: end - t.packBytes, Bytes: t.packBytes}
	tail = tail[max(0, int64(len(tail))-t.packBytes):] // the rest is of the pack before
	p.Reader, err = openTail(ctx, r, p.Place, tail, t, repository, nil, opener)
	if err != nil {
		return p, err
	}
	if p.Kind() != KindData {
		return p, fmt.Errorf("a %s pack: %w", p.Kind(), backup.ErrCorrupt)
	}
	p.ID = p.header.id
	return p, nil
}

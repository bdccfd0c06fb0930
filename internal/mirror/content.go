package mirror

import (
	"context"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
)

// ProveContent returns a Source.Content that opens each frame of a pack with an identity, and
// compares each chunk with its hash.
func ProveContent(repository backup.RepositoryID, opener *seal.Opener, key seal.DedupKey) func(ctx context.Context, name string, data []byte) error {
	return func(ctx context.Context, name string, data []byte) error {
		packs, err := pack.OpenObject(ctx, bytesOf(data), name, int64(len(data)), repository, opener)
		if err != nil {
			return err
		}
		hasher := chunk.NewHasher([32]byte(key))
		var plain []byte
		for i := range packs {
			for n, f := range packs[i].Frames() {
				if f.Removed {
					continue
				}
				sealed := data[packs[i].Offset+f.Offset:][:f.SealedLength]
				if plain, err = packs[i].DecodeFrame(plain[:0], uint32(n), sealed, hasher); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
		return nil
	}
}

// bytesOf are the bytes of one object, as a pack.Ranger.
type bytesOf []byte

// GetRange implements pack.Ranger.
func (b bytesOf) GetRange(_ context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	if offset < 0 {
		offset += int64(len(b))
	}
	if offset < 0 || length < 0 || offset > int64(len(b)) || length > int64(len(b))-offset {
		return nil, fmt.Errorf("%s: it ends before: %w", name, backup.ErrCorrupt)
	}
	return append(dst, b[offset:offset+length]...), nil
}

// Stat implements pack.Ranger.
func (b bytesOf) Stat(context.Context, string) (int64, error) { return int64(len(b)), nil }

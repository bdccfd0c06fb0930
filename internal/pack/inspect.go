package pack

import (
	"context"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
)

// inspectWhole is the size up to which Inspect reads a pack with one request.
const inspectWhole = 64 << 10

// InspectCost returns how many requests Inspect makes for a data pack of sizeBytes, and how many
// bytes it reads.
func InspectCost(sizeBytes int64) (requests int, bytes int64) {
	if sizeBytes <= inspectWhole {
		return 1, sizeBytes
	}
	return 2, maxHeaderBytes + trailerBytes
}

// OpenCost returns how many requests Open makes for a pack of sizeBytes, of which the length is
// known, and how many bytes it reads at least. A table that is longer than usual takes one more.
func OpenCost(sizeBytes int64) (requests int, bytes int64) {
	if sizeBytes <= tailBytes {
		return 1, sizeBytes
	}
	return 2, tailBytes + headerFixedBytes
}

// Inspect checks what can be checked of a data pack without a key: that its header and its trailer
// have their checksums, that the header is that of the repository's pack id, and that the lengths
// in the trailer are those of the place, whose Bytes must be set. It does not find damage to frames
// or to the table. Errors: those of r, and backup.ErrCorrupt.
func Inspect(ctx context.Context, r Ranger, at Place, repository backup.RepositoryID, id backup.PackID) error {
	var head, tail []byte
	var err error
	if at.Bytes <= inspectWhole {
		head, err = r.GetRange(ctx, nil, at.Object, at.Offset, at.Bytes)
		tail = head
	} else if head, err = r.GetRange(ctx, nil, at.Object, at.Offset, maxHeaderBytes); err == nil {
		tail, err = r.GetRange(ctx, nil, at.Object, at.Offset+at.Bytes-trailerBytes, trailerBytes)
	}
	if err == nil {
		err = inspect(head, tail, at.Bytes, repository, id)
	}
	if err != nil {
		return fmt.Errorf("pack %s: %w", at.Object, err)
	}
	return nil
}

// inspect is Inspect for the beginning and the end of a pack.
func inspect(head, tail []byte, sizeBytes int64, repository backup.RepositoryID, id backup.PackID) error {
	t, err := parseTrailer(tail)
	if err != nil {
		return err
	}
	if t.packBytes != sizeBytes {
		return fmt.Errorf("the pack has %d bytes, but its trailer gives %d: %w", sizeBytes, t.packBytes, backup.ErrCorrupt)
	}
	header := headerOf(head)
	h, err := parseHeader(header)
	if err != nil {
		return err
	}
	if int64(len(header)) != t.headerBytes {
		return fmt.Errorf("header of %d bytes, but the trailer gives %d: %w", len(header), t.headerBytes, backup.ErrCorrupt)
	}
	if h.kind != KindData {
		return fmt.Errorf("%s: %w", h.kind, backup.ErrCorrupt)
	}
	return h.check(repository, id, t)
}

// InspectObject is Inspect for all data packs of a whole object. It needs no ids: each pack must be
// of the repository, and together they must fill the object. Errors wrap backup.ErrCorrupt, or
// backup.ErrInvalid for a later version.
func InspectObject(data []byte, repository backup.RepositoryID) error {
	if len(data) > MaxBytes {
		return fmt.Errorf("%d bytes are no pack: %w", len(data), backup.ErrCorrupt)
	}
	for end := int64(len(data)); end > 0 || len(data) == 0; {
		t, err := parseTrailer(data[:end])
		if err != nil {
			return err
		}
		start := end - t.packBytes
		if start < 0 {
			return fmt.Errorf("the trailer at byte %d gives %d bytes: %w", end, t.packBytes, backup.ErrCorrupt)
		}
		h, err := parseHeader(data[start : start+t.headerBytes])
		if err == nil && h.kind != KindData {
			err = fmt.Errorf("%s: %w", h.kind, backup.ErrCorrupt)
		}
		if err == nil {
			err = h.check(repository, h.id, t)
		}
		if err != nil {
			return fmt.Errorf("the pack at byte %d: %w", start, err)
		}
		end = start
	}
	return nil
}

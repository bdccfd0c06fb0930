package listing

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/bctl/bctl/internal/backup"
)

// A patch is a listing, given another one as its base: the listing's length and a Zstandard frame
// that has the base as its dictionary. Both listings are plain. docs/formats/listing.md describes
// the bytes.
const (
	patchVersion = 2 // the first byte; that of a listing is version

	// MaxPatchedBytes is the maximum length of a plain listing of which there are patches. Larger
	// listings, which are rare, are stored whole.
	MaxPatchedBytes = 1 << 20
)

// IsPlain reports whether the columns of a listing are not compressed. The same page always has the
// same plain listing. The output of zstd may change with its version.
func IsPlain(listing []byte) bool {
	return len(listing) >= 2 && listing[0] == version && listing[1] == columnsPlain
}

// IsPatch reports whether data is a patch, and not a listing.
func IsPatch(data []byte) bool { return len(data) > 0 && data[0] == patchVersion }

// Plain returns the listing of the same page whose columns are not compressed. It accepts untrusted
// data; errors wrap backup.ErrCorrupt.
func Plain(listing []byte) ([]byte, error) {
	if IsPlain(listing) {
		return listing, nil
	}
	return appendPlain(nil, listing)
}

// appendPlain is Plain for a listing that is not plain: it appends to dst, which is empty.
func appendPlain(dst, listing []byte) ([]byte, error) {
	r := reader{b: listing}
	if v := r.byte(); r.err == nil && v != version {
		r.fail("unknown version %d", v)
	}
	compression := r.byte()
	packed := r.bytes(r.uvarint())
	if r.err != nil {
		return dst, r.err
	}
	// The columns come after their length, which is known once they are there.
	const room = 2 + binary.MaxVarintLen32
	dst = slices.Grow(dst, room+min(4*len(packed), MaxBytes)+len(r.b))
	columns, err := unpack(dst[room:room], compression, packed)
	if err != nil {
		return dst, err
	}
	head := binary.AppendUvarint(append(dst, version, columnsPlain), uint64(len(columns)))
	return append(append(head, columns...), r.b...), nil
}

// AppendPatch appends the patch from which Patched makes listing, given base. Both are plain and
// have at most MaxPatchedBytes. A base of nil makes a patch that needs no base.
func AppendPatch(dst, base, listing []byte) []byte {
	dst = append(dst, patchVersion)
	dst = binary.AppendUvarint(dst, uint64(len(listing)))
	if base == nil {
		return wholes.EncodeAll(listing, dst)
	}
	e := patchers.Get().(*zstd.Encoder)
	defer patchers.Put(e)
	if err := e.ResetWithOptions(nil, zstd.WithEncoderDictRaw(0, base)); err != nil {
		panic(err) // no dictionary of this size is refused
	}
	return e.EncodeAll(listing, dst)
}

// Patched returns the plain listing that patch makes from the base. It accepts untrusted data;
// errors wrap backup.ErrCorrupt.
func Patched(base, patch []byte) ([]byte, error) { return AppendPatched(nil, base, patch) }

// AppendPatched is Patched. dst is empty, and the listing is in its memory if there is room.
func AppendPatched(dst, base, patch []byte) ([]byte, error) {
	r := reader{b: patch}
	if v := r.byte(); r.err == nil && v != patchVersion {
		r.fail("patch: unknown version %d", v)
	}
	length := r.uvarint()
	if r.err == nil && (length > MaxPatchedBytes || len(base) > MaxPatchedBytes) {
		r.fail("patch to %d bytes of a listing of %d", length, len(base))
	}
	if r.err != nil {
		return dst, r.err
	}
	option := zstd.WithDecoderDictDelete()
	if base != nil {
		option = zstd.WithDecoderDictRaw(0, base)
	}
	d := unpatchers.Get().(*zstd.Decoder)
	defer unpatchers.Put(d)
	if err := d.ResetWithOptions(nil, option); err != nil {
		return dst, fmt.Errorf("patch: %w: %w", err, backup.ErrCorrupt)
	}
	listing, err := d.DecodeAll(r.b, slices.Grow(dst, int(min(length, patchRoom(len(base), len(r.b))))))
	if err != nil {
		return dst, fmt.Errorf("patch: %w: %w", err, backup.ErrCorrupt)
	}
	if uint64(len(listing)) != length || !IsPlain(listing) {
		return dst, fmt.Errorf("patch: it makes %d bytes, and says %d: %w", len(listing), length, backup.ErrCorrupt)
	}
	return listing, nil
}

// Whole returns the listing that is stored as it is, or as a patch. base is the stored form of the
// patch's base, and is no patch of another one. It accepts untrusted data; errors wrap
// backup.ErrCorrupt.
func Whole(stored, base []byte) ([]byte, error) {
	if !IsPatch(stored) {
		return stored, nil
	}
	if base == nil {
		return Patched(nil, stored)
	}
	if IsPlain(base) {
		return Patched(base, stored)
	}
	buffer := plainBases.Get().(*[]byte)
	defer plainBases.Put(buffer)
	plain, err := AppendPlainBase((*buffer)[:0], base)
	if err != nil {
		return nil, err
	}
	*buffer = plain
	return Patched(plain, stored)
}

// AppendPlainBase returns the plain form of a base, given as it is stored: a listing, or a patch
// without a base. dst is empty, and the result is in its memory if there is room, unless stored is
// plain itself and therefore the result. It accepts untrusted data; errors wrap backup.ErrCorrupt.
func AppendPlainBase(dst, stored []byte) ([]byte, error) {
	switch {
	case IsPlain(stored):
		return stored, nil
	case IsPatch(stored):
		return AppendPatched(dst, nil, stored)
	}
	return appendPlain(dst, stored)
}

// plainBases are buffers for the plain forms of bases.
var plainBases = sync.Pool{New: func() any { return new([]byte) }}

// patchRoom is the memory that is allocated for the result of a patch before it is decoded. The
// result is seldom larger than the base, and a patch of a few bytes must not cause a large
// allocation.
func patchRoom(base, frame int) uint64 { return uint64(base + 4*frame + 64) }

// wholes makes patches without a base. One version of a page in several is stored so, and a smaller
// one is worth more time than the columns of each listing of a first backup.
var wholes = func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderCRC(false),
		zstd.WithWindowSize(MaxPatchedBytes), zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err) // the options are constants
	}
	return e
}()

// The pools of encoders, which make patches, and of decoders, which apply them. They get another
// dictionary for each patch, and are costly to create. A patch without a base would make an encoder
// create its state again.
var (
	patchers = sync.Pool{New: func() any {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false),
			zstd.WithWindowSize(MaxPatchedBytes), zstd.WithEncoderConcurrency(1))
		if err != nil {
			panic(err) // the options are constants
		}
		return e
	}}
	unpatchers = sync.Pool{New: func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(MaxPatchedBytes), zstd.WithDecoderMaxWindow(MaxPatchedBytes))
		if err != nil {
			panic(err) // the options are constants
		}
		return d
	}}
)

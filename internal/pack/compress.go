package pack

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/klauspost/compress"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/bctl/bctl/internal/backup"
)

// A Codec identifies how a frame's body was made from its plaintext. The numbers are part of the
// format.
type Codec uint8

// The codecs.
const (
	CodecNone Codec = 0 // the plaintext itself
	CodecZstd Codec = 1 // a Zstandard frame, RFC 8878, without checksum and dictionary
	CodecS2   Codec = 2 // an S2 block
)

// String returns the codec's name, without a level.
func (c Codec) String() string {
	if c > CodecS2 {
		return fmt.Sprintf("codec %d", uint8(c))
	}
	return codecNames[c]
}

var codecNames = [...]string{CodecNone: "none", CodecZstd: "zstd", CodecS2: "s2"}

// A Compressor turns the plaintext of frames into their bodies. It is safe for concurrent use, and
// then keeps about 4 MB per CPU.
type Compressor struct {
	name  string
	codec Codec
	zstd  *zstd.Encoder
}

// zstdWindowBytes bounds an encoder's memory; most frames are shorter.
const zstdWindowBytes = 1 << 20

// NewCompressor returns the Compressor with the given name: "zstd-1" (fastest) to "zstd-4" (best),
// "s2" or "none". Any other name is backup.ErrInvalid. The name is a setting and not part of the
// format, because each frame records its codec.
func NewCompressor(name string) (*Compressor, error) {
	levels := map[string]zstd.EncoderLevel{
		"zstd-1": zstd.SpeedFastest,
		"zstd-2": zstd.SpeedDefault,
		"zstd-3": zstd.SpeedBetterCompression,
		"zstd-4": zstd.SpeedBestCompression,
	}
	switch level, isZstd := levels[name]; {
	case name == "none":
		return &Compressor{name: name, codec: CodecNone}, nil
	case name == "s2":
		return &Compressor{name: name, codec: CodecS2}, nil
	case isZstd:
		encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)),
			zstd.WithEncoderCRC(false), zstd.WithWindowSize(zstdWindowBytes))
		if err != nil {
			return nil, fmt.Errorf("compressor %s: %w", name, err)
		}
		return &Compressor{name: name, codec: CodecZstd, zstd: encoder}, nil
	}
	return nil, fmt.Errorf("compressor %q is none of zstd-1 to zstd-4, s2, none: %w", name, backup.ErrInvalid)
}

// Name returns the name that NewCompressor was given.
func (c *Compressor) Name() string { return c.name }

// Compress returns the body for the plaintext raw, and its codec. The body starts at the beginning
// of dst's storage, which is reallocated if it is too small; if compression gains less than 3%, the
// body is raw itself, not copied.
func (c *Compressor) Compress(dst, raw []byte) (body []byte, codec Codec) {
	if c.codec == CodecNone || incompressible(raw) {
		return raw, CodecNone
	}
	if c.codec == CodecS2 {
		dst = slices.Grow(dst[:0], s2.MaxEncodedLen(len(raw)))
		body = s2.Encode(dst[:cap(dst)], raw)
	} else {
		dst = slices.Grow(dst[:0], c.zstd.MaxEncodedSize(len(raw)))
		body = c.zstd.EncodeAll(raw, dst)
	}
	if len(body) > len(raw)-len(raw)*3/100 {
		return raw, CodecNone
	}
	return body, c.codec
}

const (
	sampleBytes = 4 << 10
	samples     = 4
	// Most samples of random and compressed data have an estimate below this. Data with seven
	// random bits in eight has 0.18, and text and programs more than 0.35.
	minEstimate = 0.1
)

// incompressible examines samples spread over raw. This takes 4 µs for compressible data and 14 µs
// for other data, while compressing takes between 0.1 ms (zstd-1) and 0.7 ms (zstd-3) per MiB. One
// sample that may compress is enough to try.
func incompressible(raw []byte) bool {
	if len(raw) < samples*sampleBytes {
		return false // compressing costs almost nothing
	}
	for i := range samples {
		offset := (len(raw) - sampleBytes) * i / (samples - 1)
		if compress.Estimate(raw[offset:][:sampleBytes]) >= minEstimate {
			return false
		}
	}
	return true
}

// denseSampleBytes in the middle of a chunk decide whether it is dense, because its beginning is
// often a header.
const denseSampleBytes = 1 << 10

// Dense reports, in less than a microsecond, whether a chunk is likely to be hardly compressible,
// so that frames can be made of similar chunks. It counts pairs of equal bytes: one pair in 256 is
// equal in random data, and one in 10 to 40 in text and programs.
func Dense(chunk []byte) bool {
	n := min(len(chunk), denseSampleBytes)
	if n < denseSampleBytes/2 {
		return false
	}
	var seen [256]uint16
	equal := 0
	for _, b := range chunk[(len(chunk)-n)/2:][:n] {
		equal += int(seen[b])
		seen[b]++
	}
	return equal < n*(n-1)/2/densePairs
}

// densePairs: compressed data, including its headers and tables, has fewer equal pairs than one in
// this many.
const densePairs = 160

// decoder is shared: it keeps no state between frames, and bounds the number of frames decoded
// concurrently.
var decoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(MaxFrameRawBytes), zstd.WithDecoderMaxWindow(MaxFrameRawBytes))
	if err != nil {
		panic(err) // only for options out of range
	}
	return d
})

// decodeSlackBytes is the room after the plaintext with which zstd copies the last 128 KiB of a
// frame, or a whole small one, in blocks of 16 bytes, and not byte by byte.
const decodeSlackBytes = 16

// decompress appends the plaintext of body to dst. It fails unless that is exactly rawLength bytes.
func decompress(dst, body []byte, codec Codec, rawLength int) ([]byte, error) {
	dst = slices.Grow(dst, rawLength+decodeSlackBytes)
	// The capacity is limited, because the decoder stops there.
	out := dst[len(dst) : len(dst) : len(dst)+rawLength+decodeSlackBytes]
	var err error
	switch codec {
	case CodecZstd:
		out, err = decoder().DecodeAll(body, out)
	case CodecS2:
		if n, _ := s2.DecodedLen(body); n != rawLength {
			return nil, fmt.Errorf("body decompresses to %d bytes instead of %d: %w", n, rawLength, backup.ErrCorrupt)
		}
		out, err = s2.Decode(out, body)
	default:
		return nil, fmt.Errorf("unknown %s: %w", codec, backup.ErrCorrupt)
	}
	if err != nil {
		return nil, fmt.Errorf("decompress %s: %w: %w", codec, err, backup.ErrCorrupt)
	}
	if len(out) != rawLength {
		return nil, fmt.Errorf("body decompresses to %d bytes instead of %d: %w", len(out), rawLength, backup.ErrCorrupt)
	}
	dst = dst[:len(dst)+rawLength]
	if &out[0] != &dst[len(dst)-rawLength] {
		copy(dst[len(dst)-rawLength:], out) // a decoder may allocate its own storage
	}
	return dst, nil
}

package pack

import (
	"encoding/binary"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
)

// A FrameInfo is the table's record of one frame.
type FrameInfo struct {
	Offset, SealedLength int64 // bytes in the pack
	RawLength            int   // bytes of plaintext
	Codec                Codec
	Removed              bool        // the pack was thinned and no longer has the frame
	Chunks               []ChunkInfo // in the order of their offsets; a part of Reader.Chunks
}

// A ChunkInfo is the table's record of one chunk.
type ChunkInfo struct {
	Hash           backup.ChunkHash
	Frame          uint32
	Offset, Length uint32 // bytes in the frame's plaintext
}

// The minimum length of a frame's and a chunk's row in the table. Counts are checked against the
// remaining bytes with these before anything is allocated.
const (
	minFrameRowBytes = 4  // codec and three varints
	minChunkRowBytes = 33 // hash and a varint
)

// A table is a pack's table under construction.
type table struct {
	frameRows, chunkRows []byte
	frames, chunks       int
}

func (t *table) add(f *Frame) {
	t.frameRows = append(t.frameRows, byte(f.Codec))
	t.frameRows = binary.AppendUvarint(t.frameRows, uint64(len(f.Body)+seal.OverheadBytes))
	t.frameRows = binary.AppendUvarint(t.frameRows, uint64(f.RawLength))
	t.frameRows = binary.AppendUvarint(t.frameRows, uint64(len(f.Chunks)))
	for i := range f.Chunks {
		t.chunkRows = append(t.chunkRows, f.Chunks[i].Hash[:]...)
		t.chunkRows = binary.AppendUvarint(t.chunkRows, uint64(f.Chunks[i].Length))
	}
	t.frames++
	t.chunks += len(f.Chunks)
}

// size is at least the number of bytes that appendTo appends, and at most two bytes more.
func (t *table) size() int { return 3 + len(t.frameRows) + len(t.chunkRows) }

func (t *table) appendTo(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(t.frames))
	dst = append(dst, t.frameRows...)
	return append(dst, t.chunkRows...)
}

// parseTable parses a table's plaintext. The frames that are present must fill the pack from first
// to end, and the chunks of each frame must fill its plaintext.
func parseTable(data []byte, kind Kind, present bitmap, first, end int64) ([]FrameInfo, []ChunkInfo, error) {
	p := parser{data: data}
	count := p.uvarint(MaxFrames)
	if p.failed || count == 0 || count > len(p.data)/minFrameRowBytes || !present.fits(count) {
		return nil, nil, fmt.Errorf("table: %d frames in %d bytes: %w", count, len(data), backup.ErrCorrupt)
	}
	frames := make([]FrameInfo, count)
	chunkCounts := make([]int, count)
	offset, rawBytes, chunkCount := first, 0, 0
	for i := range frames {
		f := &frames[i]
		f.Codec = Codec(p.byte())
		f.Offset = offset
		f.SealedLength = int64(p.uvarint(MaxFrameRawBytes + seal.OverheadBytes))
		f.RawLength = p.uvarint(MaxFrameRawBytes)
		chunkCounts[i] = p.uvarint(MaxChunks)
		if p.failed || !plausible(f, chunkCounts[i], kind) {
			return nil, nil, fmt.Errorf("table: frame %d: %w", i, backup.ErrCorrupt)
		}
		if f.Removed = !present.has(i); !f.Removed {
			offset += f.SealedLength
		}
		rawBytes += f.RawLength
		chunkCount += chunkCounts[i]
	}
	if offset != end || rawBytes > MaxRawBytes || chunkCount > MaxChunks || chunkCount > len(p.data)/minChunkRowBytes {
		return nil, nil, fmt.Errorf("table: %d frames and %d chunks end at %d, not at %d: %w", count, chunkCount, offset, end, backup.ErrCorrupt)
	}
	chunks := make([]ChunkInfo, 0, chunkCount)
	for i := range frames {
		start := len(chunks)
		chunks = p.chunks(chunks, i, chunkCounts[i], frames[i].RawLength)
		frames[i].Chunks = chunks[start:len(chunks):len(chunks)]
	}
	if p.failed || len(p.data) != 0 {
		return nil, nil, fmt.Errorf("table: chunks do not fill their frames: %w", backup.ErrCorrupt)
	}
	return frames, chunks, nil
}

// plausible reports whether a frame can have these lengths. A codec that would lengthen a frame is
// never used, so the length of the plaintext bounds the sealed length.
func plausible(f *FrameInfo, chunks int, kind Kind) bool {
	body := int(f.SealedLength) - seal.OverheadBytes
	if body <= 0 || body > f.RawLength || chunks > f.RawLength {
		return false
	}
	if chunks == 0 && kind == KindData {
		return false
	}
	switch f.Codec {
	case CodecNone:
		return body == f.RawLength
	case CodecZstd, CodecS2:
		return true
	}
	return false
}

// A parser reads fields from data. After the first failure, all reads fail.
type parser struct {
	data   []byte
	failed bool
}

func (p *parser) byte() byte {
	if p.failed || len(p.data) == 0 {
		p.failed = true
		return 0
	}
	b := p.data[0]
	p.data = p.data[1:]
	return b
}

func (p *parser) uvarint(limit uint64) int {
	v, n := binary.Uvarint(p.data)
	if p.failed || n <= 0 || v > limit {
		p.failed = true
		return 0
	}
	p.data = p.data[n:]
	return int(v)
}

// chunks appends the count chunks of one frame, which must fill its plaintext.
func (p *parser) chunks(dst []ChunkInfo, frame, count, rawLength int) []ChunkInfo {
	offset := 0
	for range count {
		if len(p.data) < minChunkRowBytes {
			p.failed = true
			return dst
		}
		hash := backup.ChunkHash(p.data)
		p.data = p.data[len(hash):]
		length := p.uvarint(uint64(rawLength - offset))
		if p.failed || length == 0 {
			p.failed = true
			return dst
		}
		dst = append(dst, ChunkInfo{Hash: hash, Frame: uint32(frame), Offset: uint32(offset), Length: uint32(length)})
		offset += length
	}
	if count > 0 && offset != rawLength {
		p.failed = true
	}
	return dst
}

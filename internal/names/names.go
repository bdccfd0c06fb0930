// Package names encodes the names of entries as the index stores them for bctl find: in blocks,
// each with the names of some pages. A block is 16 bytes of a checksum, and zstd of
//
//	pages   count; of each: shared and own length of its path key, own bytes, page key, number of
//	        names
//	shared  bytes that each name has in common with the one before it in its page
//	own     count of its other bytes
//	text    these bytes
//
// Numbers are unsigned varints. Each of the four parts begins with its length. The checksum is that
// of the shard's number (8 bytes, big-endian) and of the zstd data. A block is about as long as its
// names after compression: two to three bytes for each, if they are like those of programs.
package names

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
)

// A Page has names that a page of a directory has had. They are sorted.
type Page struct {
	PathKey []byte // of the directory
	Key     backup.PageKey
	Names   []string
}

// Limits of a block. A block ends after blockText bytes of names and path keys. Larger blocks are
// refused.
const (
	sumBytes   = 16
	blockText  = 512 << 10
	maxText    = 4 << 20 // of names, and of path keys
	maxEncoded = 8 << 20 // before compression
)

var encoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<20))
	if err != nil {
		panic(err) // the options are constants
	}
	return e
})

var decoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxEncoded))
	if err != nil {
		panic(err) // the options are constants
	}
	return d
})

// A Writer collects the names of a shard's pages, and makes blocks of them.
type Writer struct {
	Shard  backup.ShardID
	Blocks [][]byte // that are complete
	Names  int64    // in all of them, and in the one that is not

	pages               uint64
	head, shared, own   []byte
	text                []byte
	path                []byte // of the last page
	expanded, pathBytes int
}

// Add adds names of a page. Pages whose path keys are alike are best added one after another.
func (w *Writer) Add(p *Page) {
	for rest := p.Names; len(rest) > 0; {
		n, size := 0, 0
		for n < len(rest) && (n == 0 || w.expanded+size+len(rest[n]) <= blockText) {
			size += len(rest[n])
			n++
		}
		w.add(p.PathKey, p.Key, rest[:n])
		w.expanded += size
		if rest = rest[n:]; len(rest) > 0 || w.expanded+w.pathBytes >= blockText {
			w.Flush()
		}
	}
}

func (w *Writer) add(pathKey []byte, key backup.PageKey, names []string) {
	shared := sharedPrefix(w.path, pathKey)
	w.head = binary.AppendUvarint(w.head, uint64(shared))
	w.head = binary.AppendUvarint(w.head, uint64(len(pathKey)-shared))
	w.head = append(w.head, pathKey[shared:]...)
	w.head = binary.AppendUvarint(w.head, uint64(key))
	w.head = binary.AppendUvarint(w.head, uint64(len(names)))
	w.path = append(w.path[:0], pathKey...)
	w.pathBytes += len(pathKey)
	last := ""
	for _, name := range names {
		n := sharedPrefix(last, name)
		w.shared = binary.AppendUvarint(w.shared, uint64(n))
		w.own = binary.AppendUvarint(w.own, uint64(len(name)-n))
		w.text = append(w.text, name[n:]...)
		last = name
	}
	w.pages++
	w.Names += int64(len(names))
}

// Flush ends the block that is not complete.
func (w *Writer) Flush() {
	if w.pages == 0 {
		return
	}
	head := append(binary.AppendUvarint(nil, w.pages), w.head...)
	var raw []byte
	for _, part := range [][]byte{head, w.shared, w.own, w.text} {
		raw = append(binary.AppendUvarint(raw, uint64(len(part))), part...)
	}
	block := encoder().EncodeAll(raw, make([]byte, sumBytes, sumBytes+len(raw)/2))
	sum := checksum(w.Shard, block[sumBytes:])
	copy(block, sum[:])
	w.Blocks = append(w.Blocks, block)
	w.pages, w.head, w.shared, w.own, w.text, w.path = 0, w.head[:0], w.shared[:0], w.own[:0], w.text[:0], w.path[:0]
	w.expanded, w.pathBytes = 0, 0
}

func checksum(shard backup.ShardID, data []byte) (sum [sumBytes]byte) {
	h := blake3.New()
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(shard)))
	h.Write(data)
	copy(sum[:], h.Sum(nil))
	return sum
}

func sharedPrefix[T string | []byte](a, b T) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// Decode returns the pages of a block. Its error wraps backup.ErrCorrupt.
func Decode(shard backup.ShardID, block []byte) ([]Page, error) {
	if len(block) < sumBytes {
		return nil, corrupt("it has %d bytes", len(block))
	}
	if sum := checksum(shard, block[sumBytes:]); !bytes.Equal(sum[:], block[:sumBytes]) {
		return nil, corrupt("its checksum is another")
	}
	raw, err := decoder().DecodeAll(block[sumBytes:], nil)
	if err != nil {
		return nil, corrupt("%v", err)
	}
	return parse(raw)
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("block of names: "+format+": %w", append(args, backup.ErrCorrupt)...)
}

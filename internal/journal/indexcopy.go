package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// IndexPartBytes is the length of an index file's part per object. It is small because the first
// access to new memory takes longer than sealing the data that is put there.
const IndexPartBytes = 4 << 20

const (
	copyCodec = "s2"
	// minPageBytes is the size of a page of the SQLite file, or divides it.
	minPageBytes = 4 << 10
)

// An IndexHeader is the header of each part of a copy of an index file.
type IndexHeader struct {
	Version  int       `json:"version"`
	Sequence int64     `json:"sequence"` // the copy with the greater Sequence is newer
	Part     int       `json:"part"`
	Parts    int       `json:"parts"`
	Bytes    int64     `json:"bytes"` // of the file
	Written  time.Time `json:"written"`
}

// WriteIndexCopy encodes, seals and signs a copy of the SQLite file of an index. It calls put with
// each part, in order; data is valid only during the call. What is in the file's pages is mostly
// compressed already. So only frames with empty pages are compressed, fast.
func WriteIndexCopy(keys Keys, sequence int64, written time.Time, file io.Reader, size int64, put func(name string, data []byte) error) error {
	h := IndexHeader{
		Version: version, Sequence: sequence, Parts: int(max(1, (size+IndexPartBytes-1)/IndexPartBytes)), Bytes: size, Written: written.UTC(),
	}
	compress, err := pack.NewCompressor(copyCodec)
	if err != nil {
		return err
	}
	o := &object{keys: keys, kind: pack.KindIndex}
	frame := make([]byte, min(size, frameBytes))
	for ; h.Part < h.Parts; h.Part++ {
		name, n := store.IndexName(sequence, h.Part), min(size, IndexPartBytes)
		size -= n
		data, err := o.copyPart(h, name, file, n, frame, compress)
		if err != nil {
			return fmt.Errorf("copy the index file: %w", err)
		}
		if err := put(name, data); err != nil {
			return err
		}
	}
	return nil
}

// copyPart makes a part from the next bytes of a file. frame is reusable storage.
func (o *object) copyPart(h IndexHeader, name string, file io.Reader, size int64, frame []byte, compress *pack.Compressor) ([]byte, error) {
	o.compress = nil // of the header
	w, err := o.begin(h, indexPartID(h.Sequence, h.Part), int(size))
	if err != nil {
		return nil, err
	}
	for size > 0 {
		n, err := io.ReadFull(file, frame[:min(size, int64(len(frame)))])
		if err != nil {
			return nil, err
		}
		o.compress = nil
		if hasEmptyPage(frame[:n]) {
			o.compress = compress
		}
		if err := o.add(w, frame[:n]); err != nil {
			return nil, err
		}
		size -= int64(n)
	}
	return o.end(w, name)
}

// hasEmptyPage reports whether a part of a SQLite file has a page that is zero.
func hasEmptyPage(frame []byte) bool {
	var empty [minPageBytes]byte
	for page := range slices.Chunk(frame, minPageBytes) {
		if bytes.Equal(page, empty[:len(page)]) {
			return true
		}
	}
	return false
}

// indexPartID returns the pack id of a part of an index copy.
func indexPartID(sequence int64, part int) (id backup.PackID) {
	binary.BigEndian.PutUint64(id[:], uint64(sequence))
	binary.BigEndian.PutUint64(id[8:], uint64(part))
	return id
}

// OpenIndexPart opens a part of the index copy with the given sequence. data is the whole object.
func OpenIndexPart(data []byte, sequence int64, part int, trust Trust) (h IndexHeader, write func(io.Writer) error, err error) {
	name := store.IndexName(sequence, part)
	o, err := open(data, pack.KindIndex, name, indexPartID(sequence, part), trust, &h)
	if err != nil {
		return h, nil, err
	}
	if h.Sequence != sequence || h.Part != part || h.Parts <= part {
		return h, nil, fmt.Errorf("%s: its header gives part %d of %d of copy %d: %w", name, h.Part, h.Parts, h.Sequence, backup.ErrCorrupt)
	}
	return h, func(w io.Writer) error {
		for n := 1; n <= o.frames(); n++ {
			raw, err := o.frame(n)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if _, err := w.Write(raw); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

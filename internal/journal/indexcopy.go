package journal

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// indexPartBytes is how much of an index file one object has.
const indexPartBytes = 16 << 20

// An IndexHeader is the header of each part of a copy of an index file.
type IndexHeader struct {
	Version  int       `json:"version"`
	Sequence int64     `json:"sequence"` // of two copies, the one of the greater is newer
	Part     int       `json:"part"`
	Parts    int       `json:"parts"`
	Bytes    int64     `json:"bytes"` // of the file
	Written  time.Time `json:"written"`
}

// WriteIndexCopy encodes, seals and signs a copy of the SQLite file of an
// index, and gives its parts to put, in order; data is only valid during the
// call. The file's pages are mostly compressed already, and stay as they are.
func WriteIndexCopy(keys Keys, sequence int64, written time.Time, file io.Reader, bytes int64, put func(name string, data []byte) error) error {
	h := IndexHeader{
		Version: version, Sequence: sequence, Parts: int(max(1, (bytes+indexPartBytes-1)/indexPartBytes)), Bytes: bytes, Written: written.UTC(),
	}
	o := &object{keys: keys, kind: pack.KindIndex}
	for ; h.Part < h.Parts; h.Part++ {
		n := min(bytes, indexPartBytes)
		bytes -= n
		o.reserve(int(n))
		for n > 0 {
			frame := int(min(n, frameBytes))
			from := len(o.raw)
			o.raw = o.raw[:from+frame]
			if _, err := io.ReadFull(file, o.raw[from:]); err != nil {
				return fmt.Errorf("read the index file: %w", err)
			}
			o.ends = append(o.ends, len(o.raw))
			n -= int64(frame)
		}
		name := store.IndexName(sequence, h.Part)
		data, err := o.finish(h, indexPartID(sequence, h.Part), name)
		if err != nil {
			return err
		}
		if err := put(name, data); err != nil {
			return err
		}
	}
	return nil
}

// indexPartID is the pack id of a part of an index copy.
func indexPartID(sequence int64, part int) (id backup.PackID) {
	binary.BigEndian.PutUint64(id[:], uint64(sequence))
	binary.BigEndian.PutUint64(id[8:], uint64(part))
	return id
}

// OpenIndexPart opens a part of the index copy of that sequence. data is the
// whole object.
func OpenIndexPart(data []byte, sequence int64, part int, trust Trust) (h IndexHeader, write func(io.Writer) error, err error) {
	name := store.IndexName(sequence, part)
	o, err := open(data, pack.KindIndex, name, indexPartID(sequence, part), trust, &h)
	if err != nil {
		return h, nil, err
	}
	if h.Sequence != sequence || h.Part != part || h.Parts <= part {
		return h, nil, fmt.Errorf("%s: it says that it is part %d of %d of copy %d: %w", name, h.Part, h.Parts, h.Sequence, backup.ErrCorrupt)
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

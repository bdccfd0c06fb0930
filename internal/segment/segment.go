// Package segment is the index segment format: what one snapshot added to and
// ended in the pages of its shard, sealed like a pack. With the packs and the
// keys, the segments of all snapshots rebuild the index (I7).
// docs/formats/segment.md has the bytes.
//
// A segment is one or more objects, its parts. Each is a pack of kind segment
// whose first frame is a Header in JSON, and whose other frames are changes,
// one after the other. The header of the last part says so.
package segment

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
)

const (
	version       = 1
	frameBytes    = 2 << 20 // of changes
	partBytes     = 8 << 20
	overheadBytes = 64 << 10 // of a part: keys, table and tags
	codec         = "zstd-1"

	// maxChangeBytes is what a change takes, its path and listing apart.
	maxChangeBytes = 1 + 16 + 4*binary.MaxVarintLen64

	added = 1
	ended = 2
)

// A Header says which snapshot the segment is of.
type Header struct {
	Version   int                   `json:"version"`
	Part      int                   `json:"part"`
	Last      bool                  `json:"last"`
	Snapshot  string                `json:"snapshot"` // id, hexadecimal
	Filer     string                `json:"filer"`
	Shard     string                `json:"shard"`
	Source    string                `json:"source"`
	Number    backup.SnapshotNumber `json:"number"`
	Base      backup.SnapshotNumber `json:"base"`
	Started   time.Time             `json:"started"`
	Committed time.Time             `json:"committed"`
	Selection backup.Selection      `json:"selection"`
	Tags      []string              `json:"tags,omitempty"`
	Counts    backup.Counts         `json:"counts"`
}

// Write encodes and seals a segment and gives its parts to put, in order.
// data is only valid during the call. id is that of the attempt, which is part
// of the objects' names and is sealed into each.
func Write(sealer *seal.Sealer, id backup.PackID, h Header, changes iter.Seq2[backup.PageChange, error], put func(part int, data []byte) error) error {
	w := writer{sealer: sealer, id: id, header: h, put: put}
	w.header.Version, w.header.Part, w.header.Last = version, 0, false
	var err error
	if w.compress, err = pack.NewCompressor(codec); err != nil {
		return err
	}
	for c, err := range changes {
		if err != nil {
			return err
		}
		if len(w.raw) >= partBytes {
			if err := w.endPart(); err != nil {
				return err
			}
		}
		if need := len(c.Path) + len(c.Listing) + maxChangeBytes; cap(w.raw)-len(w.raw) < need {
			w.raw = slices.Grow(w.raw, len(w.raw)+need) // append alone would copy it many times over
		}
		w.raw = appendChange(w.raw, &c)
		if len(w.raw)-w.framed() >= frameBytes {
			w.ends = append(w.ends, len(w.raw))
		}
	}
	w.header.Last = true
	return w.endPart()
}

// A writer collects one part at a time: its header, which comes first, says whether it is the last.
type writer struct {
	sealer   *seal.Sealer
	id       backup.PackID
	compress *pack.Compressor
	header   Header
	put      func(int, []byte) error

	raw    []byte // changes of the part
	ends   []int  // of its frames in raw
	body   []byte
	object []byte // storage for the next part
}

// framed is how much of raw is in whole frames.
func (w *writer) framed() int {
	if len(w.ends) == 0 {
		return 0
	}
	return w.ends[len(w.ends)-1]
}

func (w *writer) endPart() error {
	if len(w.raw) > w.framed() {
		w.ends = append(w.ends, len(w.raw))
	}
	header, err := json.Marshal(w.header)
	if err != nil {
		return err
	}
	w.object = slices.Grow(w.object[:0], len(w.raw)+len(header)+overheadBytes)
	out, err := pack.NewWriter(pack.KindSegment, w.id, w.sealer, w.object)
	if err != nil {
		return err
	}
	if err := w.add(out, header); err != nil {
		return err
	}
	start := 0
	for _, end := range w.ends {
		if err := w.add(out, w.raw[start:end]); err != nil {
			return err
		}
		start = end
	}
	data, err := out.Finish()
	if err != nil {
		return err
	}
	part := w.header.Part
	w.header.Part++
	w.raw, w.ends, w.object = w.raw[:0], w.ends[:0], data
	return w.put(part, data)
}

// add adds a frame to a part.
func (w *writer) add(out *pack.Writer, raw []byte) error {
	body, codec := w.compress.Compress(w.body[:0], raw)
	if codec != pack.CodecNone {
		w.body = body
	}
	_, err := out.Add(pack.Frame{Codec: codec, RawLength: len(raw), Body: body})
	return err
}

func appendChange(b []byte, c *backup.PageChange) []byte {
	kind := byte(added)
	if c.Ended {
		kind = ended
	}
	b = append(b, kind)
	b = binary.AppendUvarint(b, uint64(len(c.Path)))
	b = append(b, c.Path...)
	b = binary.AppendUvarint(b, uint64(c.Key))
	if c.Ended {
		return b
	}
	b = append(b, c.Fingerprint[:]...)
	b = binary.AppendUvarint(b, c.Inode)
	b = binary.AppendUvarint(b, uint64(len(c.Listing)))
	return append(b, c.Listing...)
}

// A Part is one opened object of a segment.
type Part struct {
	Header Header
	pack   *pack.Reader
	data   []byte
}

// Open opens one part; data is the whole object, and stays the part's.
func Open(data []byte, id backup.PackID, opener *seal.Opener) (*Part, error) {
	r, err := pack.OpenBytes(data, id, opener)
	if err != nil {
		return nil, err
	}
	p := &Part{pack: r, data: data}
	if r.Kind() != pack.KindSegment || len(r.Frames()) == 0 {
		return nil, fmt.Errorf("segment: a pack of kind %v, %d frames: %w", r.Kind(), len(r.Frames()), backup.ErrCorrupt)
	}
	header, err := p.decode(0)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(header, &p.Header); err != nil {
		return nil, fmt.Errorf("segment header: %w: %w", err, backup.ErrCorrupt)
	}
	if p.Header.Version != version {
		return nil, fmt.Errorf("segment of version %d: %w", p.Header.Version, backup.ErrInvalid)
	}
	return p, nil
}

func (p *Part) decode(frame uint32) ([]byte, error) {
	f := p.pack.Frames()[frame]
	return p.pack.DecodeFrame(nil, frame, p.data[f.Offset:f.Offset+f.SealedLength], nil)
}

// Changes yields the part's changes in the order in which they were written.
func (p *Part) Changes() iter.Seq2[backup.PageChange, error] {
	return func(yield func(backup.PageChange, error) bool) {
		for n := 1; n < len(p.pack.Frames()); n++ {
			raw, err := p.decode(uint32(n))
			if err != nil {
				yield(backup.PageChange{}, err)
				return
			}
			for len(raw) > 0 {
				var c backup.PageChange
				if c, raw, err = decodeChange(raw); err != nil {
					yield(backup.PageChange{}, err)
					return
				}
				if !yield(c, nil) {
					return
				}
			}
		}
	}
}

func decodeChange(b []byte) (c backup.PageChange, rest []byte, err error) {
	r := reader{b: b}
	kind := r.bytes(1)
	path := r.bytes(r.uvarint())
	key := r.uvarint()
	if !r.bad {
		c.Path, c.Key, c.Ended = string(path), backup.PageKey(key), kind[0] == ended
	}
	if !r.bad && kind[0] == added {
		copy(c.Fingerprint[:], r.bytes(uint64(len(c.Fingerprint))))
		c.Inode = r.uvarint()
		c.Listing = append([]byte(nil), r.bytes(r.uvarint())...)
	}
	switch {
	case r.bad, kind[0] != added && kind[0] != ended, key > math.MaxInt64:
		return backup.PageChange{}, nil, fmt.Errorf("segment: a change that is none: %w", backup.ErrCorrupt)
	}
	if err := backup.CheckPath(c.Path); err != nil {
		return backup.PageChange{}, nil, fmt.Errorf("segment: %w: %w", err, backup.ErrCorrupt)
	}
	return c, r.b, nil
}

// reader takes values from b; once something is missing, bad stays true.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) bytes(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return nil
	}
	s := r.b[:n]
	r.b = r.b[n:]
	return s
}

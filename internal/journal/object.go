package journal

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
)

const (
	version       = 1
	frameBytes    = 2 << 20 // of plaintext; the record that reaches this size ends its frame
	partBytes     = 8 << 20 // likewise, for an object
	overheadBytes = 64 << 10
	codec         = "zstd-1"
)

// Keys are the keys for writing.
type Keys struct {
	Repository backup.RepositoryID
	Sealer     *seal.Sealer
	Signing    seal.SigningKey
}

// Trust holds what reading requires: the signer to trust, and the key to open objects with.
type Trust struct {
	Repository backup.RepositoryID
	Signer     seal.Signer
	Opener     *seal.Opener
}

// An object is a signed pack under construction. Its frames are collected and then sealed together
// with the header, which comes first but is complete only at the end.
type object struct {
	keys     Keys
	kind     pack.Kind
	compress *pack.Compressor // nil: frames are not compressed

	raw    []byte // frames, one after another
	ends   []int  // ends of the frames in raw
	body   []byte // reusable storage
	sealed []byte // reusable storage
}

func newObject(keys Keys, kind pack.Kind) (*object, error) {
	c, err := pack.NewCompressor(codec)
	if err != nil {
		return nil, err
	}
	return &object{keys: keys, kind: kind, compress: c}, nil
}

// framed returns the length of raw's whole frames.
func (o *object) framed() int {
	if len(o.ends) == 0 {
		return 0
	}
	return o.ends[len(o.ends)-1]
}

// reserve makes room for n more bytes in raw. append alone would copy the bytes many times.
func (o *object) reserve(n int) {
	if cap(o.raw)-len(o.raw) < n {
		o.raw = slices.Grow(o.raw, len(o.raw)+n)
	}
}

// endRecord marks the end of raw as the end of a record.
func (o *object) endRecord() {
	if len(o.raw)-o.framed() >= frameBytes {
		o.ends = append(o.ends, len(o.raw))
	}
}

// full reports whether the object is large enough to be put.
func (o *object) full() bool { return len(o.raw) >= partBytes }

// finish seals and signs the object as the pack id under the given name. The returned bytes are
// valid until the next call. The object is empty again.
func (o *object) finish(header any, id backup.PackID, name string) ([]byte, error) {
	if len(o.raw) > o.framed() {
		o.ends = append(o.ends, len(o.raw))
	}
	w, err := o.begin(header, id, len(o.raw))
	if err != nil {
		return nil, err
	}
	start := 0
	for _, end := range o.ends {
		if err := o.add(w, o.raw[start:end]); err != nil {
			return nil, err
		}
		start = end
	}
	o.raw, o.ends = o.raw[:0], o.ends[:0]
	return o.end(w, name)
}

// begin starts a pack with the given header. The frames to be added have the given total length in
// bytes.
func (o *object) begin(header any, id backup.PackID, bytes int) (*pack.Writer, error) {
	head, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	o.sealed = slices.Grow(o.sealed[:0], bytes+len(head)+overheadBytes)
	w, err := pack.NewWriter(o.kind, o.keys.Repository, id, o.keys.Sealer, o.sealed)
	if err != nil {
		return nil, err
	}
	return w, o.add(w, head)
}

// end signs the pack under the given name. The returned bytes are valid until the next begin.
func (o *object) end(w *pack.Writer, name string) (_ []byte, err error) {
	o.sealed, err = w.FinishSigned(o.keys.Signing, name)
	return o.sealed, err
}

// add adds a frame.
func (o *object) add(w *pack.Writer, raw []byte) error {
	body, codec := raw, pack.CodecNone
	if o.compress != nil {
		if body, codec = o.compress.Compress(o.body[:0], raw); codec != pack.CodecNone {
			o.body = body
		}
	}
	_, err := w.Add(pack.Frame{Codec: codec, RawLength: len(raw), Body: body})
	return err
}

// An opened object has a verified signature and a parsed header.
type opened struct {
	pack *pack.Reader
	data []byte
}

// open opens an object of the given kind and parses its header, which must be of a supported
// version, into header.
func open(data []byte, kind pack.Kind, name string, id backup.PackID, trust Trust, header any) (*opened, error) {
	r, err := pack.OpenSigned(data, kind, name, trust.Repository, id, trust.Signer, trust.Opener)
	if err != nil {
		return nil, err
	}
	o := &opened{pack: r, data: data}
	head, err := o.frame(0)
	if err != nil {
		return nil, err
	}
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(head, &v); err != nil {
		return nil, fmt.Errorf("%s: header: %w: %w", name, err, backup.ErrCorrupt)
	}
	second := kind == pack.KindSegment && v.Version == patchVersion || kind == pack.KindCommit && v.Version == amendedVersion
	if v.Version != version && !second {
		return nil, fmt.Errorf("%s: version %d is not known to this version of bctl: %w", name, v.Version, backup.ErrInvalid)
	}
	if err := json.Unmarshal(head, header); err != nil {
		return nil, fmt.Errorf("%s: header: %w: %w", name, err, backup.ErrCorrupt)
	}
	return o, nil
}

// frames returns the number of frames after the header.
func (o *opened) frames() int { return len(o.pack.Frames()) - 1 }

// frame decodes frame n. Frame 0 is the header.
func (o *opened) frame(n int) ([]byte, error) {
	f := o.pack.Frames()[n]
	if f.Removed {
		return nil, fmt.Errorf("frame %d was removed: %w", n, backup.ErrCorrupt)
	}
	return o.pack.DecodeFrame(nil, uint32(n), o.data[f.Offset:f.Offset+f.SealedLength], nil)
}

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
	frameBytes    = 2 << 20 // of plaintext; a frame ends with the record that takes it there
	partBytes     = 8 << 20 // the same of an object
	overheadBytes = 64 << 10
	codec         = "zstd-1"
)

// Keys are what writing takes.
type Keys struct {
	Repository backup.RepositoryID
	Sealer     *seal.Sealer
	Signing    seal.SigningKey
}

// Trust is what reading takes: whose signatures to believe, and what to open
// the objects with.
type Trust struct {
	Repository backup.RepositoryID
	Signer     seal.Signer
	Opener     *seal.Opener
}

// An object is one signed pack that is being written: frames are collected, and
// sealed together with the header, which comes first and is known last.
type object struct {
	keys     Keys
	kind     pack.Kind
	compress *pack.Compressor // nil: frames stay as they are

	raw    []byte // frames, one after the other
	ends   []int  // of frames in raw
	body   []byte // storage
	sealed []byte // storage
}

func newObject(keys Keys, kind pack.Kind) (*object, error) {
	c, err := pack.NewCompressor(codec)
	if err != nil {
		return nil, err
	}
	return &object{keys: keys, kind: kind, compress: c}, nil
}

// framed is how much of raw is in whole frames.
func (o *object) framed() int {
	if len(o.ends) == 0 {
		return 0
	}
	return o.ends[len(o.ends)-1]
}

// reserve makes room for n more bytes of raw; append alone would copy them many
// times over.
func (o *object) reserve(n int) {
	if cap(o.raw)-len(o.raw) < n {
		o.raw = slices.Grow(o.raw, len(o.raw)+n)
	}
}

// endRecord says that raw ends with a whole record.
func (o *object) endRecord() {
	if len(o.raw)-o.framed() >= frameBytes {
		o.ends = append(o.ends, len(o.raw))
	}
}

// full reports whether the object is large enough to be put.
func (o *object) full() bool { return len(o.raw) >= partBytes }

// finish seals and signs the object, as the pack id under that name. The bytes
// are valid until the next call; the object is empty again.
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

// begin begins a pack with a header, to which frames that come to so many bytes
// are added.
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

// end signs the pack under that name. The bytes are valid until the next begin.
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

// An opened object is one whose signature and header were read.
type opened struct {
	pack *pack.Reader
	data []byte
}

// open opens an object of a kind and reads its header, which must be of our
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
	if v.Version != version {
		return nil, fmt.Errorf("%s: version %d is not known to this version of bctl: %w", name, v.Version, backup.ErrInvalid)
	}
	if err := json.Unmarshal(head, header); err != nil {
		return nil, fmt.Errorf("%s: header: %w: %w", name, err, backup.ErrCorrupt)
	}
	return o, nil
}

// frames is how many frames follow the header.
func (o *opened) frames() int { return len(o.pack.Frames()) - 1 }

// frame decodes frame n; frame 0 is the header.
func (o *opened) frame(n int) ([]byte, error) {
	f := o.pack.Frames()[n]
	if f.Removed {
		return nil, fmt.Errorf("frame %d was removed: %w", n, backup.ErrCorrupt)
	}
	return o.pack.DecodeFrame(nil, uint32(n), o.data[f.Offset:f.Offset+f.SealedLength], nil)
}

package chunk

import (
	"fmt"
	"io"

	chunkers "github.com/PlakarKorp/go-cdc-chunkers"
	_ "github.com/PlakarKorp/go-cdc-chunkers/chunkers/fastcdc" // registers the algorithm
	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
)

// WholeFileBytes is the maximum size of a file that is a single chunk and needs no Cutter.
const WholeFileBytes = 1 << 20

// MaxBytes is the maximum length of a chunk.
const MaxBytes = 4 << 20

// DefaultCutter is the cutter of new repositories: keyed FastCDC with chunks of 256 KiB to 4 MiB,
// most of them near 1 MiB.
const DefaultCutter = "fastcdc-v1.0.0-1MiB"

// cutters are the cutters that a repository may name. A name stands for the algorithm and all its
// parameters, and its meaning never changes.
var cutters = map[string]struct {
	algorithm                     string
	minBytes, normalBytes, maxLen int
}{
	DefaultCutter: {"fastcdc-v1.0.0", 256 << 10, 1 << 20, MaxBytes},
}

// cutterContext separates the cutter's key from all other uses of the dedup key.
const cutterContext = "bctl 2026-11-21 chunk boundaries v1"

// A Cutter finds chunk boundaries. It must not be used concurrently.
type Cutter struct {
	algorithm string
	options   chunkers.ChunkerOpts
	scratch   []byte // for data whose capacity is less than the longest chunk
	source    inPlace
}

// NewCutter returns the Cutter with the given name, such as DefaultCutter, for a repository's dedup
// key. If the name is unknown, the error is backup.ErrInvalid.
func NewCutter(name string, key [32]byte) (*Cutter, error) {
	c, ok := cutters[name]
	if !ok {
		return nil, fmt.Errorf("chunker %q is not known to this version: %w", name, backup.ErrInvalid)
	}
	gearKey := make([]byte, 32)
	blake3.DeriveKey(cutterContext, key[:], gearKey)
	return &Cutter{
		algorithm: c.algorithm,
		options:   chunkers.ChunkerOpts{MinSize: c.minBytes, NormalSize: c.normalBytes, MaxSize: c.maxLen, Key: gearKey},
	}, nil
}

// Cut returns the length of the first chunk of data, at most MaxBytes. last means that data extends
// to the end of what is cut. Cut returns 0 if it needs more data, which happens only if last is
// false and data has less than MaxBytes. The next call, with more data, scans these bytes again.
// Cut does not change data, and copies it only if its capacity is less than MaxBytes.
func (c *Cutter) Cut(data []byte, last bool) int {
	if len(data) <= c.options.MinSize {
		if last {
			return len(data)
		}
		return 0
	}
	data = data[:min(len(data), c.options.MaxSize):cap(data)]
	n := c.firstCut(data)
	if n == len(data) && n < c.options.MaxSize && !last {
		return 0
	}
	return n
}

// firstCut runs the library's algorithm on data without copying it. The library does not export the
// algorithm alone: it needs a reader and a buffer. So the buffer is data's own storage, and the
// reader (inPlace) only reports that it has filled it.
func (c *Cutter) firstCut(data []byte) int {
	var buf []byte
	if cap(data) >= c.options.MaxSize {
		buf = data[:c.options.MaxSize]
	} else {
		if c.scratch == nil {
			c.scratch = make([]byte, c.options.MaxSize)
		}
		copy(c.scratch, data)
		buf = c.scratch
	}
	c.source = inPlace{left: len(data)}
	chunker, err := chunkers.NewChunkerBuffer(c.algorithm, &c.source, &c.options, buf)
	if err != nil {
		panic(err) // only for options that the table above does not have
	}
	// The error is io.EOF or nil, because the source returns no other.
	first, _ := chunker.Next()
	return len(first)
}

// inPlace is a reader whose data is already in the caller's buffer.
type inPlace struct{ left int }

func (r *inPlace) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), r.left)
	r.left -= n
	return n, nil
}

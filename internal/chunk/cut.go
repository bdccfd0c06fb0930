package chunk

import (
	"fmt"
	"io"

	chunkers "github.com/PlakarKorp/go-cdc-chunkers"
	_ "github.com/PlakarKorp/go-cdc-chunkers/chunkers/fastcdc" // registers the algorithm
	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
)

// WholeFileBytes: a file up to this is one chunk, and needs no Cutter.
const WholeFileBytes = 1 << 20

// MaxBytes is the most that any chunk has.
const MaxBytes = 4 << 20

// DefaultCutter is what a new repository gets: keyed FastCDC with chunks of
// 256 KiB to 4 MiB, most of them near 1 MiB.
const DefaultCutter = "fastcdc-v1.0.0-1MiB"

// cutters are the names that a repository may have stored. A name stands for
// the algorithm and all of its parameters, and never changes its meaning.
var cutters = map[string]struct {
	algorithm                     string
	minBytes, normalBytes, maxLen int
}{
	DefaultCutter: {"fastcdc-v1.0.0", 256 << 10, 1 << 20, MaxBytes},
}

// cutterContext separates the cutter's key from every other use of the dedup key.
const cutterContext = "bctl 2026-11-21 chunk boundaries v1"

// A Cutter finds chunk boundaries. Not for concurrent use.
type Cutter struct {
	algorithm string
	options   chunkers.ChunkerOpts
	scratch   []byte // only for data in less storage than the longest chunk
	source    inPlace
}

// NewCutter returns the Cutter of that name (DefaultCutter), for the
// repository's dedup key. An unknown name is backup.ErrInvalid.
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

// Cut returns the length of the first chunk of data, at most MaxBytes. It is 0
// where more data is needed to tell, which is never so when last (data goes to
// the end of the file) or when data has MaxBytes; a caller that gives MaxBytes
// at a time has each byte looked at once. Data is not changed, and not copied
// where its capacity is MaxBytes or more.
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

// firstCut runs the library's algorithm over data where it lies. The library
// keeps the algorithm to itself and wants a reader and a buffer; so the buffer
// is data's own storage, and the reader (inPlace) says that it has filled it.
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
	// Next's error is io.EOF or nil: the source has no other, and the length
	// says what we need.
	first, _ := chunker.Next()
	return len(first)
}

// inPlace is a reader whose data is in the caller's buffer already.
type inPlace struct{ left int }

func (r *inPlace) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), r.left)
	r.left -= n
	return n, nil
}

package dump

import (
	"bytes"
	"context"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/listing"
)

const (
	// batchBytes is the content of a batch, to which one chunk may add.
	batchBytes   = 8 << 20
	batchEntries = 2048
	// batchesInFlight is the number of batches that wait to be written, besides the one that is
	// written and the one that is collected.
	batchesInFlight = 1
)

// A part is an entry, or a part of a large file.
type part struct {
	path        string // relative to what is dumped; "": what is dumped
	e           backup.Entry
	group       *group // nil: the file has no other names
	further     bool   // it is a further name of the group's file
	first, last bool   // of the entry's parts
	segments    []segment
	failed      error // of an invalid list of chunks
	xattrsLost  error
}

// A segment is the content of a chunk, and its offset in the file.
type segment struct {
	offset int64
	data   []byte
	err    error
}

// A batch is a run of parts that are fetched together. It implements fetch.Sink; the tag of a want
// is the number of the segment, or ^n for the extended attributes of part n.
type batch struct {
	parts    []*part
	wants    []fetch.Want
	segments []struct {
		of *part
		n  int
	}
	bytes int64

	done chan struct{} // closed when everything has arrived, or err is set
	err  error
}

func (b *batch) full() bool { return b.bytes >= batchBytes || len(b.parts) >= batchEntries }

// add adds a part, and its extended attributes.
func (b *batch) add(p *part) {
	b.parts = append(b.parts, p)
	b.bytes += int64(len(p.path) + 512)
	if ref := p.e.XattrChunk; p.first && !p.further && ref.Length > 0 {
		b.bytes += ref.Length
		b.wants = append(b.wants, fetch.Want{Chunk: ref.Chunk, Length: ref.Length, Tag: ^int64(len(b.parts) - 1), Sink: b})
	}
}

// want adds a chunk to the last part.
func (b *batch) want(ref backup.Ref, offset int64) {
	p := b.parts[len(b.parts)-1]
	b.bytes += ref.Length
	b.wants = append(b.wants, fetch.Want{Chunk: ref.Chunk, Length: ref.Length, Tag: int64(len(b.segments)), Sink: b})
	b.segments = append(b.segments, struct {
		of *part
		n  int
	}{p, len(p.segments)})
	p.segments = append(p.segments, segment{offset: offset})
}

// fetch fetches what the batch wants.
func (b *batch) fetch(ctx context.Context, f *fetch.Fetcher) error {
	defer close(b.done)
	b.err = f.Get(ctx, b.wants)
	return b.err
}

// Chunk implements fetch.Sink. Each want has its own place.
func (b *batch) Chunk(tag int64, data []byte) {
	if tag < 0 {
		p := b.parts[^tag]
		p.e.Xattrs, p.xattrsLost = listing.DecodeXattrs(bytes.Clone(data))
		return
	}
	at := b.segments[tag]
	at.of.segments[at.n].data = bytes.Clone(data)
}

// Fail implements fetch.Sink.
func (b *batch) Fail(tag int64, err error) {
	if tag < 0 {
		b.parts[^tag].xattrsLost = err
		return
	}
	at := b.segments[tag]
	at.of.segments[at.n].err = err
}

// damage returns the first error of the part's content.
func (p *part) damage() error {
	for i := range p.segments {
		if err := p.segments[i].err; err != nil {
			return err
		}
	}
	return p.failed
}

package read

import (
	"context"
	"io"
	"time"

	"golang.org/x/time/rate"
)

// A batch of a filer with a limit reads in pieces of paceBytes, and what it may
// save up while it does something else is a small window.
const (
	paceBytes  = 256 << 10
	burstBytes = smallWindowBytes
)

// newPace returns what holds a batch to its share of the filer's bytes a
// second; nil: there is no limit. It begins with nothing saved up, for a snapshot
// may be of many small batches.
func newPace(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond <= 0 {
		return nil
	}
	pace := rate.NewLimiter(rate.Limit(bytesPerSecond), burstBytes)
	pace.AllowN(time.Now(), burstBytes)
	return pace
}

// readFull reads until p is full or the file ends, no faster than the batch may.
func (b *batch) readFull(ctx context.Context, f io.ReaderAt, p []byte, offset int64) (n int, err error) {
	for n < len(p) {
		piece := p[n:]
		if b.pace != nil {
			piece = piece[:min(len(piece), paceBytes)]
			if err := b.pace.WaitN(ctx, len(piece)); err != nil {
				return n, err
			}
		}
		m, err := f.ReadAt(piece, offset+int64(n))
		n += m
		if err == io.EOF || err == nil && m == 0 {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

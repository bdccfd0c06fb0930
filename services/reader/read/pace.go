package read

import (
	"context"
	"io"
	"time"

	"golang.org/x/time/rate"
)

// A batch of a filer with a limit reads in pieces of paceBytes. The budget that it accumulates
// while it does something else is at most one small window.
const (
	paceBytes  = 256 << 10
	burstBytes = smallWindowBytes
)

// newPace returns the limiter that holds a batch to its share of the filer's bytes per second; nil:
// there is no limit. It starts empty, because a snapshot may consist of many small batches.
func newPace(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond <= 0 {
		return nil
	}
	pace := rate.NewLimiter(rate.Limit(bytesPerSecond), burstBytes)
	pace.AllowN(time.Now(), burstBytes)
	return pace
}

// readFull reads until p is full or the file ends, within the batch's limit.
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
		b.hasRead(m)
		if err == io.EOF || err == nil && m == 0 {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

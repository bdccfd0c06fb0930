package s3store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// errStalled reports that the server neither accepts nor sends data any more.
var errStalled = errors.New("no progress")

// A watchdog ends an attempt that makes no progress. The limits of http.Transport do not detect a
// body that stops half way.
type watchdog struct {
	timer *time.Timer
	stall time.Duration // while a body is transferred
	reply time.Duration // while the server works
}

// watched runs one attempt under a watchdog.
func (s *Store) watched(ctx context.Context, attempt func(context.Context, *watchdog) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := fmt.Errorf("%w: nothing sent or received for %v, or no answer for %v",
		errStalled, s.options.StallTimeout, s.options.ResponseTimeout)
	w := &watchdog{stall: s.options.StallTimeout, reply: s.options.ResponseTimeout}
	w.timer = time.AfterFunc(w.reply, func() { cancel(stalled) })
	defer w.timer.Stop()
	err := attempt(ctx, w)
	if err != nil && errors.Is(context.Cause(ctx), stalled) {
		return stalled
	}
	return err
}

// An upload is the body of one PUT. The transport may continue to read after the PUT has returned;
// release ends that.
type upload struct {
	watchdog *watchdog
	mu       sync.Mutex
	rest     []byte
	released bool
}

var errReleased = errors.New("the attempt is over")

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.released {
		return 0, errReleased
	}
	n := copy(p, u.rest)
	u.rest = u.rest[n:]
	if len(u.rest) > 0 {
		u.watchdog.timer.Reset(u.watchdog.stall)
		return n, nil
	}
	u.watchdog.timer.Reset(u.watchdog.reply)
	return n, io.EOF
}

// release returns when no goroutine reads the data, and none will.
func (u *upload) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.released, u.rest = true, nil
}

// A download is the body of one GET.
type download struct {
	watchdog *watchdog
	body     io.Reader
}

// Read implements io.Reader.
func (d download) Read(p []byte) (int, error) {
	d.watchdog.timer.Reset(d.watchdog.stall)
	return d.body.Read(p)
}

package mount

import (
	"context"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/loop"
)

// A request is the context of a request of the kernel. It ends a while after the request was
// interrupted. Most requests are answered from memory: only one that waits for something is
// watched, by a goroutine.
type request struct {
	mount       context.Context
	interrupted <-chan struct{}
	watch       func() context.Context // starts to watch, once

	mu   sync.Mutex
	stop context.CancelFunc // nil: it is not watched
}

// request returns the context of a request, and what ends it.
func (f *fileSystem) request(interrupted <-chan struct{}) (context.Context, context.CancelFunc) {
	r := &request{mount: f.ctx, interrupted: interrupted}
	r.watch = sync.OnceValue(r.begin)
	return r, r.end
}

func (r *request) begin() context.Context {
	ctx, cancel := context.WithCancel(r.mount)
	r.mu.Lock()
	r.stop = cancel
	r.mu.Unlock()
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-r.interrupted:
		}
		loop.Pause(ctx, grace)
		cancel()
	}()
	return ctx
}

func (r *request) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil {
		r.stop()
	}
}

// Deadline implements context.Context.
func (r *request) Deadline() (time.Time, bool) { return r.mount.Deadline() }

// Done implements context.Context.
func (r *request) Done() <-chan struct{} { return r.watch().Done() }

// Err implements context.Context.
func (r *request) Err() error {
	r.mu.Lock()
	watched := r.stop != nil
	r.mu.Unlock()
	if watched {
		return r.watch().Err()
	}
	return r.mount.Err()
}

// Value implements context.Context.
func (r *request) Value(key any) any { return r.watch().Value(key) }

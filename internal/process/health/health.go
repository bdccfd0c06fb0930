// Package health reports the state of a process to supervisors, which may restart it, and to load
// balancers.
package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Process reports whether a process works (Alive) and whether its dependencies answer (Ready). A
// working process must not be restarted because a dependency is unavailable: the loops that Alive
// checks keep moving even then. All methods of a nil Process do nothing.
type Process struct {
	mu       sync.Mutex
	loops    map[*Beat]struct{}
	needs    map[string]func(context.Context) error
	asked    map[string]bool // checks that have not returned
	stopping bool

	checking sync.Mutex // one request checks the dependencies at a time
	checked  time.Time
	result   error
}

const (
	// readyFor is how long an answer is reused, so that frequent requests do not reach the
	// dependencies.
	readyFor = 2 * time.Second
	// answerWithin is how long a dependency may take.
	answerWithin = 3 * time.Second
)

// ErrStopping is why a process that is about to end is not ready.
var ErrStopping = errors.New("stopping")

var (
	errNotYet  = errors.New("not connected yet")
	errTooLate = fmt.Errorf("no answer within %v", answerWithin)
)

// New returns the health of a process that needs these dependencies, to none of which it is
// connected yet.
func New(needs ...string) *Process {
	h := &Process{loops: map[*Beat]struct{}{}, needs: map[string]func(context.Context) error{}, asked: map[string]bool{}}
	for _, name := range needs {
		h.needs[name] = func(context.Context) error { return errNotYet }
	}
	return h
}

// Depends sets the check of a dependency. It may be called with a context that ends soon.
func (h *Process) Depends(name string, check func(context.Context) error) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.needs[name] = check
}

// Stopping marks the process as about to end: it is no longer ready.
func (h *Process) Stopping() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping = true
}

// A Beat is the heartbeat of one loop. All methods of a nil Beat do nothing.
type Beat struct {
	process *Process
	name    string
	within  time.Duration
	moved   atomic.Int64 // nanoseconds since epoch
}

// epoch is the origin of beats, by a monotonic clock.
var epoch = time.Now()

// Loop registers a loop that calls Moved at least as often as within.
func (h *Process) Loop(name string, within time.Duration) *Beat {
	if h == nil {
		return nil
	}
	b := &Beat{process: h, name: name, within: within}
	b.Moved()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loops[b] = struct{}{}
	return b
}

// Moved records that the loop has moved.
func (b *Beat) Moved() {
	if b != nil {
		b.moved.Store(int64(time.Since(epoch)))
	}
}

// Done records that the loop has ended normally.
func (b *Beat) Done() {
	if b == nil {
		return
	}
	b.process.mu.Lock()
	defer b.process.mu.Unlock()
	delete(b.process.loops, b)
}

// Alive returns nil, or an error that names the loops that hang.
func (h *Process) Alive() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var hang []string
	for b := range h.loops {
		if quiet := time.Since(epoch) - time.Duration(b.moved.Load()); quiet > b.within {
			hang = append(hang, fmt.Sprintf("loop %s has not moved for %v", b.name, quiet.Round(time.Second)))
		}
	}
	if len(hang) == 0 {
		return nil
	}
	slices.Sort(hang)
	return errors.New(strings.Join(hang, "\n"))
}

// Ready returns nil if all dependencies answer, and otherwise an error that names those that do
// not. It checks them concurrently, and takes at most three seconds.
func (h *Process) Ready(ctx context.Context) error {
	h.checking.Lock()
	defer h.checking.Unlock()
	h.mu.Lock()
	stopping := h.stopping
	h.mu.Unlock()
	if stopping {
		return ErrStopping
	}
	if h.checked.IsZero() || time.Since(h.checked) >= readyFor {
		h.result = h.askAll(context.WithoutCancel(ctx)) // other requests use the answer, too
		h.checked = time.Now()
	}
	return h.result
}

// Usable returns nil if one dependency answers, or if the process does not have it.
func (h *Process) Usable(ctx context.Context, name string) error {
	h.mu.Lock()
	check := h.needs[name]
	h.mu.Unlock()
	if check == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	return check(ctx)
}

// late returns errTooLate with the error of the check that was cancelled. That error may name the
// cause, such as a refused connection.
func late(err error) error {
	switch {
	case !errors.Is(err, context.DeadlineExceeded):
		return err
	case err.Error() == context.DeadlineExceeded.Error():
		return errTooLate
	}
	return fmt.Errorf("%w: %w", errTooLate, err)
}

func (h *Process) askAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	// Most checks that are cancelled have something to report, and need time for it.
	asking, stop := context.WithTimeout(ctx, answerWithin-answerWithin/10)
	defer stop()
	type answer struct {
		name string
		err  error
	}
	h.mu.Lock()
	answers, silent := make(chan answer, len(h.needs)), map[string]bool{}
	for name, check := range h.needs {
		silent[name] = true
		if h.asked[name] {
			continue // the previous check has not returned yet
		}
		h.asked[name] = true
		go func() { // ends when the check does: answers has room
			err := late(check(asking))
			h.mu.Lock()
			h.asked[name] = false
			h.mu.Unlock()
			answers <- answer{name, err}
		}()
	}
	h.mu.Unlock()
	var failed []error
	for len(silent) > 0 {
		select {
		case a := <-answers:
			delete(silent, a.name)
			if a.err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", a.name, a.err))
			}
		case <-ctx.Done():
			for name := range silent {
				failed = append(failed, fmt.Errorf("%s: %w", name, errTooLate))
			}
			clear(silent)
		}
	}
	slices.SortFunc(failed, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(failed...)
}

// Handle serves /healthz and /readyz: 200 and "ok", or 503 and the error.
func (h *Process) Handle(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { tell(w, h.Alive()) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { tell(w, h.Ready(r.Context())) })
}

func tell(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	text := "ok"
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = err.Error()
	}
	_, _ = fmt.Fprintln(w, text) // an error means that the client has gone
}

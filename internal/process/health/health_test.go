package health

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestLoopThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New()
		slow, fast := h.Loop("slow", time.Hour), h.Loop("fast", time.Minute)
		time.Sleep(2 * time.Minute) //nolint:forbidigo // the bubble's clock
		if err := h.Alive(); err == nil || !strings.Contains(err.Error(), "fast") || strings.Contains(err.Error(), "slow") {
			t.Errorf("fast hangs: %v", err)
		}
		fast.Moved()
		if err := h.Alive(); err != nil {
			t.Errorf("both move: %v", err)
		}
		time.Sleep(2 * time.Minute) //nolint:forbidigo // the bubble's clock
		fast.Done()
		if err := h.Alive(); err != nil {
			t.Errorf("fast has ended: %v", err)
		}
		slow.Done()
	})
}

func TestReadyNamesWhatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New("index", "nats", "store")
		wants := func(want ...string) {
			t.Helper()
			time.Sleep(readyFor) //nolint:forbidigo // the bubble's clock
			err := h.Ready(t.Context())
			if (err == nil) != (len(want) == 0) {
				t.Fatalf("%v, want %q", err, want)
			}
			for _, text := range want {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%v, want %q", err, text)
				}
			}
		}
		wants("index: not connected yet", "nats: not connected yet", "store: not connected yet")
		var asked atomic.Int32
		for _, name := range []string{"index", "nats"} {
			h.Depends(name, func(context.Context) error { asked.Add(1); return nil })
		}
		hang := make(chan struct{})
		h.Depends("store", func(context.Context) error { <-hang; return nil })
		wants("store: no answer within")
		// A check that hangs is not started again.
		wants("store: no answer within")
		close(hang)
		synctest.Wait()
		wants()
		before := asked.Load()
		if err := h.Ready(t.Context()); err != nil || asked.Load() != before {
			t.Errorf("asked again at once: %v", err)
		}
		h.Depends("nats", func(context.Context) error { return errors.New("away") })
		wants("nats: away")
		h.Depends("store", func(context.Context) error { return fmt.Errorf("put: %w", fs.ErrPermission) })
		wants("store: put: permission denied")
		if err := h.Ready(t.Context()); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%v does not wrap its cause", err)
		}
		// A check that is cancelled reports what it knows.
		h.Depends("store", func(ctx context.Context) error {
			<-ctx.Done()
			return fmt.Errorf("stat: %w, after connection refused", context.Cause(ctx))
		})
		wants("store: no answer within 3s: stat: context deadline exceeded, after connection refused")
		h.Stopping()
		wants("stopping")
	})
}

func TestNilIsNothing(t *testing.T) {
	var h *Process
	h.Depends("index", nil)
	h.Stopping()
	b := h.Loop("loop", 0)
	b.Moved()
	b.Done()
}

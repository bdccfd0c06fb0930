package loop

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 35*time.Second)
		defer cancel()
		started, calls := time.Now(), 0
		Every(ctx, 10*time.Second, func() {
			calls++
			if at := time.Since(started); at != time.Duration(calls)*10*time.Second {
				t.Errorf("call %d after %v", calls, at)
			}
		})
		if calls != 3 {
			t.Errorf("%d calls in 35 seconds", calls)
		}
	})
}

// Apart waits after each call, however long it took.
func TestApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 80*time.Second)
		defer cancel()
		var ended time.Time
		calls := 0
		Apart(ctx, 10*time.Second, func() {
			if calls++; calls > 1 && time.Since(ended) != 10*time.Second {
				t.Errorf("call %d comes %v after the last", calls, time.Since(ended))
			}
			Pause(ctx, 15*time.Second)
			ended = time.Now()
		})
		if calls != 3 {
			t.Errorf("%d calls in 80 seconds", calls)
		}
	})
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		started := time.Now()
		Pause(ctx, time.Second)
		if took := time.Since(started); took != time.Second {
			t.Errorf("a pause of a second takes %v", took)
		}
		Pause(ctx, time.Hour)
		if took := time.Since(started); took != time.Minute {
			t.Errorf("a pause lasts %v, beyond its context", took)
		}
	})
}

func TestBackoff(t *testing.T) {
	const first, longest = 200 * time.Millisecond, 15 * time.Second
	for n, want := range map[int]time.Duration{1: first, 2: 2 * first, 6: 32 * first, 8: longest, 31: longest, 32: longest, 1 << 30: longest} {
		for range 100 {
			if d := Backoff(n, first, longest); d < want*7/10 || d > want*13/10 {
				t.Errorf("after attempt %d: %v, want about %v", n, d, want)
			}
		}
	}
}

func TestWake(t *testing.T) {
	c := make(chan struct{}, 1)
	Wake(c)
	Wake(c) // does not block
	<-c
	select {
	case <-c:
		t.Error("a second signal is pending")
	default:
	}
}

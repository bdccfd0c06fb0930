// Package loop has what the goroutines of a service do between two pieces of work: they repeat,
// they wait, and they wake each other.
package loop

import (
	"context"
	"math/rand/v2"
	"time"
)

// Every calls do at intervals until ctx is done. The first call comes after one interval.
func Every(ctx context.Context, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// Apart calls do until ctx is done, and waits for a full interval before each call. Every instead
// makes up for a call that took long: the next one follows it at once.
func Apart(ctx context.Context, interval time.Duration, do func()) {
	for Pause(ctx, interval); ctx.Err() == nil; Pause(ctx, interval) {
		do()
	}
}

// Pause returns after d, or when ctx is done.
func Pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// Backoff returns how long to wait after the nth failed attempt, counted from 1. The wait begins
// with first, doubles each time, and is at most longest. It is changed at random by up to 30
// percent, so that many clients do not try again at the same time.
func Backoff(n int, first, longest time.Duration) time.Duration {
	d := longest
	if n < 32 && first<<(n-1) < longest {
		d = first << (n - 1)
	}
	return time.Duration(float64(d) * (0.7 + 0.6*rand.Float64()))
}

// Wake signals the goroutine that receives from c, a channel with a buffer of one. A signal that
// is already pending is enough.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

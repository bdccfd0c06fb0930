package s3store

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// The pauses grow to about 15 seconds, and fill the ten minutes.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard []Retry
		o, err := Options{Bucket: "backups", OnRetry: func(r Retry) { heard = append(heard, r) }}.complete()
		if err != nil {
			t.Fatal(err)
		}
		s := &Store{options: o}
		started := time.Now()
		err = s.do(t.Context(), "put", object, func(context.Context, *watchdog) error { return errors.New("no answer") })
		if !errors.Is(err, backup.ErrUnavailable) || !strings.HasSuffix(err.Error(), "after 10m0s)") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(started); took < DefaultRetryFor || took > DefaultRetryFor+time.Second {
			t.Errorf("gave up after %v", took)
		}
		if len(heard) < 35 || len(heard) > 80 {
			t.Errorf("%d retries", len(heard))
		}
		var waited time.Duration
		for i, r := range heard {
			if r.Attempt != i+1 || r.Pause > longestPause*13/10 || i == 0 && r.Pause > time.Second {
				t.Errorf("retry %d: %+v", i+1, r)
			}
			if r.Remaining != DefaultRetryFor-waited {
				t.Errorf("retry %d: %v remain after %v", i+1, r.Remaining, waited)
			}
			waited += r.Pause
		}
	})
}

// Each phase of an attempt has its own limit, and progress restarts it.
func TestWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Store{options: Options{StallTimeout: time.Second, ResponseTimeout: time.Minute}}
		for name, c := range map[string]struct {
			attempt func(ctx context.Context, w *watchdog)
			after   time.Duration
		}{
			"no answer": {func(ctx context.Context, _ *watchdog) { <-ctx.Done() }, time.Minute},
			"upload": {func(ctx context.Context, w *watchdog) {
				u := &upload{watchdog: w, rest: make([]byte, 5)}
				for range 3 {
					_, _ = u.Read(make([]byte, 1))
					time.Sleep(900 * time.Millisecond) //nolint:forbidigo // the bubble's clock: nobody waits
				}
				<-ctx.Done()
			}, 2800 * time.Millisecond},
			"answer to an upload": {func(ctx context.Context, w *watchdog) {
				u := &upload{watchdog: w, rest: make([]byte, 5)}
				_, _ = u.Read(make([]byte, 10))
				<-ctx.Done()
			}, time.Minute},
			"download": {func(ctx context.Context, w *watchdog) {
				_, _ = download{w, strings.NewReader("x")}.Read(make([]byte, 1))
				<-ctx.Done()
			}, time.Second},
		} {
			started := time.Now()
			err := s.watched(t.Context(), func(ctx context.Context, w *watchdog) error {
				c.attempt(ctx, w)
				return ctx.Err()
			})
			if took := time.Since(started); !errors.Is(err, errStalled) || took != c.after {
				t.Errorf("%s: %v after %v, want %v", name, err, took, c.after)
			}
		}
	})
}

// The transport may read a body after the attempt has ended, when the buffer is the caller's again.
func TestAReleasedUploadReadsNothing(t *testing.T) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	u := &upload{watchdog: &watchdog{timer: timer, stall: time.Hour, reply: time.Hour}, rest: make([]byte, 10)}
	if n, err := u.Read(make([]byte, 4)); n != 4 || err != nil {
		t.Fatalf("before: %d, %v", n, err)
	}
	u.release()
	if n, err := u.Read(make([]byte, 4)); n != 0 || err == nil || u.rest != nil {
		t.Errorf("after: %d, %v", n, err)
	}
}

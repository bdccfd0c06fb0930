package flow

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A server counts as storing nothing after failures for some time without a success, and as long as
// there are more of them.
func TestStoring(t *testing.T) {
	now := time.Now()
	var s storing
	after := func(d time.Duration, err error, want bool) {
		t.Helper()
		now = now.Add(d)
		s.note(err, now)
		if got := s.refused(now); (got != nil) != want || want && !errors.Is(got, err) {
			t.Errorf("refused: %v, want %t", got, want)
		}
	}
	after(0, nil, false)
	for range 3 {
		after(time.Hour, context.DeadlineExceeded, false)
		after(storesNone-1, context.DeadlineExceeded, false)
		after(1, context.DeadlineExceeded, true)
		now = now.Add(triedWithin)
		if s.refused(now) == nil {
			t.Error("it is forgotten too soon")
		}
		if now = now.Add(1); s.refused(now) != nil {
			t.Error("nothing was tried for long, and it is not known")
		}
	}
	after(time.Second, context.DeadlineExceeded, false)
	after(storesNone, context.DeadlineExceeded, true)
	after(time.Second, nil, false)
	// The keeper makes a missing stream within seconds, or cannot.
	after(time.Second, jetstream.ErrNoStreamResponse, false)
	after(storesNone-1, jetstream.ErrNoStreamResponse, false)
	unmade := errors.New("storage directory is not writable")
	s.noteStreams(unmade, now)
	after(1, jetstream.ErrNoStreamResponse, true)
	if got := s.refused(now); !errors.Is(got, unmade) {
		t.Errorf("refused: %v, want also %v", got, unmade)
	}
	s.noteStreams(nil, now)
	after(time.Second, nil, false)

	// While a stream is missing, nothing is published. A stream that is there again does not tell
	// whether a server stores messages.
	missing := func(d time.Duration, err error, want bool) {
		t.Helper()
		now = now.Add(d)
		s.noteMissing(err, now)
		if got := s.refused(now); (got != nil) != want || want && err != nil && !errors.Is(got, err) {
			t.Errorf("refused: %v, want %t", got, want)
		}
	}
	missing(time.Second, nil, false)
	missing(time.Second, ErrNoStream, false)
	s.noteStreams(unmade, now)
	missing(storesNone-1, ErrNoStream, false)
	missing(1, ErrNoStream, true)
	if got := s.refused(now); !errors.Is(got, unmade) {
		t.Errorf("refused: %v, want also %v", got, unmade)
	}
	missing(time.Second, nil, false)
	after(time.Second, context.DeadlineExceeded, false)
	after(storesNone, context.DeadlineExceeded, true)
	missing(time.Second, nil, true)
	after(time.Second, nil, false)
}

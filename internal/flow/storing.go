package flow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

const (
	// storesNone is the time without a stored message after which NATS counts as storing none.
	storesNone = 10 * time.Second
	// triedWithin is how long a failure counts. A committer tries again every few seconds while
	// there is work, and its keeper examines the streams every minute.
	triedWithin = 90 * time.Second
)

// A storing knows whether a server that answers also stores messages. After its disk was full, a
// nats-server refuses them until it is restarted, also if there is space again. It may also lack a
// stream, and be unable to make it again.
type storing struct {
	mu     sync.Mutex
	since  time.Time // of the first failure since the last success; zero: there was none
	last   time.Time // failure
	err    error     // of it
	unmade error     // why the keeper could not make or repair a stream when it tried last
	tried  time.Time
}

// noteStreams notes whether the keeper could make and repair the streams.
func (s *storing) noteStreams(err error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unmade, s.tried = err, now
}

// noteMissing notes whether a stream is missing. It is made within seconds. Nothing is published
// meanwhile, so that this is the only failure.
func (s *storing) noteMissing(missing error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if missing != nil {
		s.failed(missing, now)
	} else if errors.Is(s.err, ErrNoStream) || errors.Is(s.err, jetstream.ErrNoStreamResponse) {
		s.since = time.Time{}
	}
}

// note notes the outcome of a publication.
func (s *storing) note(err error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.since = time.Time{}
		return
	}
	s.failed(err, now)
}

// failed notes a failure. The caller holds mu.
func (s *storing) failed(err error, now time.Time) {
	if s.since.IsZero() || now.Sub(s.last) > triedWithin {
		s.since = now
	}
	s.last, s.err = now, err
}

// refused returns why messages are not stored; nil: they are, or it is not known.
func (s *storing) refused(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() || s.last.Sub(s.since) < storesNone || now.Sub(s.last) > triedWithin {
		return nil
	}
	if now.Sub(s.tried) > triedWithin { // another process keeps the streams
		return s.err
	}
	return errors.Join(s.unmade, s.err)
}

// Stores is Answers, and also fails if the server answers and has stored no message for some time.
func (c *Conn) Stores(ctx context.Context) error {
	if err := c.Answers(ctx); err != nil {
		return err
	}
	if err := c.storing.refused(time.Now()); err != nil {
		return fmt.Errorf("%w: %w: %w", c.storesNothing(), err, backup.NATSAway)
	}
	return nil
}

func (c *Conn) storesNothing() error {
	return fmt.Errorf("nats %s answers, but stores no message (if its disk was full, free space and restart it; see its log)", c.opts.URL)
}

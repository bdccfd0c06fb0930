package flow

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/bctl/bctl/internal/backup"
)

// A worker's process is present at NATS: it listens on a subject that has its instance, a name that no other process
// has. When the process dies its system ends the connection, and the server knows at once that nobody listens
// there. Nothing is sent over the subject but the question, and nobody answers: the server itself replies where there is no listener.

// bePresent makes this process present until gone is called.
func (c *Conn) bePresent() (gone func()) {
	sub, err := c.nc.Subscribe(presentSubject+"."+c.instance, func(*nats.Msg) {})
	if err != nil { // the connection is closed
		return func() {}
	}
	return func() { _ = sub.Unsubscribe() }
}

// maxInstanceBytes is the most that an instance's name may have.
const maxInstanceBytes = 64

// isInstance reports whether a name can be an instance's, or is empty: a part of a subject, without wildcards.
func isInstance(name string) bool {
	for _, r := range name {
		if (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return false
		}
	}
	return len(name) <= maxInstanceBytes
}

// Absent returns which instances are not connected to NATS, as far as the server knows that this process is connected to. It
// fails with backup.ErrUnavailable where that says nothing of them: while this process is not connected, and for a
// while after it has connected again, because what has cut it off may have cut off others, who are still on their way back.
func (c *Conn) Absent(ctx context.Context, instances []string) (absent map[string]bool, err error) {
	if !c.steady.check(c.nc, time.Now()) {
		return nil, fmt.Errorf("nats %s: connected not long enough to know who is there: %w", c.opts.URL, backup.ErrUnavailable)
	}
	if len(instances) == 0 {
		return nil, nil
	}
	inbox := c.nc.NewInbox()
	replies := make(chan *nats.Msg, len(instances))
	sub, err := c.nc.ChanSubscribe(inbox+".*", replies)
	if err == nil {
		defer func() { err = errors.Join(err, sub.Unsubscribe()) }()
		err = c.ask(ctx, instances, inbox)
	}
	if err == nil && !c.steady.check(c.nc, time.Now()) {
		err = errors.New("connected again meanwhile")
	}
	if err != nil {
		return nil, fmt.Errorf("nats %s: ask who is there: %w: %w", c.opts.URL, err, backup.ErrUnavailable)
	}
	absent = map[string]bool{}
	for {
		select {
		case reply := <-replies:
			at, err := strconv.Atoi(reply.Subject[len(inbox)+1:])
			if err == nil && at >= 0 && at < len(instances) && reply.Header.Get("Status") == noResponders {
				absent[instances[at]] = true
			}
		default:
			return absent, nil
		}
	}
}

const noResponders = "503"

// ask sends the questions, and waits until the server has taken them all: it replies to each, if at all, before it
// answers the ping.
func (c *Conn) ask(ctx context.Context, instances []string, inbox string) error {
	for i, instance := range instances {
		if err := c.nc.PublishRequest(presentSubject+"."+instance, inbox+"."+strconv.Itoa(i), nil); err != nil {
			return err
		}
	}
	return c.nc.FlushWithContext(ctx)
}

// steadyFor is how long others are given to connect again once this process has: clients try every 250 ms, and
// with TLS spread themselves over a second more.
const steadyFor = 5 * time.Second

// A steady knows for how long a connection has not been interrupted.
type steady struct {
	wait time.Duration // steadyFor; shorter in tests

	mu         sync.Mutex
	since      time.Time // zero: it is interrupted
	reconnects uint64
}

// check reports whether the connection is there, and has been for long enough.
func (s *steady) check(nc *nats.Conn, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := nc.Stats().Reconnects
	switch {
	case !nc.IsConnected():
		s.since = time.Time{}
	case s.since.IsZero() || n != s.reconnects:
		s.since = now
	}
	s.reconnects = n
	return !s.since.IsZero() && now.Sub(s.since) >= s.wait
}

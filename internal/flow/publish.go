package flow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/bctl/bctl/internal/backup"
)

// ErrTooLarge means that a message does not fit. Workers split their results to fit, so this is a
// fault of the sender, never of the tree.
var ErrTooLarge = errors.New("message too large")

// Publish sends a message and returns when JetStream has stored it. If the error wraps
// backup.ErrUnavailable, JetStream may or may not have stored it.
func Publish[T any](ctx context.Context, c *Conn, hop Hop[T], message *T) error {
	subject := hop.subject(message)
	data, err := hop.encode(message)
	if err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	if len(data) > MaxMessageBytes {
		return fmt.Errorf("%s: %d bytes: %w", subject, len(data), ErrTooLarge)
	}
	_, err = c.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Data: data, Header: c.opts.addRepository(traceHeader(ctx))})
	if c.nc.IsConnected() && ctx.Err() == nil {
		c.storing.note(err, time.Now())
	}
	switch {
	case err == nil:
	case c.storing.refused(time.Now()) != nil:
		return fmt.Errorf("%w: publish to %s: %w: %w", c.storesNothing(), subject, err, backup.NATSAway)
	default:
		return fmt.Errorf("nats %s: publish to %s: %w: %w", c.opts.URL, subject, err, backup.NATSAway)
	}
	return nil
}

// SizeOf returns the size of a message in bytes.
func SizeOf[T any](hop Hop[T], message *T) (int, error) {
	data, err := hop.encode(message)
	return len(data), err
}

// PublishProgress sends a report to all subscribers; it may be lost.
func (c *Conn) PublishProgress(p *backup.Progress) error {
	data, err := encodeProgress(p)
	if err != nil {
		return err
	}
	return c.nc.PublishMsg(&nats.Msg{Subject: progressSubject, Data: data, Header: c.opts.addRepository(nil)})
}

// SubscribeProgress calls fn, from one goroutine, with the reports of workers until stop is called.
func (c *Conn) SubscribeProgress(fn func(*backup.Progress)) (stop func(), err error) {
	sub, err := c.nc.Subscribe(progressSubject, func(m *nats.Msg) {
		if c.opts.checkRepository(m.Header) != nil {
			return
		}
		if p, err := decodeProgress(m.Data); err == nil {
			fn(p)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("nats %s: subscribe to progress: %w: %w", c.opts.URL, err, backup.NATSAway)
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

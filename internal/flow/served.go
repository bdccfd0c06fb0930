package flow

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// Served reports whether walkers and readers take the work of a site: whether they have requests
// waiting or messages in progress. Both are false until a committer has made the streams and the
// site's queues.
func (c *Conn) Served(ctx context.Context, site string) (walkers, readers bool, err error) {
	if walkers, err = c.served(ctx, walkQueue(site)); err == nil {
		readers, err = c.served(ctx, readQueue(site))
	}
	return walkers, readers, err
}

// CommitsServed reports whether committers take results: whether one has a request waiting.
func (c *Conn) CommitsServed(ctx context.Context) (bool, error) {
	info, err := c.consumerOf(ctx, commitQueue)
	return info != nil && info.NumWaiting > 0, err
}

// served reports whether any consumer takes messages of a queue.
func (c *Conn) served(ctx context.Context, q queue) (bool, error) {
	info, err := c.consumerOf(ctx, q)
	return info != nil && (info.NumWaiting > 0 || info.NumAckPending > 0), err
}

// consumerOf returns the server's information on a queue's consumer, or nil if it does not exist.
// It lists the consumers, which is what an operator is allowed to do.
func (c *Conn) consumerOf(ctx context.Context, q queue) (*jetstream.ConsumerInfo, error) {
	stream, err := c.js.Stream(ctx, q.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, c.unavailable("stream "+q.stream, err)
	}
	consumers, err := c.consumersOf(ctx, stream, q.stream)
	return consumers[q.consumer], err
}

package flow

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// Served reports whether walkers and readers take the work of a site: they have asked for some, or have some in hand. Neither do as
// long as no committer has made the streams and the site's queues.
func (c *Conn) Served(ctx context.Context, site string) (walkers, readers bool, err error) {
	if walkers, err = c.served(ctx, walkQueue(site)); err == nil {
		readers, err = c.served(ctx, readQueue(site))
	}
	return walkers, readers, err
}

// CommitsServed reports whether committers take results: one has asked for some.
func (c *Conn) CommitsServed(ctx context.Context) (bool, error) {
	info, err := c.consumerOf(ctx, commitQueue)
	return info != nil && info.NumWaiting > 0, err
}

// served reports whether somebody takes what is in a queue.
func (c *Conn) served(ctx context.Context, q queue) (bool, error) {
	info, err := c.consumerOf(ctx, q)
	return info != nil && (info.NumWaiting > 0 || info.NumAckPending > 0), err
}

// consumerOf returns what the server says of a queue's consumer; nil where there is none. It lists the consumers, which is what an operator may do.
func (c *Conn) consumerOf(ctx context.Context, q queue) (found *jetstream.ConsumerInfo, err error) {
	stream, err := c.js.Stream(ctx, q.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, c.unavailable("stream "+q.stream, err)
	}
	listed := stream.ListConsumers(ctx)
	for info := range listed.Info() { // to the end, or what sends them is left behind
		if info.Name == q.consumer {
			found = info
		}
	}
	if err := listed.Err(); err != nil {
		return nil, c.unavailable("consumers of stream "+q.stream, err)
	}
	return found, nil
}

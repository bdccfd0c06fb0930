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

// served lists the consumers, which is what an operator may do.
func (c *Conn) served(ctx context.Context, q queue) (bool, error) {
	stream, err := c.js.Stream(ctx, q.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return false, nil
	}
	if err != nil {
		return false, c.unavailable("stream "+q.stream, err)
	}
	found, listed := false, stream.ListConsumers(ctx)
	for info := range listed.Info() { // to the end, or what sends them is left behind
		found = found || info.Name == q.consumer && (info.NumWaiting > 0 || info.NumAckPending > 0)
	}
	if err := listed.Err(); err != nil {
		return false, c.unavailable("consumers of stream "+q.stream, err)
	}
	return found, nil
}

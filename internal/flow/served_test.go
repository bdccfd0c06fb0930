package flow

import (
	"context"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// Whether a site is served shows in the requests that wait at its own queues.
func TestServed(t *testing.T) {
	server := inProcess(t)
	c := connect(t, listen(Options{}, server), ackWait)
	want := func(site string, walkers, readers bool) {
		t.Helper()
		until(t, "it is known who serves "+site, func(ctx context.Context) bool {
			w, r, err := c.Served(ctx, site)
			return err == nil && w == walkers && r == readers
		})
	}
	want(backup.DefaultSite, false, false) // there are no streams
	until(t, "the streams are there", func(ctx context.Context) bool {
		_, err := c.EnsureStreams(ctx, []string{backup.DefaultSite, "oslo"})
		return err == nil
	})
	want("oslo", false, false)
	go c.ConsumeWalk(t.Context(), "oslo", 1, func(*backup.WalkTask, *Delivery) {})
	want("oslo", true, false)
	go c.ConsumeRead(t.Context(), "oslo", 1, func(*backup.ReadBatch, *Delivery) {})
	want("oslo", true, true)
	want(backup.DefaultSite, false, false)
	want("bergen", false, false) // no filer is there, and so no queue

	committers := func(want bool) {
		t.Helper()
		until(t, "it is known whether committers take results", func(ctx context.Context) bool {
			served, err := c.CommitsServed(ctx)
			return err == nil && served == want
		})
	}
	committers(false)
	taking, stop := context.WithCancel(t.Context())
	go c.ConsumeResults(taking, taking, 1, func(Received) {})
	committers(true)
	stop()
	committers(false)
}

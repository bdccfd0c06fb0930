//go:build linux

package scale_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/testenv"
)

// BenchmarkClusterMessages sends walk tasks through three NATS nodes with three copies of each
// stream.
func BenchmarkClusterMessages(b *testing.B) {
	for range b.N {
		clusterMessages(b)
	}
}

func clusterMessages(b *testing.B) {
	const messages, atOnce, consumers = 5000, 64, 8
	nodes := testenv.NATSCluster(b, 3)
	nodes.AwaitLeader(b)
	conn, err := flow.Connect(flow.Options{URL: nodes.URL(), Name: "bench", Replicas: len(nodes)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(conn.Close)
	sites := []string{backup.DefaultSite}
	fleet.Await(b, "the streams", func() bool {
		_, err := conn.EnsureStreams(b.Context(), sites)
		return err == nil
	})
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	var taken atomic.Int64
	var owned sync.WaitGroup
	for range consumers {
		owned.Go(func() {
			conn.ConsumeWalk(ctx, backup.DefaultSite, atOnce, func(_ *backup.WalkTask, d *flow.Delivery) {
				d.Ack()
				if taken.Add(1) == messages {
					stop()
				}
			})
		})
	}
	started := time.Now()
	var all errgroup.Group
	all.SetLimit(atOnce)
	for i := range messages {
		all.Go(func() error {
			task := &backup.WalkTask{
				Job: backup.Job{Snapshot: backup.NewSnapshotID(), Number: 1, Source: "posix:///srv"}, ID: backup.TaskID(i + 1), Attempt: 1, Directories: []string{""},
			}
			return flow.Publish(b.Context(), conn, flow.Walk, task)
		})
	}
	if err := all.Wait(); err != nil {
		b.Fatal(err)
	}
	<-ctx.Done()
	seconds := time.Since(started).Seconds()
	owned.Wait()
	r := newReport(b, "cluster-messages")
	r.say("%d walk tasks passed through three NATS nodes on this machine, which keep three copies of each stream. They were published %d at a time, each with its acknowledgement. %d consumers took them, and acknowledged each by itself.",
		messages, atOnce, consumers)
	r.table([][]string{{"messages", "s", "messages/s"}, {fmt.Sprint(messages), fmt.Sprintf("%.2f", seconds), fmt.Sprintf("%.0f", messages/seconds)}})
	r.write()
}

package flow

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

// within is how long a test waits for an event that must happen.
const within = 60 * time.Second

// inProcess starts a NATS server in this process, as an embedded backup does.
func inProcess(t testing.TB) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: t.TempDir(), NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(within) {
		t.Fatal("the server is not ready")
	}
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}

// ackWait leaves each queue its own.
const ackWait = 0

// connect connects as a service does; streams that it makes have this ackWait.
func connect(t testing.TB, o Options, ackWait time.Duration) *Conn {
	t.Helper()
	c, err := Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.ackWait = ackWait
	return c
}

// ready is connect with the streams made.
func ready(t testing.TB, o Options, ackWait time.Duration) *Conn {
	t.Helper()
	c := connect(t, o, ackWait)
	until(t, "the streams are there", func(ctx context.Context) bool {
		_, err := c.EnsureStreams(ctx, []string{backup.DefaultSite})
		return err == nil
	})
	return c
}

// until calls done until it returns true. Each call is a round trip to the server, which sets the
// pace.
func until(t testing.TB, what string, done func(context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for !done(ctx) {
		if ctx.Err() != nil {
			t.Fatalf("after %v it is not so that %s", within, what)
		}
	}
}

// receive returns the next value of a channel, and fails if none comes in time.
func receive[T any](t testing.TB, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(within):
		t.Fatalf("no %s came within %v", what, within)
	}
	return v
}

// walkTask returns a task that can be told from others by its id.
func walkTask(id backup.TaskID) *backup.WalkTask {
	return &backup.WalkTask{Job: backup.Job{Snapshot: backup.SnapshotID{1}, Number: 1}, ID: id, Attempt: 1, Directories: []string{"usr"}}
}

// publish sends tasks, and retries while the server does not answer.
func publish(t testing.TB, c *Conn, ids ...backup.TaskID) {
	t.Helper()
	for _, id := range ids {
		until(t, fmt.Sprintf("task %d is published", id), func(ctx context.Context) bool {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			return Publish(ctx, c, Walk, walkTask(id)) == nil
		})
	}
}

// taken is a task with the delivery that it came with.
type taken struct {
	task     *backup.WalkTask
	delivery *Delivery
}

// consumeWalk takes tasks in the background, until stop is called or the test ends; stop returns
// when no goroutine is left running.
func consumeWalk(t testing.TB, c *Conn, limit int) (tasks <-chan taken, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	out, ended := make(chan taken, 1000), make(chan struct{})
	go func() {
		defer close(ended)
		c.ConsumeWalk(ctx, backup.DefaultSite, limit, func(task *backup.WalkTask, d *Delivery) { out <- taken{task, d} })
	}()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return out, stop
}

// walkConsumer returns the state of the walkers' queue.
func walkConsumer(ctx context.Context, c *Conn) *jetstream.ConsumerInfo {
	return walkConsumerAt(ctx, c, "")
}

func walkConsumerAt(ctx context.Context, c *Conn, site string) *jetstream.ConsumerInfo {
	consumer, err := c.js.Consumer(ctx, walkStream, walkQueue(site).consumer)
	if err != nil {
		return &jetstream.ConsumerInfo{}
	}
	info, err := consumer.Info(ctx)
	if err != nil {
		return &jetstream.ConsumerInfo{}
	}
	return info
}

// queued returns the number of messages in the walkers' queue, in progress or not.
func queued(ctx context.Context, c *Conn) uint64 {
	stream, err := c.js.Stream(ctx, walkStream)
	if err != nil {
		return 1 << 32
	}
	return stream.CachedInfo().State.Msgs
}

func listen(o Options, s *server.Server) Options {
	o.InProcess, o.Memory = s, true
	return o
}

var _ nats.InProcessConnProvider = (*server.Server)(nil)

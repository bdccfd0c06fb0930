package flow

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/testenv"
)

// Consumers and publishers reconnect to a server that is killed and restarted, and the messages
// that its streams had on disk are still delivered.
func TestServerIsKilledAndRestarted(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	c := ready(t, Options{URL: s.URL(), Name: "test"}, 2*time.Second)
	tasks, _ := consumeWalk(t, c, 1)
	publish(t, c, 1, 2)
	held := receive(t, "task", tasks)
	if held.task.ID != 1 {
		t.Errorf("task %d", held.task.ID)
	}

	s.Kill()
	until(t, "the connection is seen to be lost", func(context.Context) bool { return c.Ready() != nil })
	if err := c.Ready(); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("ready without a server: %v", err)
	}
	s.Restart()

	publish(t, c, 3)
	held.delivery.Ack()
	seen := map[backup.TaskID]bool{}
	for !seen[2] || !seen[3] { // task 1 may come again: its acknowledgement may be lost
		got := receive(t, "task after the restart", tasks)
		seen[got.task.ID] = true
		got.delivery.Ack()
	}
	until(t, "the queue is empty", func(ctx context.Context) bool { return queued(ctx, c) == 0 })
	if lost, err := c.EnsureStreams(t.Context(), []string{backup.DefaultSite}); err != nil || lost {
		t.Errorf("streams on disk: lost %t, %v", lost, err)
	}
}

// Streams in memory are lost with the server: EnsureStreams reports that, and waiting consumers
// continue.
func TestServerThatForgetsIsRestarted(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	c := ready(t, Options{URL: s.URL(), Name: "test", Memory: true}, 2*time.Second)
	tasks, _ := consumeWalk(t, c, 1)
	publish(t, c, 1)
	receive(t, "task", tasks).delivery.Ack()
	s.Restart()
	var lost bool
	until(t, "the streams are there again", func(ctx context.Context) bool {
		again, err := c.EnsureStreams(ctx, []string{backup.DefaultSite})
		lost = lost || again
		return err == nil
	})
	if !lost {
		t.Error("a restart that lost the streams was not reported")
	}
	publish(t, c, 2)
	if got := receive(t, "task after the restart", tasks); got.task.ID != 2 {
		t.Errorf("task %d", got.task.ID)
	}
}

// A service may start before NATS does.
func TestServiceStartsBeforeTheServer(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	s.Kill()
	c := connect(t, Options{URL: s.URL(), Name: "test"}, 2*time.Second)
	tasks, _ := consumeWalk(t, c, 1)
	s.Restart()
	until(t, "the streams are there", func(ctx context.Context) bool {
		_, err := c.EnsureStreams(ctx, []string{backup.DefaultSite})
		return err == nil
	})
	publish(t, c, 1)
	if got := receive(t, "task", tasks); got.task.ID != 1 {
		t.Errorf("task %d", got.task.ID)
	}
}

// A server that hangs (its process is stopped) is no different from one that is gone.
func TestServerHangs(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	c := ready(t, Options{URL: s.URL(), Name: "test"}, 2*time.Second)
	tasks, _ := consumeWalk(t, c, 1)
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	err := Publish(ctx, c, Walk, walkTask(1))
	cancel()
	if !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("published to a server that hangs: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
	err = c.Answers(ctx)
	cancel()
	if !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("a server that hangs answers: %v", err)
	}
	s.Resume()
	until(t, "it answers again", func(ctx context.Context) bool { return c.Answers(ctx) == nil })
	publish(t, c, 2)
	for { // task 1 may have been sent after all
		got := receive(t, "task", tasks)
		got.delivery.Ack()
		if got.task.ID == 2 {
			return
		}
	}
}

// A worker that is stopped while tasks are on their way to it hands them back: another gets them at
// once, not after the time to acknowledge.
func TestStoppedConsumerHandsBackWhatComes(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	c := ready(t, Options{URL: s.URL(), Name: "test"}, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	defer ended.Wait()
	defer cancel()
	consume := func(ctx context.Context) {
		ended.Go(func() {
			c.ConsumeWalk(ctx, "", 1, func(_ *backup.WalkTask, d *Delivery) { d.Ack() })
		})
	}
	for id := range backup.TaskID(20) {
		stopping, stop := context.WithCancel(ctx)
		consume(stopping)
		until(t, "it waits", func(ctx context.Context) bool { return walkConsumer(ctx, c).NumWaiting > 0 })
		ended.Go(stop)
		publish(t, c, id+1)
	}
	consume(ctx)
	until(t, "the queue is empty", func(ctx context.Context) bool { return queued(ctx, c) == 0 })
}

// A stream with fewer replicas than configured gets them, and so do its consumers.
func TestReplicasAreRepaired(t *testing.T) {
	t.Parallel()
	c := ready(t, Options{URL: testenv.NATSCluster(t, 3).URL(), Name: "test"}, 2*time.Second)
	c.opts.Replicas = 3
	until(t, "the streams are repaired", func(ctx context.Context) bool {
		_, err := c.EnsureStreams(ctx, []string{backup.DefaultSite})
		return err == nil
	})
	stream, err := c.js.Stream(t.Context(), walkStream)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().Config.Replicas; n != 3 {
		t.Errorf("%d replicas", n)
	}
	if n := consumerOf(t, c, walkStream, walkQueue("").consumer).Config.Replicas; n != 0 {
		t.Errorf("the consumer has %d replicas of its own: it shall have those of its stream", n)
	}
}

package flow

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

func TestMessagesReachTheirStage(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	page := []backup.PageVersion{{Path: "a", Listing: []byte{1}}}
	job := backup.Job{Snapshot: backup.SnapshotID{1}, Number: 1}
	for _, err := range []error{
		Publish(ctx, c, Walk, walkTask(1)),
		Publish(ctx, c, Slices, &backup.SliceWalked{Task: 2, Pages: page}),
		Publish(ctx, c, Read, &backup.ReadBatch{Job: job, ID: 3, PagesToRead: backup.PagesToRead{Pages: page}}),
		Publish(ctx, c, Packs, &backup.PackStored{Pack: backup.PackID{4}, StoredBytes: 1}),
		Publish(ctx, c, Lists, &backup.ListsStored{Lists: []backup.ChunkList{{List: backup.ChunkID{6}, Chunks: []backup.ChunkID{{7}}}}}),
		Publish(ctx, c, Batches, &backup.BatchStored{Batch: 5, Pages: page}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	tasks, _ := consumeWalk(t, c, 1)
	got := receive(t, "walk task", tasks)
	if got.task.ID != 1 {
		t.Errorf("task %d", got.task.ID)
	}
	got.delivery.Ack()

	batches, results := make(chan *backup.ReadBatch, 1), make(chan Received, 4)
	ended := make(chan struct{}, 2)
	go func() {
		c.ConsumeRead(ctx, backup.DefaultSite, 1, func(b *backup.ReadBatch, d *Delivery) { batches <- b; d.Ack() })
		ended <- struct{}{}
	}()
	go func() {
		c.ConsumeResults(ctx, ctx, 8, func(r Received) { results <- r; r.Delivery.Ack() })
		ended <- struct{}{}
	}()
	if b := receive(t, "read batch", batches); b.ID != 3 || len(b.Pages) != 1 {
		t.Errorf("batch %+v", b)
	}
	var slice, pack, lists, batch bool
	for range 4 {
		r := receive(t, "result", results)
		r.Delivery = nil
		switch {
		case r.Slice != nil && r == Received{Slice: r.Slice}:
			slice = r.Slice.Task == 2
		case r.Pack != nil && r == Received{Pack: r.Pack}:
			pack = r.Pack.Pack == backup.PackID{4}
		case r.Lists != nil && r == Received{Lists: r.Lists}:
			lists = len(r.Lists.Lists) == 1 && r.Lists.Lists[0].List == backup.ChunkID{6}
		case r.Batch != nil && r == Received{Batch: r.Batch}:
			batch = r.Batch.Batch == 5
		}
	}
	if !slice || !pack || !lists || !batch {
		t.Errorf("slice %t, pack %t, lists %t, batch %t", slice, pack, lists, batch)
	}
	cancel()
	receive(t, "end of a consumer", ended)
	receive(t, "end of a consumer", ended)
}

func TestAckedMessageIsGone(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	publish(t, c, 1)
	tasks, _ := consumeWalk(t, c, 1)
	receive(t, "task", tasks).delivery.Ack()
	until(t, "the queue is empty", func(ctx context.Context) bool { return queued(ctx, c) == 0 })
}

func TestRetriedMessageComesAgain(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	publish(t, c, 1)
	tasks, _ := consumeWalk(t, c, 1)
	receive(t, "task", tasks).delivery.Retry(time.Millisecond)
	again := receive(t, "task again", tasks)
	if again.task.ID != 1 {
		t.Errorf("task %d", again.task.ID)
	}
	again.delivery.Ack()
	until(t, "the queue is empty", func(ctx context.Context) bool { return queued(ctx, c) == 0 })
}

func TestDroppedMessageIsGone(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	publish(t, c, 1, 2)
	tasks, _ := consumeWalk(t, c, 1)
	receive(t, "task", tasks).delivery.Drop()
	if next := receive(t, "next task", tasks); next.task.ID != 2 {
		t.Errorf("task %d after the one that was dropped", next.task.ID)
	}
	until(t, "the queue has what is in hand only", func(ctx context.Context) bool { return queued(ctx, c) == 1 })
}

func TestWhatCannotBeDecodedIsDropped(t *testing.T) {
	dropped := make(chan struct{}, 10)
	c := ready(t, listen(Options{Dropped: func() { dropped <- struct{}{} }}, inProcess(t)), ackWait)
	for _, data := range [][]byte{nil, []byte("not a message"), make([]byte, MaxMessageBytes+1)} {
		if _, err := c.js.PublishMsg(t.Context(), &nats.Msg{Subject: walkQueue("").filter, Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, c, 7)
	tasks, _ := consumeWalk(t, c, 1)
	got := receive(t, "task", tasks)
	if got.task.ID != 7 {
		t.Errorf("task %d", got.task.ID)
	}
	got.delivery.Ack()
	until(t, "the queue is empty", func(ctx context.Context) bool { return queued(ctx, c) == 0 })
	if len(dropped) != 3 {
		t.Errorf("%d messages of 3 were told of as dropped", len(dropped))
	}
}

// A second end of a delivery must not free the place of another.
func TestDeliveryEndsOnce(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	publish(t, c, 1, 2, 3)
	tasks, _ := consumeWalk(t, c, 1)
	first := receive(t, "task", tasks)
	first.delivery.Ack()
	second := receive(t, "second task", tasks)
	first.delivery.Ack()
	first.delivery.Retry(0)
	first.delivery.Drop()
	until(t, "one task is in hand and none asked for", func(ctx context.Context) bool {
		info := walkConsumer(ctx, c)
		return info.NumAckPending == 1 && info.NumWaiting == 0
	})
	second.delivery.Ack()
	if third := receive(t, "third task", tasks); third.task.ID != 3 {
		t.Errorf("task %d", third.task.ID)
	}
}

func TestLimitOfDeliveriesInHand(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	publish(t, c, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
	const limit = 6 // more than there are requests at a time
	tasks, _ := consumeWalk(t, c, limit)
	var hand []taken
	for range limit {
		hand = append(hand, receive(t, "task", tasks))
	}
	until(t, "as many as the limit are in hand and none asked for", func(ctx context.Context) bool {
		info := walkConsumer(ctx, c)
		return info.NumAckPending == limit && info.NumWaiting == 0
	})
	if len(tasks) > 0 {
		t.Fatalf("%d tasks beyond the limit of %d", len(tasks), limit)
	}
	hand[0].delivery.Ack()
	hand[1].delivery.Retry(time.Hour)
	for range 2 {
		hand = append(hand, receive(t, "task for a place that became free", tasks))
	}
	until(t, "the places are taken again", func(ctx context.Context) bool { return walkConsumer(ctx, c).NumWaiting == 0 })
	if len(tasks) > 0 {
		t.Errorf("%d tasks beyond the limit of %d", len(tasks), limit)
	}
	seen := map[backup.TaskID]bool{}
	for _, h := range hand {
		seen[h.task.ID] = true
	}
	if len(seen) != limit+2 {
		t.Errorf("%d different tasks, want %d", len(seen), limit+2)
	}
}

func TestDeadConsumersMessageGoesToAnother(t *testing.T) {
	s := inProcess(t)
	const ackWait = 300 * time.Millisecond
	dying := ready(t, listen(Options{}, s), ackWait)
	publish(t, dying, 1)
	tasks, _ := consumeWalk(t, dying, 1)
	receive(t, "task", tasks)
	dying.nc.Close() // as if the process had died with the task in progress

	alive := connect(t, listen(Options{}, s), ackWait)
	tasks, _ = consumeWalk(t, alive, 1)
	got := receive(t, "task of the dead", tasks)
	if got.task.ID != 1 {
		t.Errorf("task %d", got.task.ID)
	}
}

// A consumer that ends cancels its requests: no message is delivered to it that would wait until
// its time to acknowledge expires.
func TestEndedConsumerTakesNothing(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	first, stop := consumeWalk(t, c, 4)
	until(t, "messages are asked for", func(ctx context.Context) bool { return walkConsumer(ctx, c).NumWaiting > 0 })
	stop()
	if err := c.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	publish(t, c, 1, 2, 3, 4, 5)
	second, _ := consumeWalk(t, c, 5)
	for range 5 {
		receive(t, "task", second)
	}
	if len(first) > 0 {
		t.Errorf("%d tasks went to the consumer that had ended", len(first))
	}
}

// One task is held for longer than the server waits. Another, which is not kept alive, is delivered
// again and again and serves as the clock.
func TestSlowMessageIsKept(t *testing.T) {
	const ackWait = 300 * time.Millisecond
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	publish(t, c, 1)
	tasks, _ := consumeWalk(t, c, 1)
	slow := receive(t, "task", tasks)
	publish(t, c, 2)
	deliverAgain(t, c, walkStream, walkQueue("").consumer, func(data []byte) {
		task, err := Walk.decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if task.ID != 2 {
			t.Fatal("the task that is kept alive was delivered again")
		}
	})
	slow.delivery.Ack()
	until(t, "only the other task is left", func(ctx context.Context) bool { return queued(ctx, c) == 1 })
}

// deliverAgain fetches messages that nobody keeps alive until one was delivered five times.
func deliverAgain(t *testing.T, c *Conn, stream, consumer string, check func(data []byte)) {
	t.Helper()
	from, err := c.js.Consumer(t.Context(), stream, consumer)
	if err != nil {
		t.Fatal(err)
	}
	for deliveries := uint64(0); deliveries < 5; {
		batch, err := from.Fetch(1, jetstream.FetchMaxWait(within))
		if err != nil {
			t.Fatal(err)
		}
		msg := receive(t, "message that nobody keeps", batch.Messages())
		check(msg.Data())
		meta, err := msg.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		deliveries = meta.NumDelivered
	}
}

func TestConsumersGoOnAfterStreamsWereDeleted(t *testing.T) {
	c := connect(t, listen(Options{}, inProcess(t)), ackWait)
	if lost, err := c.EnsureStreams(t.Context(), []string{backup.DefaultSite}); err != nil || !lost {
		t.Fatalf("first: lost %t, %v", lost, err)
	}
	if lost, err := c.EnsureStreams(t.Context(), []string{backup.DefaultSite}); err != nil || lost {
		t.Fatalf("nothing was missing: lost %t, %v", lost, err)
	}
	tasks, _ := consumeWalk(t, c, 2)
	publish(t, c, 1)
	held := receive(t, "task", tasks)
	publish(t, c, 2)
	receive(t, "task", tasks).delivery.Ack()
	for _, stream := range []string{walkStream, readStream, commitStream} {
		if err := c.js.DeleteStream(t.Context(), stream); err != nil {
			t.Fatal(err)
		}
	}
	if err := Publish(t.Context(), c, Walk, walkTask(3)); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("published without a stream: %v", err)
	}
	if lost, err := c.EnsureStreams(t.Context(), []string{backup.DefaultSite}); err != nil || !lost {
		t.Errorf("all were deleted: lost %t, %v", lost, err)
	}
	publish(t, c, 4)
	if got := receive(t, "task after the streams were deleted", tasks); got.task.ID != 4 {
		t.Errorf("task %d", got.task.ID)
	}
	held.delivery.Ack() // of a message that no longer exists: the place is free nevertheless
	publish(t, c, 5)
	if got := receive(t, "task for the place", tasks); got.task.ID != 5 {
		t.Errorf("task %d", got.task.ID)
	}
}

func TestConsumerThatIsMissingIsMadeAgain(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	publish(t, c, 1)
	if err := c.js.DeleteConsumer(t.Context(), walkStream, walkQueue("").consumer); err != nil {
		t.Fatal(err)
	}
	if lost, err := c.EnsureStreams(t.Context(), []string{backup.DefaultSite}); err != nil || lost {
		t.Fatalf("lost %t, %v", lost, err)
	}
	tasks, _ := consumeWalk(t, c, 1)
	if got := receive(t, "task", tasks); got.task.ID != 1 {
		t.Errorf("task %d", got.task.ID)
	}
}

func TestMessageAboveTheLimitIsRefused(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	m := &backup.ReadBatch{Job: backup.Job{Number: 1}, ID: 1, PagesToRead: backup.PagesToRead{Pages: []backup.PageVersion{{Path: "a", Listing: make([]byte, MaxMessageBytes)}}}}
	size, err := SizeOf(Read, m)
	if err != nil {
		t.Fatal(err)
	}
	m.Pages[0].Listing = m.Pages[0].Listing[:2*MaxMessageBytes-size]
	if size, err = SizeOf(Read, m); err != nil || size != MaxMessageBytes {
		t.Fatalf("%d bytes, %v", size, err)
	}
	if err := Publish(t.Context(), c, Read, m); err != nil {
		t.Errorf("of %d bytes: %v", size, err)
	}
	m.Pages[0].Path = "ab"
	if err := Publish(t.Context(), c, Read, m); !errors.Is(err, ErrTooLarge) {
		t.Errorf("of a byte more: %v", err)
	}
	if _, err := Read.decode(slices.Grow([]byte(nil), 1)); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("empty: %v", err)
	}
}

func TestConnectSaysWhatIsWrong(t *testing.T) {
	for name, o := range map[string]Options{
		"no credentials file": {URL: "nats://127.0.0.1:1", Credentials: "/does/not/exist"},
		"no CA file":          {URL: "nats://127.0.0.1:1", CAFile: "/does/not/exist"},
		"no URL at all":       {URL: "nats://a b:x"},
	} {
		if c, err := Connect(o); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
}

func TestReadySaysWhetherTheServerAnswers(t *testing.T) {
	c := connect(t, Options{URL: "nats://127.0.0.1:1"}, ackWait) // nothing listens there
	if err := c.Ready(); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
	// Ready gives a reason from the beginning; the precise one is known once the first attempt has
	// failed.
	until(t, "the reason is known", func(context.Context) bool {
		text := c.Ready().Error()
		if strings.Contains(text, "%!") || strings.Contains(text, "nil") {
			t.Fatalf("without a server: %s", text)
		}
		return strings.Contains(text, "connection refused")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := Publish(ctx, c, Walk, walkTask(1)); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("published without a server: %v", err)
	}
	if err := ready(t, listen(Options{}, inProcess(t)), ackWait).Ready(); err != nil {
		t.Errorf("with a server: %v", err)
	}
}

// A connection that ended without an error has a reason nevertheless.
func TestReadyHasAReason(t *testing.T) {
	out := &outage{Options: Options{Log: slog.New(slog.DiscardHandler)}}
	out.failed(nil)
	if err := out.cause(); !errors.Is(err, errNotConnected) {
		t.Errorf("the cause is %v", err)
	}
}

func TestConnectDoesNotShowThePassword(t *testing.T) {
	for text, shown := range map[string]string{
		"nats://u:s3cret%zz@127.0.0.1:1": notURL, "nats://u:s3cret@h:port": notURL, "nats://127.0.0.1:1,nats://u:s3cret%zz@h": notURL,
		"u:s3cret@127.0.0.1:1": "@127.0.0.1:1", "nats://u:s3cret@127.0.0.1:1": "@127.0.0.1:1",
	} {
		if got := redacted(text); strings.Contains(got, "s3cret") || !strings.Contains(got, shown) {
			t.Errorf("%q becomes %q", text, got)
		}
		c, err := Connect(Options{URL: text})
		if err == nil {
			c.Close()
		} else if strings.Contains(err.Error(), "s3cret") || !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

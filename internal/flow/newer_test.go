package flow

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/bctl/bctl/internal/backup"
	bctlv1 "github.com/bctl/bctl/proto/bctl/v1"
)

// Messages for newer services are handed back for one of them to take; no older service handles
// them.
func TestNewerMessagesAreHandedBack(t *testing.T) {
	job := &bctlv1.Job{SnapshotId: make([]byte, 16), Number: 1}
	task := func(j *bctlv1.Job) []byte {
		data, err := proto.Marshal(&bctlv1.WalkTask{Job: j, Task: 1, Directories: [][]byte{nil}})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for name, message := range map[string]*nats.Msg{
		"kind of result":  {Subject: "bctl.v1.commit.next", Data: []byte("of a kind that is not known")},
		"header":          {Subject: walkQueue("").filter, Data: task(job), Header: nats.Header{needsHeader: {"2"}}},
		"value in a task": {Subject: walkQueue("").filter, Data: task(&bctlv1.Job{SnapshotId: job.SnapshotId, Number: 1, Compare: 1 << 10})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := ready(t, listen(Options{}, inProcess(t)), ackWait)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan struct{}, 2)
			go func() {
				c.ConsumeResults(ctx, ctx, 1, func(r Received) { t.Errorf("handled %+v", r) })
				ended <- struct{}{}
			}()
			go func() {
				c.ConsumeWalk(ctx, "", 1, func(task *backup.WalkTask, _ *Delivery) { t.Errorf("handled %+v", task) })
				ended <- struct{}{}
			}()
			if _, err := c.js.PublishMsg(ctx, message); err != nil {
				t.Fatal(err)
			}
			queue := commitQueue
			if message.Subject != "bctl.v1.commit.next" {
				queue = walkQueue("")
			}
			until(t, "the old service has had it", func(ctx context.Context) bool { return consumerInfo(ctx, t, c, queue).Delivered.Consumer >= 1 })
			cancel()
			receive(t, "end of a consumer", ended)
			receive(t, "end of a consumer", ended)

			// A newer service asks.
			consumer, err := c.js.Consumer(t.Context(), queue.stream, queue.consumer)
			if err != nil {
				t.Fatal(err)
			}
			msg, err := consumer.Next(jetstream.FetchMaxWait(within))
			if err != nil {
				t.Fatal(err)
			}
			if meta, err := msg.Metadata(); err != nil || meta.NumDelivered < 2 || string(msg.Data()) != string(message.Data) {
				t.Errorf("delivery %+v, %v of %q", meta, err, msg.Data())
			}
		})
	}
}

func consumerInfo(ctx context.Context, t *testing.T, c *Conn, q queue) *jetstream.ConsumerInfo {
	t.Helper()
	consumer, err := c.js.Consumer(ctx, q.stream, q.consumer)
	if err != nil {
		t.Fatal(err)
	}
	return consumer.CachedInfo()
}

func TestNeeds(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	tasks, _ := consumeWalk(t, c, 1)
	// Two invalid values, and one that this binary knows.
	for _, needs := range []string{"many", "-1", "1"} {
		data, err := Walk.encode(walkTask(7))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.js.PublishMsg(t.Context(), &nats.Msg{Subject: walkQueue("").filter, Data: data, Header: nats.Header{needsHeader: {needs}}}); err != nil {
			t.Fatal(err)
		}
	}
	receive(t, "the task that this binary knows", tasks).delivery.Ack()
	until(t, "the others are dropped", func(ctx context.Context) bool { return queued(ctx, c) == 0 })
}

package e2e_test

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/e2e/fleet"
)

// The queues of a fleet: streams, and the consumer of each.
var queues = map[string]string{"BCTL_WALK": "walkers", "BCTL_READ": "readers", "BCTL_COMMIT": "committers"}

func connect(t *testing.T, f *fleet.Fleet) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect(f.NATS.URL(), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// All streams may be deleted in mid-run: the truth is in the index (I2).
func TestStreamsDeleted(t *testing.T) {
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{}), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 20, spread)
	settle(t)
	_, js := connect(t, f)
	backup, _ := f.StartBackup(tree)
	for _, settled := range []int64{1, 12} {
		fleet.Await(t, "work to be settled", func() bool { return f.Index.Work().Settled() >= settled })
		at := f.Index.Work()
		for stream := range queues {
			if err := js.DeleteStream(t.Context(), stream); err != nil {
				t.Error(err)
			}
		}
		t.Logf("streams deleted at %+v", at)
		fleet.Await(t, "the streams to be made again", func() bool {
			for stream, consumer := range queues {
				if _, err := js.Consumer(t.Context(), stream, consumer); err != nil {
					return false
				}
			}
			return true
		})
	}
	orphans := check(t, f, backup.Wait(), tree)
	t.Logf("%d orphans", orphans)
}

// A thief takes messages that are not for it, from the same queues as the
// services. What it does to them is what may happen to any message.
type thief struct {
	js                      jetstream.JetStream
	lost, late, twice       atomic.Int64
	owned                   sync.WaitGroup
	lostPercent, maxDelayMs int
}

// run steals from one queue until ctx is done.
func (h *thief) run(ctx context.Context, stream, consumer string) {
	queue, err := h.js.Consumer(ctx, stream, consumer)
	for err == nil && ctx.Err() == nil {
		var batch jetstream.MessageBatch
		if batch, err = queue.Fetch(1, jetstream.FetchMaxWait(300*time.Millisecond)); err != nil {
			return
		}
		for msg := range batch.Messages() {
			h.handle(ctx, msg)
		}
	}
}

func (h *thief) handle(ctx context.Context, msg jetstream.Msg) {
	switch n := rand.IntN(100); {
	case n < h.lostPercent:
		h.lost.Add(1)
	case n < 50:
		h.late.Add(1)
		h.publishLater(ctx, msg)
	default:
		h.twice.Add(1)
		for range 1 + rand.IntN(3) {
			h.publishLater(ctx, msg)
		}
		h.publishLater(ctx, msg)
	}
	_ = msg.Ack() // an acknowledgement that is lost has the message delivered once more
}

// publishLater puts a message back into its queue after some time, behind
// others that came after it.
func (h *thief) publishLater(ctx context.Context, msg jetstream.Msg) {
	again := nats.NewMsg(msg.Subject())
	again.Data = msg.Data()
	wait := time.NewTimer(time.Duration(rand.IntN(h.maxDelayMs)) * time.Millisecond)
	h.owned.Go(func() {
		defer wait.Stop()
		select {
		case <-wait.C:
			_, _ = h.js.PublishMsg(ctx, again) // else it is lost, which is as good
		case <-ctx.Done():
		}
	})
}

// Any message may be lost, late, out of order, or come several times (I2, I3).
func TestMessagesLostLateAndTwice(t *testing.T) {
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{}), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 21, spread)
	settle(t)
	_, js := connect(t, f)
	fleet.Await(t, "the queues", func() bool {
		for stream, consumer := range queues {
			if _, err := js.Consumer(t.Context(), stream, consumer); err != nil {
				return false
			}
		}
		return true
	})
	ctx, stop := context.WithCancel(t.Context())
	h := &thief{js: js, lostPercent: 20, maxDelayMs: 1500}
	for stream, consumer := range queues {
		for range 4 { // as many as a service's
			h.owned.Go(func() { h.run(ctx, stream, consumer) })
		}
	}
	m := &mutator{t: t, dir: tree, random: rand.New(rand.NewPCG(21, 1))}
	for range 2 {
		backup, _ := f.StartBackup(tree, "--allow-shrink")
		orphans := check(t, f, backup.Wait(), tree)
		t.Logf("%d messages lost, %d late, %d several times; %d orphans", h.lost.Load(), h.late.Load(), h.twice.Load(), orphans)
		m.mutate(60)
	}
	stop()
	h.owned.Wait()
	if h.lost.Load() == 0 || h.late.Load() == 0 || h.twice.Load() == 0 {
		t.Error("the thief did not get enough to prove anything")
	}
}

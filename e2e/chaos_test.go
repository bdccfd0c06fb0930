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
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// The queues of a fleet: streams, and the consumer of each.
var queues = map[string]string{"BCTL_WALK": "walkers-default", "BCTL_READ": "readers-default", "BCTL_COMMIT": "committers"}

func connect(t *testing.T, f *fleet.Fleet) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(f.NATSURL(), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// awaitQueues waits until a committer has made the queues.
func awaitQueues(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	fleet.Await(t, "the queues", func() bool {
		for stream, consumer := range queues {
			if _, err := js.Consumer(t.Context(), stream, consumer); err != nil {
				return false
			}
		}
		return true
	})
}

// All streams may be deleted in mid-run: the truth is in the index (I2).
func TestStreamsDeleted(t *testing.T) {
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{}), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 20, spread)
	settle(t)
	js := connect(t, f)
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
		awaitQueues(t, js)
	}
	orphans := check(t, f, backup.Wait(), tree)
	t.Logf("%d orphans", orphans)
}

// A thief takes messages that are not for it, from the same queues as the
// services. It does to them what may happen to any message.
type thief struct {
	js                jetstream.JetStream
	lost, late, twice atomic.Int64
	owned             sync.WaitGroup
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

// handle makes less than one message of one on average: it meets its own again.
func (h *thief) handle(ctx context.Context, msg jetstream.Msg) {
	switch n := rand.IntN(100); {
	case n < 30:
		h.lost.Add(1)
	case n < 70:
		h.late.Add(1)
		h.publishLater(ctx, msg)
	default:
		h.twice.Add(1)
		h.publishLater(ctx, msg)
		h.publishLater(ctx, msg)
	}
	_ = msg.Ack() // an acknowledgement that is lost has the message delivered once more
}

const maxDelay = 1500 * time.Millisecond

// publishLater puts a message back into its queue after some time, behind
// others that came after it.
func (h *thief) publishLater(ctx context.Context, msg jetstream.Msg) {
	again := nats.NewMsg(msg.Subject())
	again.Data = msg.Data()
	wait := time.NewTimer(rand.N(maxDelay))
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
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{}), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 21, spread)
	settle(t)
	js := connect(t, f)
	awaitQueues(t, js)
	ctx, stop := context.WithCancel(t.Context())
	h := &thief{js: js}
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

// A worker that dies with a message in hand says nothing, and JetStream keeps
// the message for a minute: the lease in the index brings the work back.
func TestDeadWorkersWorkIsHandedOutAgain(t *testing.T) {
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{Walkers: -1, Readers: -1, Committers: 1}), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 22, shape{directories: 5, files: 5, meanBytes: 1000})
	settle(t)
	js := connect(t, f)
	awaitQueues(t, js)
	take := func(stream string) { // as a worker does, and no more
		queue, err := js.Consumer(t.Context(), stream, queues[stream])
		if err != nil {
			t.Fatal(err)
		}
		batch, err := queue.Fetch(1, jetstream.FetchMaxWait(30*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if msg := <-batch.Messages(); msg == nil {
			t.Fatalf("nothing came from %s: %v", stream, batch.Error())
		}
	}
	backup, _ := f.StartBackup(tree)
	died := time.Now()
	for _, stage := range []struct{ stream, service string }{{"BCTL_WALK", "walker"}, {"BCTL_READ", "reader"}} {
		take(stage.stream)
		died = time.Now()
		f.Service(stage.service)
	}
	check(t, f, backup.Wait(), tree)
	within := time.Since(died)
	t.Logf("the snapshot was whole %.1f s after the reader died; the lease is %d s", within.Seconds(), fleet.LeaseSeconds)
	if within > 30*time.Second { // the machine may be slow; without the lease it takes a minute
		t.Errorf("it took %v", within)
	}
}

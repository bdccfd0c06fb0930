package flow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/loop"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

const (
	// nextWait is how long one request for a message waits. A server that restarts, or a consumer
	// whose leader dies, forgets a request without notice; after nextWait, the request is repeated.
	nextWait = 1500 * time.Millisecond
	// workPullers is how many requests of a worker wait at a time. The server answers requests in
	// order: with one request per worker, a burst of tasks is spread evenly over the waiting
	// workers.
	workPullers = 1
	// resultPullers is larger: results are small and many, and any committer may apply them.
	resultPullers = 4
	retryDelay    = 250 * time.Millisecond
)

// ConsumeWalk passes a site's walk tasks to handle, with at most limit in progress at a time, until
// ctx is done. Stalled deliveries do not count against limit. handle must not block for long: it
// may end the delivery later, from any goroutine.
func (c *Conn) ConsumeWalk(ctx context.Context, site string, limit int, handle func(*backup.WalkTask, *Delivery)) {
	consume(ctx, c, walkQueue(site), intake{limit, workPullers, maxStalled, idleFirst, ctx}, func(msg jetstream.Msg) (func(*Delivery), error) {
		task, err := Walk.decode(msg.Data())
		return func(d *Delivery) { handle(task, d) }, err
	})
}

// ConsumeRead is ConsumeWalk for read batches.
func (c *Conn) ConsumeRead(ctx context.Context, site string, limit int, handle func(*backup.ReadBatch, *Delivery)) {
	consume(ctx, c, readQueue(site), intake{limit, workPullers, maxStalled, 0, ctx}, func(msg jetstream.Msg) (func(*Delivery), error) {
		batch, err := Read.decode(msg.Data())
		return func(d *Delivery) { handle(batch, d) }, err
	})
}

// A Received is one message to the committer: exactly one of the four messages is set.
type Received struct {
	Slice    *backup.SliceWalked
	Pack     *backup.PackStored
	Lists    *backup.ListsStored
	Batch    *backup.BatchStored
	Delivery *Delivery
}

// ConsumeResults is ConsumeWalk for the results of workers. When ctx is done, it waits until all
// deliveries have ended or work is done, and keeps those in progress alive until then.
func (c *Conn) ConsumeResults(ctx, work context.Context, limit int, handle func(Received)) {
	consume(ctx, c, commitQueue, intake{limit, resultPullers, 0, 0, work}, func(msg jetstream.Msg) (func(*Delivery), error) {
		var r Received
		var err error
		switch msg.Subject() {
		case Slices.Subject:
			r.Slice, err = Slices.decode(msg.Data())
		case Packs.Subject:
			r.Pack, err = Packs.decode(msg.Data())
		case Lists.Subject:
			r.Lists, err = Lists.decode(msg.Data())
		case Batches.Subject:
			r.Batch, err = Batches.decode(msg.Data())
		default:
			err = fmt.Errorf("subject %q: %w", msg.Subject(), errNewer)
		}
		return func(d *Delivery) { r.Delivery = d; handle(r) }, err
	})
}

// An intake limits how much of a queue a consumer takes.
type intake struct {
	limit   int // deliveries in progress at a time
	pullers int // requests waiting at a time
	stalled int // stalled deliveries in addition to limit
	// wait delays the next request by this time per delivery in progress, so that a consumer with
	// less work asks earlier.
	wait time.Duration
	// work is the context of the deliveries in progress, which are kept alive until it is done.
	work context.Context
}

// idleFirst is the wait for walk tasks. Most of them take seconds, and they share what the walker
// may request from their filer: a walker with several tasks gains nothing from another, but an idle
// walker does.
const idleFirst = 10 * time.Millisecond

// consume requests messages only as fast as they are handled: no message waits in a buffer of this
// process while its time to acknowledge runs.
func consume(ctx context.Context, c *Conn, q queue, in intake, decode func(jetstream.Msg) (func(*Delivery), error)) {
	hand := newInHand(in.limit, in.stalled)
	var pulling, keeping sync.WaitGroup
	kept, ended := context.WithCancel(in.work)
	defer ended()
	keeping.Go(func() { hand.keepAlive(kept, c.ackWaitOf(q)) })
	for range min(in.limit, in.pullers) {
		pulling.Go(func() {
			delay := retryDelay
			for ctx.Err() == nil {
				asked := time.Now()
				c.opts.Moved()
				err := c.pull(ctx, q, in, hand, decode)
				if err == nil || ctx.Err() != nil {
					continue
				}
				c.log.Debug("waiting for the queue", "stream", q.stream, "consumer", q.consumer, "error", err)
				if time.Since(asked) > 2*nextWait {
					delay = retryDelay // messages were taken in between
				}
				loop.Pause(ctx, delay)
				delay = min(2*delay, nextWait)
			}
		})
	}
	pulling.Wait()
	hand.awaitEnds(in.work)
	ended()
	keeping.Wait()
}

// ackWaitOf returns the ackWait of a queue.
func (c *Conn) ackWaitOf(q queue) time.Duration { return cmp.Or(c.ackWait, q.ackWait) }

// pull takes messages until something fails.
func (c *Conn) pull(ctx context.Context, q queue, in intake, hand *inHand, decode func(jetstream.Msg) (func(*Delivery), error)) error {
	asking, cancel := context.WithTimeout(ctx, nextWait)
	consumer, err := c.js.Consumer(asking, q.stream, q.consumer)
	cancel()
	if err == nil {
		c.out.consumed()
		err = c.others.saw(c.opts.checkOwner("queue "+q.consumer, consumer.CachedInfo().Config.Metadata))
	}
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if !c.room(ctx, hand) {
			return nil
		}
		if err := c.opts.MayTake(ctx); err != nil {
			<-hand.free
			return err
		}
		if in.wait > 0 && c.opts.InProcess == nil {
			hand.letOthersAsk(ctx, in.wait)
		}
		msg, err := c.nextMessage(ctx, consumer)
		if msg == nil {
			<-hand.free
			if err != nil {
				return err
			}
			continue
		}
		if ctx.Err() != nil {
			hand.add(msg).Retry(0) // to another consumer, at once
			continue
		}
		c.deliver(msg, hand, decode)
	}
	return nil
}

// room waits for a free place. It returns false when ctx is done. It calls Moved while it waits,
// because a long wait is not the consumer's fault.
func (c *Conn) room(ctx context.Context, hand *inHand) bool {
	look := time.NewTicker(nextWait)
	defer look.Stop()
	for {
		c.opts.Moved()
		select {
		case <-ctx.Done():
			return false
		case hand.free <- struct{}{}:
			return true
		case <-look.C:
		}
	}
}

// nextMessage returns nil and no error if no message came in time. The server ends a request after
// nextWait, and this process waits longer for its answer: a message that is on its way when nobody
// waits any more is missing for ackWait. So it waits even if ctx is done, unless the server is in
// this process and ends with it.
func (c *Conn) nextMessage(ctx context.Context, consumer jetstream.Consumer) (jetstream.Msg, error) {
	if c.opts.InProcess == nil {
		ctx = context.WithoutCancel(ctx)
	}
	asked := time.Now()
	batch, err := consumer.Fetch(1, jetstream.FetchMaxWait(nextWait)) // it gives up a second later
	if err != nil {
		return nil, err
	}
	select {
	case msg := <-batch.Messages():
		if msg != nil {
			return msg, nil
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := batch.Error(); err != nil {
		return nil, err
	}
	if time.Since(asked) > 2*nextWait-nextWait/2 {
		return nil, errNoAnswer
	}
	return nil, nil
}

// errNoAnswer: the server has not even said that there is no message.
var errNoAnswer = errors.New("the server does not answer")

func (c *Conn) deliver(msg jetstream.Msg, hand *inHand, decode func(jetstream.Msg) (func(*Delivery), error)) {
	d := hand.add(msg)
	err := c.opts.checkRepository(msg.Headers())
	if err == nil {
		err = checkNeeds(msg)
	}
	var handle func(*Delivery)
	if err == nil {
		handle, err = decode(msg)
	}
	switch {
	case err == nil:
		handle(d)
	case errors.Is(err, ErrOtherRepository):
		c.others.refuse(c.log, msg, d, err)
	case errors.Is(err, errNewer):
		c.log.Warn("message handed back", "subject", msg.Subject(), "delivery", d.Attempts(), "error", err)
		d.RetryLater()
	default:
		c.log.Error("message dropped: it cannot be decoded", "subject", msg.Subject(), "bytes", len(msg.Data()), "error", err)
		c.opts.Dropped()
		d.Drop()
	}
}

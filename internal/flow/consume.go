package flow

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

const (
	// nextWait is how long one request for a message waits. A request is forgotten by a
	// server that restarts, and by a consumer whose leader dies, without a word: so long
	// it takes to ask again.
	nextWait = 1500 * time.Millisecond
	// workPullers is how many requests a worker has waiting. The server answers them in their
	// order, so that with one each a burst of tasks is spread evenly over the workers that wait.
	workPullers = 1
	// resultPullers is more: results are small and many, and it does not matter who applies them.
	resultPullers = 4
	retryDelay    = 250 * time.Millisecond
)

// every calls do at intervals until ctx is done.
func every(ctx context.Context, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// ConsumeWalk hands a site's walk tasks to handle, up to limit in hand at a time, until
// ctx is done; what is stalled does not count. handle must not block for long: it may end
// the delivery later, from any goroutine.
func (c *Conn) ConsumeWalk(ctx context.Context, site string, limit int, handle func(*backup.WalkTask, *Delivery)) {
	consume(ctx, c, walkQueue(site), hold{limit, workPullers, maxStalled, idleFirst}, func(msg jetstream.Msg) (func(*Delivery), error) {
		task, err := Walk.decode(msg.Data())
		return func(d *Delivery) { handle(task, d) }, err
	})
}

// ConsumeRead is ConsumeWalk for read batches.
func (c *Conn) ConsumeRead(ctx context.Context, site string, limit int, handle func(*backup.ReadBatch, *Delivery)) {
	consume(ctx, c, readQueue(site), hold{limit, workPullers, maxStalled, 0}, func(msg jetstream.Msg) (func(*Delivery), error) {
		batch, err := Read.decode(msg.Data())
		return func(d *Delivery) { handle(batch, d) }, err
	})
}

// A Result is one message to the committer: exactly one of the four is set.
type Result struct {
	Slice    *backup.SliceWalked
	Pack     *backup.PackStored
	Lists    *backup.ListsStored
	Batch    *backup.BatchStored
	Delivery *Delivery
}

// ConsumeResults is ConsumeWalk for what workers found and stored.
func (c *Conn) ConsumeResults(ctx context.Context, limit int, handle func(Result)) {
	consume(ctx, c, commitQueue, hold{limit, resultPullers, 0, 0}, func(msg jetstream.Msg) (func(*Delivery), error) {
		var r Result
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

// A hold says how much of a queue a consumer takes.
type hold struct {
	limit   int // deliveries in hand at a time
	pullers int // requests waiting at a time
	stalled int // deliveries beside the limit that are stalled
	// wait is how long, for each delivery in hand, the next request waits: who has less in hand asks earlier.
	wait time.Duration
}

// idleFirst is the wait for walk tasks. They mostly take seconds, and share what the walker may ask of
// their filer: a walker that has several gains nothing by another, one that has none does.
const idleFirst = 10 * time.Millisecond

// consume asks for messages only as fast as they are taken in hand: nothing
// waits in a buffer of this process while its time to acknowledge runs.
func consume(ctx context.Context, c *Conn, q queue, h hold, decode func(jetstream.Msg) (func(*Delivery), error)) {
	hand := newInHand(h.limit, h.stalled)
	var owned sync.WaitGroup
	owned.Go(func() { hand.keepAlive(ctx, c.ackWait) })
	for range min(h.limit, h.pullers) {
		owned.Go(func() {
			delay := retryDelay
			for ctx.Err() == nil {
				asked := time.Now()
				c.opts.Moved()
				err := c.pull(ctx, q, h, hand, decode)
				if err == nil || ctx.Err() != nil {
					continue
				}
				c.log.Debug("waiting for the queue", "stream", q.stream, "consumer", q.consumer, "error", err)
				if time.Since(asked) > 2*nextWait {
					delay = retryDelay // it went well in between
				}
				pause(ctx, delay)
				delay = min(2*delay, nextWait)
			}
		})
	}
	owned.Wait()
}

// pull takes messages until something fails.
func (c *Conn) pull(ctx context.Context, q queue, h hold, hand *inHand, decode func(jetstream.Msg) (func(*Delivery), error)) error {
	asking, cancel := context.WithTimeout(ctx, nextWait)
	consumer, err := c.js.Consumer(asking, q.stream, q.consumer)
	cancel()
	if err == nil {
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
		if h.wait > 0 && c.opts.InProcess == nil {
			hand.letOthersAsk(ctx, h.wait)
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
			hand.add(msg).Retry(0) // to someone else, at once
			continue
		}
		c.deliver(msg, hand, decode)
	}
	return nil
}

// room waits for a place in hand; it returns false when ctx is done. That there is none for
// long is no fault of the consumer's, which goes on looking.
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

// nextMessage returns nil and no error when none came in time. A request that is
// waiting when ctx is done is sat out, for a message that was on its way here would be missing
// for ackWait; but not where the server is in this process, and ends with it.
func (c *Conn) nextMessage(ctx context.Context, consumer jetstream.Consumer) (jetstream.Msg, error) {
	if c.opts.InProcess == nil {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, nextWait)
	defer cancel()
	batch, err := consumer.Fetch(1, jetstream.FetchContext(ctx))
	if err != nil {
		return nil, err
	}
	if msg := <-batch.Messages(); msg != nil {
		return msg, nil
	}
	return nil, batch.Error()
}

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

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

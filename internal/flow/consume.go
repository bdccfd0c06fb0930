package flow

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

const (
	nextWait   = 5 * time.Second // of one request for a message
	maxPullers = 4               // requests at a time of one consumer
	retryDelay = time.Second
)

// A Delivery is a message in hand. The first of Ack, Retry and Drop ends it;
// until then the server is kept from delivering it to anyone else. Its methods
// may be called from any goroutine.
type Delivery struct {
	msg  jetstream.Msg
	done func()
}

// Stalled ends the delivery although the work goes on: it waits for a filer,
// and shall neither keep others out nor stay in the queue. The lease in the index,
// which the worker's reports renew, is all that holds the work from then on.
func (d *Delivery) Stalled() { d.end(d.msg.Ack()) }

// Ack ends the delivery: the work is done.
func (d *Delivery) Ack() { d.end(d.msg.Ack()) }

// Retry has the message delivered again, to anyone, after a delay.
func (d *Delivery) Retry(delay time.Duration) { d.end(d.msg.NakWithDelay(delay)) }

// Drop ends the delivery of a message that nobody can handle.
func (d *Delivery) Drop() { d.end(d.msg.Term()) }

// end ignores the error: an acknowledgement that is lost brings the message
// again, and its result is refused then.
func (d *Delivery) end(error) { d.done() }

// inHand are the deliveries of one consumer, which one goroutine keeps alive.
type inHand struct {
	mu   sync.Mutex
	msgs map[jetstream.Msg]struct{}
	free chan struct{} // a token for each further delivery
}

func newInHand(limit int) *inHand {
	return &inHand{msgs: map[jetstream.Msg]struct{}{}, free: make(chan struct{}, limit)}
}

func (h *inHand) add(msg jetstream.Msg) *Delivery {
	h.mu.Lock()
	h.msgs[msg] = struct{}{}
	h.mu.Unlock()
	return &Delivery{msg: msg, done: sync.OnceFunc(func() {
		h.mu.Lock()
		delete(h.msgs, msg)
		h.mu.Unlock()
		<-h.free
	})}
}

// keepAlive tells the server, three times in the time that it waits, that the
// deliveries in hand are worked on.
func (h *inHand) keepAlive(ctx context.Context, ackWait time.Duration) {
	every(ctx, ackWait/3, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for msg := range h.msgs {
			_ = msg.InProgress() // the next one tries again
		}
	})
}

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
// ctx is done. handle must not block for long: it may end the delivery later,
// from any goroutine.
func (c *Conn) ConsumeWalk(ctx context.Context, site string, limit int, handle func(*backup.WalkTask, *Delivery)) {
	consume(ctx, c, walkQueue(site), limit, func(msg jetstream.Msg) (func(*Delivery), error) {
		task, err := Walk.decode(msg.Data())
		return func(d *Delivery) { handle(task, d) }, err
	})
}

// ConsumeRead is ConsumeWalk for read batches.
func (c *Conn) ConsumeRead(ctx context.Context, site string, limit int, handle func(*backup.ReadBatch, *Delivery)) {
	consume(ctx, c, readQueue(site), limit, func(msg jetstream.Msg) (func(*Delivery), error) {
		batch, err := Read.decode(msg.Data())
		return func(d *Delivery) { handle(batch, d) }, err
	})
}

// A Result is one message to the committer: exactly one of the three is set.
type Result struct {
	Slice    *backup.SliceWalked
	Pack     *backup.PackStored
	Batch    *backup.BatchStored
	Delivery *Delivery
}

// ConsumeResults is ConsumeWalk for what workers found and stored.
func (c *Conn) ConsumeResults(ctx context.Context, limit int, handle func(Result)) {
	consume(ctx, c, commitQueue, limit, func(msg jetstream.Msg) (func(*Delivery), error) {
		var r Result
		var err error
		switch msg.Subject() {
		case Slices.Subject:
			r.Slice, err = Slices.decode(msg.Data())
		case Packs.Subject:
			r.Pack, err = Packs.decode(msg.Data())
		case Batches.Subject:
			r.Batch, err = Batches.decode(msg.Data())
		default:
			err = fmt.Errorf("subject %q: %w", msg.Subject(), backup.ErrInvalid)
		}
		return func(d *Delivery) { r.Delivery = d; handle(r) }, err
	})
}

// consume asks for messages only as fast as they are taken in hand: nothing
// waits in a buffer of this process while its time to acknowledge runs.
func consume(ctx context.Context, c *Conn, q queue, limit int, decode func(jetstream.Msg) (func(*Delivery), error)) {
	hand := newInHand(limit)
	var owned sync.WaitGroup
	owned.Go(func() { hand.keepAlive(ctx, c.ackWait) })
	for range min(limit, maxPullers) {
		owned.Go(func() {
			for ctx.Err() == nil {
				if err := c.pull(ctx, q, hand, decode); err != nil && ctx.Err() == nil {
					c.log.Debug("waiting for the queue", "stream", q.stream, "error", err)
					pause(ctx, retryDelay)
				}
			}
		})
	}
	owned.Wait()
}

// pull takes messages until something fails.
func (c *Conn) pull(ctx context.Context, q queue, hand *inHand, decode func(jetstream.Msg) (func(*Delivery), error)) error {
	consumer, err := c.js.Consumer(ctx, q.stream, q.consumer)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case hand.free <- struct{}{}:
		}
		msg, err := nextMessage(ctx, consumer)
		if msg == nil {
			<-hand.free
			if err != nil {
				return err
			}
			continue
		}
		c.deliver(msg, hand, decode)
	}
}

// nextMessage returns nil and no error when none came in time. When ctx is
// done the request is taken back: what the server would answer it with goes to
// someone else at once.
func nextMessage(ctx context.Context, consumer jetstream.Consumer) (jetstream.Msg, error) {
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
	handle, err := decode(msg)
	if err != nil {
		c.log.Error("message dropped: it cannot be decoded", "subject", msg.Subject(), "bytes", len(msg.Data()), "error", err)
		d.Drop()
		return
	}
	handle(d)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

package flow

import (
	"context"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/loop"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// maxStalled bounds the deliveries of one consumer that wait for filers, in addition to its
	// limit.
	maxStalled = 256

	// maxDeliveries is how often a message that keeps failing is delivered. Then its lease brings
	// the work back, as an attempt that the index counts.
	maxDeliveries = 5
	firstRetry    = 2 * time.Second // doubled with each delivery
	lastRetry     = 30 * time.Second
)

// A Delivery is a message in progress. The first call of Ack, Retry, RetryLater or Drop ends it;
// until then, the server does not deliver the message to anyone else. Its methods may be called
// from any goroutine.
type Delivery struct {
	msg  jetstream.Msg
	hand *inHand

	mu    sync.Mutex
	state deliveryState
}

// deliveryState is the state of a delivery. A delivery that stalls moves from inSlot to
// stalledApart, or to stalledInSlot if too many are apart already.
type deliveryState uint8

const (
	inSlot deliveryState = iota
	stalledApart
	stalledInSlot
	ended
)

// Ack ends the delivery: the work is done.
func (d *Delivery) Ack() { d.end(d.msg.Ack) }

// Retry has the message delivered again, to any consumer, after a delay.
func (d *Delivery) Retry(delay time.Duration) {
	d.end(func() error { return d.msg.NakWithDelay(delay) })
}

// RetryLater is Retry for work that failed. The delay grows from 2 to 30 seconds with the number of
// deliveries. After five deliveries the message is acknowledged and the work is left to its lease:
// it comes again as a new attempt, so that work that always fails eventually fails its snapshot.
func (d *Delivery) RetryLater() {
	n := d.Attempts()
	if n >= maxDeliveries {
		d.Ack()
		return
	}
	d.Retry(delayAfter(n))
}

func delayAfter(deliveries int) time.Duration {
	doublings := min(deliveries-1, 10)
	return min(firstRetry<<doublings, lastRetry)
}

// Drop ends the delivery of a message that no service can handle.
func (d *Delivery) Drop() { d.end(d.msg.Term) }

// Attempts returns how often the message was delivered, including this time.
func (d *Delivery) Attempts() int {
	meta, err := d.msg.Metadata()
	if err != nil || meta.NumDelivered < 1 {
		return 1
	}
	return int(min(meta.NumDelivered, 1<<20))
}

// Stalled acknowledges the message although the work continues: the work waits for a filer, and
// must neither block other work nor stay in the queue. From then on only the lease in the index,
// which the worker's reports renew, holds the work, and ending the delivery sends nothing. The
// delivery must be ended nevertheless: at most 256 deliveries of a consumer may be stalled in
// addition to its limit, and any further one keeps its place within the limit. Further calls have
// no effect.
func (d *Delivery) Stalled() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != inSlot {
		return
	}
	// If the acknowledgement is lost, another worker stalls too, and one of the two results is
	// late.
	_ = d.msg.Ack()
	d.hand.forget(d.msg)
	select {
	case d.hand.stalled <- struct{}{}:
		d.state = stalledApart
		d.hand.leave()
	default:
		d.state = stalledInSlot
	}
}

// IsStalled reports whether only the lease holds the work: Stalled was called, and the delivery has
// not ended.
func (d *Delivery) IsStalled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state == stalledApart || d.state == stalledInSlot
}

// end ignores the error: if the acknowledgement is lost, the message comes again, and its result is
// refused.
func (d *Delivery) end(say func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch d.state {
	case inSlot:
		_ = say()
		d.hand.forget(d.msg)
		d.hand.leave()
	case stalledInSlot:
		d.hand.leave()
	case stalledApart:
		<-d.hand.stalled
	case ended:
	}
	d.state = ended
}

// inHand is the set of deliveries in progress of one consumer. One goroutine keeps them alive.
type inHand struct {
	mu      sync.Mutex
	msgs    map[jetstream.Msg]bool // whether it was in progress when keepAlive last looked
	free    chan struct{}          // has a token for each delivery in progress, except those stalled apart
	left    chan struct{}          // signaled when a token was removed from free
	stalled chan struct{}          // has a token for each delivery that is stalled apart
}

func newInHand(limit, stalled int) *inHand {
	return &inHand{
		msgs: map[jetstream.Msg]bool{},
		free: make(chan struct{}, limit), left: make(chan struct{}, 1), stalled: make(chan struct{}, stalled),
	}
}

// leave removes a delivery's token.
func (h *inHand) leave() {
	<-h.free
	select {
	case h.left <- struct{}{}:
	default: // a signal is already pending
	}
}

// letOthersAsk waits for the duration each per other delivery in progress, but no longer than there
// are any. The next request already has its token.
func (h *inHand) letOthersAsk(ctx context.Context, each time.Duration) {
	wait := time.NewTimer(time.Duration(len(h.free)-1) * each)
	defer wait.Stop()
	for len(h.free) > 1 {
		select {
		case <-h.left:
		case <-wait.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// add makes a delivery of a message that already has a token in free.
func (h *inHand) add(msg jetstream.Msg) *Delivery {
	h.mu.Lock()
	h.msgs[msg] = false
	h.mu.Unlock()
	return &Delivery{msg: msg, hand: h}
}

// forget stops keeping the message alive.
func (h *inHand) forget(msg jetstream.Msg) {
	h.mu.Lock()
	delete(h.msgs, msg)
	h.mu.Unlock()
}

// awaitEnds waits until no delivery is in progress, or ctx is done. Nothing may be added meanwhile.
func (h *inHand) awaitEnds(ctx context.Context) {
	for len(h.free) > 0 {
		select {
		case <-h.left:
		case <-ctx.Done():
			return
		}
	}
}

// keepAlive reports the deliveries in progress to the server four times per ackWait, and once more
// at the end, because they may still be finished. It does not report those that are new since its
// last look, so that most results, which take milliseconds, cost no report.
func (h *inHand) keepAlive(ctx context.Context, ackWait time.Duration) {
	loop.Every(ctx, ackWait/4, func() { h.inProgress(false) })
	h.inProgress(true)
}

func (h *inHand) inProgress(fresh bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for msg, known := range h.msgs {
		if known || fresh {
			_ = msg.InProgress() // the next one tries again
		}
		h.msgs[msg] = true
	}
}

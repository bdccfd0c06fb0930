package flow

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// maxStalled bounds what one consumer has waiting for filers beside its limit.
	maxStalled = 256

	// A message that fails again and again is delivered so often; then its lease is left to
	// bring the work back, as an attempt that the index counts.
	maxDeliveries = 5
	firstRetry    = 2 * time.Second // doubled with each delivery
	lastRetry     = 30 * time.Second
)

// A Delivery is a message in hand. The first of Ack, Retry, RetryLater and Drop ends it;
// until then the server is kept from delivering it to anyone else. Its methods
// may be called from any goroutine.
type Delivery struct {
	msg  jetstream.Msg
	hand *inHand

	mu    sync.Mutex
	state deliveryState
}

// deliveryState is where a delivery is in its life. One that stalls goes from
// inSlot to stalledApart, or to stalledInSlot where too many are apart already.
type deliveryState uint8

const (
	inSlot deliveryState = iota
	stalledApart
	stalledInSlot
	ended
)

// Ack ends the delivery: the work is done.
func (d *Delivery) Ack() { d.end(d.msg.Ack) }

// Retry has the message delivered again, to anyone, after a delay.
func (d *Delivery) Retry(delay time.Duration) {
	d.end(func() error { return d.msg.NakWithDelay(delay) })
}

// RetryLater is Retry for work that failed: after a delay that grows from 2 to
// 30 seconds with the number of deliveries. After five of them the message is
// acknowledged and the work left to its lease: it comes again as a new attempt,
// and so what fails for ever fails its snapshot in the end.
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

// Drop ends the delivery of a message that nobody can handle.
func (d *Delivery) Drop() { d.end(d.msg.Term) }

// Attempts is how often the message was delivered, this time included.
func (d *Delivery) Attempts() int {
	meta, err := d.msg.Metadata()
	if err != nil || meta.NumDelivered < 1 {
		return 1
	}
	return int(min(meta.NumDelivered, 1<<20))
}

// Stalled acknowledges the message although the work goes on: it waits for a
// filer, and shall neither keep other work out nor stay in the queue. The lease in the
// index, which the worker's reports renew, is all that holds the work from then
// on: whatever ends the delivery later sends nothing. It has to be ended all the
// same: no more than 256 deliveries of a consumer may be stalled beside its
// limit; one beyond that keeps its place within the limit. Calling it again is nothing.
func (d *Delivery) Stalled() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != inSlot {
		return
	}
	_ = d.msg.Ack() // if it is lost another worker gets stuck as well, and one of both is late
	d.hand.forget(d.msg)
	select {
	case d.hand.stalled <- struct{}{}:
		d.state = stalledApart
		d.hand.leave()
	default:
		d.state = stalledInSlot
	}
}

// end ignores the error: an acknowledgement that is lost brings the message
// again, and its result is refused then.
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

// inHand are the deliveries of one consumer, which one goroutine keeps alive.
type inHand struct {
	mu      sync.Mutex
	msgs    map[jetstream.Msg]struct{}
	free    chan struct{} // has a token for each delivery in hand
	left    chan struct{} // told when a token was taken out
	stalled chan struct{} // has a token for each that is stalled, beside those
}

func newInHand(limit, stalled int) *inHand {
	return &inHand{
		msgs: map[jetstream.Msg]struct{}{},
		free: make(chan struct{}, limit), left: make(chan struct{}, 1), stalled: make(chan struct{}, stalled),
	}
}

// leave takes a delivery's token out.
func (h *inHand) leave() {
	<-h.free
	select {
	case h.left <- struct{}{}:
	default: // it is known
	}
}

// letOthersAsk waits for as long as there are other deliveries in hand, each so long, but not longer than there
// are any. The request that comes next has its token already.
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

// add makes a delivery of a message, for which there is a token in free.
func (h *inHand) add(msg jetstream.Msg) *Delivery {
	h.mu.Lock()
	h.msgs[msg] = struct{}{}
	h.mu.Unlock()
	return &Delivery{msg: msg, hand: h}
}

// forget has the message not kept alive any more.
func (h *inHand) forget(msg jetstream.Msg) {
	h.mu.Lock()
	delete(h.msgs, msg)
	h.mu.Unlock()
}

// keepAlive tells the server, three times in the time that it waits, that the
// deliveries in hand are worked on; and once more at the end, for they may be finished yet.
func (h *inHand) keepAlive(ctx context.Context, ackWait time.Duration) {
	every(ctx, ackWait/3, h.inProgress)
	h.inProgress()
}

func (h *inHand) inProgress() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for msg := range h.msgs {
		_ = msg.InProgress() // the next one tries again
	}
}

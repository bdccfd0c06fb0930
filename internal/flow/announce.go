package flow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/loop"

	"github.com/nats-io/nats.go"

	"github.com/bctl/bctl/internal/backup"
	bctlv1 "github.com/bctl/bctl/proto/bctl/v1"
)

// Each service publishes a description of itself when it starts, at an interval, after a change, on
// request, and when it stops. Every listener receives all descriptions. The keeper remembers them
// (roster.go), and so notices a service that dies.

const (
	// announceEvery is the interval between descriptions that nobody has requested.
	announceEvery = 10 * time.Second
	// refusedEvery replaces announceEvery if NATS refuses the subject, because each refusal is
	// logged.
	refusedEvery = 5 * time.Minute
	// announceWait is how long the server may take to refuse an announcement.
	announceWait = 2 * time.Second
)

// An Announcement is what a service publishes about itself, and how it handles requests to drain.
type Announcement struct {
	Describe func() Instance // ID is filled in
	Changed  <-chan struct{} // announce now
	// Drain, if not nil, is called when an operator asks the service to take no new work or, with
	// undo, to take work again.
	Drain func(undo bool, by string)
}

// Announce publishes descriptions of this process until ctx is done, and then announces that the
// process stops.
func (c *Conn) Announce(ctx context.Context, a Announcement) {
	defer c.bePresent()()
	asked := make(chan struct{}, 1)
	defer c.listen(askSubject, func(m *nats.Msg) {
		if len(m.Data) == 0 { // else it is only a permission check
			loop.Wake(asked)
		}
	})()
	if a.Drain != nil {
		defer c.listen(drainSubject+"."+c.instance, func(m *nats.Msg) {
			var d bctlv1.Drain
			if unmarshal(m.Data, &d) == nil {
				a.Drain(d.GetUndo(), cut(text(d.GetBy()), maxWorkerBytes))
				loop.Wake(asked) // the operator waits for the result
			}
		})()
	}
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			c.announce(a.Describe(), true)
			return
		case <-asked:
			c.announce(a.Describe(), false)
		case <-a.Changed:
			c.announce(a.Describe(), false)
		case <-next.C:
			next.Reset(c.announceUnasked(ctx, a.Describe()))
		}
	}
}

// FollowWorkers calls heard with each description that a walker or a reader publishes of itself,
// until stop is called. It asks all of them for theirs first.
func (c *Conn) FollowWorkers(heard func(i Instance, stops bool)) (stop func()) {
	stop = c.listen(serviceSubject+".>", func(m *nats.Msg) {
		if _, i, stops, err := heardService(m, time.Now()); err == nil && i.Worker() {
			heard(i, stops)
		}
	})
	// If it is lost, all services announce themselves before long.
	_ = c.nc.PublishMsg(c.message(askSubject, nil))
	return stop
}

// announceUnasked announces, and returns the time until the next announcement.
func (c *Conn) announceUnasked(ctx context.Context, i Instance) time.Duration {
	c.announce(i, false)
	ctx, cancel := context.WithTimeout(ctx, announceWait)
	defer cancel()
	if errors.Is(c.checkAllowed(ctx, serviceSubjectOf(i.Role, i.Site)), ErrDenied) {
		return refusedEvery
	}
	return announceEvery
}

// announce ignores errors: the next announcement repeats the description.
func (c *Conn) announce(i Instance, stops bool) {
	if !c.nc.IsConnected() {
		return // a description is soon out of date
	}
	i.ID = c.instance
	m := serviceToWire(&i)
	m.Stops = stops
	data, err := marshal(m)
	for err == nil && len(data) > maxServiceBytes && len(m.Reading) > 0 { // progress is only informative
		m.Reading = m.Reading[:len(m.Reading)/2]
		data, err = marshal(m)
	}
	if err == nil {
		_ = c.nc.PublishMsg(c.message(serviceSubjectOf(i.Role, i.Site), data))
	}
}

// message returns a message that is not stored, with a header that names the repository.
func (c *Conn) message(subject string, data []byte) *nats.Msg {
	return &nats.Msg{Subject: subject, Data: data, Header: c.opts.addRepository(nil)}
}

// listen calls fn with each message of this repository until stop is called.
func (c *Conn) listen(subject string, fn func(*nats.Msg)) (stop func()) {
	sub, err := c.nc.Subscribe(subject, func(m *nats.Msg) {
		if c.opts.checkRepository(m.Header) == nil {
			fn(m)
		}
	})
	if err != nil { // the connection is closed
		return func() {}
	}
	return func() { _ = sub.Unsubscribe() }
}

// collect sends the messages of several subjects to a channel until stop is called.
func (c *Conn) collect(to chan *nats.Msg, subjects ...string) (stop func(), err error) {
	var subs []*nats.Subscription
	stop = func() {
		for _, sub := range subs {
			_ = sub.Unsubscribe()
		}
	}
	for _, subject := range subjects {
		sub, err := c.nc.ChanSubscribe(subject, to)
		if err != nil {
			stop()
			return nil, fmt.Errorf("nats %s: subscribe to %s: %w: %w", c.opts.URL, subject, err, backup.NATSAway)
		}
		subs = append(subs, sub)
	}
	return stop, nil
}

// drainAgain is the interval at which a request is repeated until the worker answers.
const drainAgain = 500 * time.Millisecond

// Drain asks a worker to take no new work or, with undo, to take work again, and returns the
// description that the worker gives of itself afterwards. It fails with backup.ErrNotFound if the
// worker has gone, with ErrDenied if this client may not drain, and otherwise with
// backup.ErrUnavailable.
func (c *Conn) Drain(ctx context.Context, worker *Instance, undo bool, by string) (Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, drainWait)
	defer cancel()
	heard, inbox := make(chan *nats.Msg, 64), c.nc.NewInbox()
	subject, answers := drainSubject+"."+worker.ID, serviceSubjectOf(worker.Role, worker.Site)
	stop, err := c.collect(heard, answers, inbox)
	if err != nil {
		return Instance{}, err
	}
	defer stop()
	data, err := marshal(&bctlv1.Drain{Undo: undo, By: cut(text(by), maxWorkerBytes)})
	if err != nil {
		return Instance{}, err
	}
	again := time.NewTicker(drainAgain)
	defer again.Stop()
	for {
		m := c.message(subject, data)
		m.Reply = inbox
		if err := c.nc.PublishMsg(m); err != nil {
			return Instance{}, fmt.Errorf("nats %s: %w: %w", c.opts.URL, err, backup.NATSAway)
		}
		if err := c.checkAllowed(ctx, subject, answers); err != nil {
			return Instance{}, err
		}
		if i, done, err := c.drained(heard, inbox, worker, !undo, again.C); done || err != nil {
			return i, err
		}
		if ctx.Err() != nil {
			return Instance{}, fmt.Errorf("%s %s does not answer: %w", worker.Role, worker.Name, backup.ErrUnavailable)
		}
	}
}

// drainWait is how long a worker may take to answer.
const drainWait = 5 * time.Second

// drained waits until the worker reports the wanted state, or until the request is to be repeated.
func (c *Conn) drained(heard <-chan *nats.Msg, inbox string, worker *Instance, want bool, again <-chan time.Time) (i Instance, done bool, err error) {
	for {
		select {
		case m := <-heard:
			if m.Subject == inbox {
				if m.Header.Get("Status") == noResponders {
					return Instance{}, false, fmt.Errorf("%s %s no longer runs: %w", worker.Role, worker.Name, backup.ErrNotFound)
				}
				continue
			}
			said, i, err := decodeService(m.Data)
			if err == nil && c.opts.checkRepository(m.Header) == nil && i.ID == worker.ID && i.Draining == want && !said.GetStops() {
				i.Role, i.Site, i.Heard = worker.Role, worker.Site, time.Now()
				return i, true, nil
			}
		case <-again:
			return Instance{}, false, nil
		}
	}
}

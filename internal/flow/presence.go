package flow

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/bctl/bctl/internal/backup"
)

// A worker's process is present at NATS: it subscribes to a subject that contains its instance, a
// name that no other process has. When the process dies, its operating system ends the connection,
// and the server knows at once that the subject has no subscriber. Only questions are sent over the
// subject, and no process answers them: the server itself replies if there is no subscriber.

// bePresent makes this process present until gone is called.
func (c *Conn) bePresent() (gone func()) {
	sub, err := c.nc.Subscribe(presentSubject+"."+c.instance, func(*nats.Msg) {})
	if err != nil { // the connection is closed
		return func() {}
	}
	return func() { _ = sub.Unsubscribe() }
}

// Holder returns a name that no other process has, by which the index knows this one as a leader.
// It contains the instance, so that other processes can see whether this one is present.
func (c *Conn) Holder(worker string) string {
	return worker + "-" + rand.Text()[:8] + "-" + c.instance
}

// InstanceOf returns the instance of a process with a name that Holder has made; "" if the name has
// none.
func InstanceOf(holder string) string {
	instance := holder[strings.LastIndexByte(holder, '-')+1:]
	if !isInstance(instance) {
		return ""
	}
	return instance
}

// WorkerOf returns the worker in a name that Holder has made, or the name itself.
func WorkerOf(holder string) string {
	before, instance := strings.LastIndexByte(holder, '-'), InstanceOf(holder)
	if before < 0 || instance == "" {
		return holder
	}
	if at := strings.LastIndexByte(holder[:before], '-'); at >= 0 {
		return holder[:at]
	}
	return holder
}

// maxInstanceBytes is the maximum length of an instance's name.
const maxInstanceBytes = 64

// isInstance reports whether a name is empty or a valid instance name: one token of a subject,
// without wildcards.
func isInstance(name string) bool {
	for _, r := range name {
		if (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return false
		}
	}
	return len(name) <= maxInstanceBytes
}

// Absent returns the instances that are not connected to NATS, as seen by the server that this
// process is connected to. It fails with backup.ErrUnavailable while that is not conclusive: while
// this process is not connected, and for a while after it has reconnected, because the
// interruption may have affected other processes, which are still reconnecting.
func (c *Conn) Absent(ctx context.Context, instances []string) (absent map[string]bool, err error) {
	if !c.steady.check(c.nc, time.Now()) {
		return nil, fmt.Errorf("nats %s: connected for too short a time to know which services run: %w", c.opts.URL, backup.ErrUnavailable)
	}
	if len(instances) == 0 {
		return nil, nil
	}
	inbox := c.nc.NewInbox()
	replies := make(chan *nats.Msg, len(instances))
	sub, err := c.nc.ChanSubscribe(inbox+".*", replies)
	if err == nil {
		defer func() { err = errors.Join(err, sub.Unsubscribe()) }()
		err = c.ask(ctx, instances, inbox)
	}
	if err == nil && !c.steady.check(c.nc, time.Now()) {
		err = errors.New("connected again meanwhile")
	}
	if err != nil {
		return nil, fmt.Errorf("nats %s: query connected services: %w: %w", c.opts.URL, err, backup.ErrUnavailable)
	}
	absent = map[string]bool{}
	for {
		select {
		case reply := <-replies:
			at, err := strconv.Atoi(reply.Subject[len(inbox)+1:])
			if err == nil && at >= 0 && at < len(instances) && reply.Header.Get("Status") == noResponders {
				absent[instances[at]] = true
			}
		default:
			return absent, nil
		}
	}
}

const noResponders = "503"

// ask sends the questions and waits until the server has received them all. The server replies to a
// question, if at all, before it answers the ping.
func (c *Conn) ask(ctx context.Context, instances []string, inbox string) error {
	for i, instance := range instances {
		if err := c.nc.PublishRequest(presentSubject+"."+instance, inbox+"."+strconv.Itoa(i), nil); err != nil {
			return err
		}
	}
	return c.nc.FlushWithContext(ctx)
}

// steadyFor is how long others have to reconnect once this process has: clients try every 250 ms
// and, with TLS, add up to a second of random delay.
const steadyFor = 5 * time.Second

// A steady tracks how long a connection has been uninterrupted.
type steady struct {
	wait time.Duration // steadyFor; shorter in tests

	mu         sync.Mutex
	since      time.Time // zero: it is interrupted
	reconnects uint64
}

// check reports whether the connection is open, and has been for long enough.
func (s *steady) check(nc *nats.Conn, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := nc.Stats().Reconnects
	switch {
	case !nc.IsConnected():
		s.since = time.Time{}
	case s.since.IsZero() || n != s.reconnects:
		s.since = now
	}
	s.reconnects = n
	return !s.since.IsZero() && now.Sub(s.since) >= s.wait
}

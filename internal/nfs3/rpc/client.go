package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// Options describe a Client. The zero value of a field is its default.
type Options struct {
	Address     string // host:port
	Program     Program
	Credentials Credentials
	Connections int           // 1 to MaxConnections; default 1
	From        Ports         // the ports of this machine to connect from
	Timeout     time.Duration // for one try of a call; default DefaultTimeout
	RetryFor    time.Duration // until a call without an answer fails; default DefaultRetryFor
}

// Ports are ports of this machine. Many servers accept only connections from a reserved port, below
// 1024, which a process may use as root or with CAP_NET_BIND_SERVICE.
type Ports int

// The ports to connect from.
const (
	AnyPort         Ports = iota
	PreferReserved        // any port, if this process may not use a reserved one
	RequireReserved       // fail, if this process may not use a reserved one
)

// Defaults and limits of Options.
const (
	DefaultTimeout  = 15 * time.Second
	DefaultRetryFor = time.Minute
	MaxConnections  = 16
)

const (
	minBackOff = 50 * time.Millisecond
	maxBackOff = 5 * time.Second
	// headerBytes is room for the header of a reply: its longest form, with a verifier.
	headerBytes = 24 + maxAuthBytes
)

// A Client calls the procedures of one program. It may be used concurrently.
type Client struct {
	options Options
	slots   []slot
	xid     atomic.Uint32
	calls   atomic.Int64
	running sync.WaitGroup  // of connections
	open    context.Context // done when the Client is closed
	close   context.CancelFunc
}

// A slot is the place of one connection.
type slot struct {
	live     atomic.Pointer[conn]
	dialing  chan struct{} // holds a token while a connection is made; the fields below belong to its owner
	failures int
	retryAt  time.Time
}

// New returns a Client. It connects at the first call.
func New(o Options) *Client {
	o.Connections = min(max(o.Connections, 1), MaxConnections)
	o.Timeout = cmp.Or(max(o.Timeout, 0), DefaultTimeout)
	o.RetryFor = cmp.Or(max(o.RetryFor, 0), DefaultRetryFor)
	c := &Client{options: o, slots: make([]slot, o.Connections)}
	c.open, c.close = context.WithCancel(context.Background())
	for i := range c.slots {
		c.slots[i].dialing = make(chan struct{}, 1)
	}
	c.xid.Store(rand.Uint32())
	return c
}

// Calls returns the number of calls so far. A call that was sent several times counts once.
func (c *Client) Calls() int64 { return c.calls.Load() }

// Close closes all connections. Calls in flight fail with ErrClosed. A second call does nothing.
func (c *Client) Close() error {
	c.close()
	for i := range c.slots {
		s := &c.slots[i]
		s.dialing <- struct{}{} // nobody connects now, and who comes later finds the client closed
		if live := s.live.Load(); live != nil {
			live.fail(ErrClosed)
		}
		<-s.dialing
	}
	c.running.Wait()
	return nil
}

// Call calls a procedure. encode appends its arguments, and decode reads its results, of at most
// maxBytes; what decode gets must not be kept. sentAgain reports that the call was sent more than
// once. Errors wrap ErrNoAnswer, ErrClosed, ErrTooLarge, xdr.ErrMalformed, the error of ctx, or are
// those of decode or a RejectedError.
func (c *Client) Call(ctx context.Context, procedure uint32, maxBytes int, encode func([]byte) []byte, decode func(*xdr.Decoder) error) (sentAgain bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	const typicalBytes = 256
	r := &request{xid: c.xid.Add(1), limit: maxBytes + headerBytes, replies: make(chan reply, 1)}
	r.message = appendCall(make([]byte, markBytes, typicalBytes), r.xid, c.options.Program, procedure, c.options.Credentials)
	r.message = encode(r.message)
	setMark(r.message)
	n := c.calls.Add(1)
	s := &c.slots[int(uint64(n)%uint64(len(c.slots)))]
	got, sentAgain, err := c.deliver(ctx, s, r)
	if err != nil {
		return sentAgain, err
	}
	defer release(got.buf)
	if got.err != nil {
		return sentAgain, got.err
	}
	d := xdr.NewDecoder(*got.buf)
	if err := decodeReply(d); err != nil {
		return sentAgain, err
	}
	return sentAgain, decode(d)
}

// deliver sends a request until it is answered.
func (c *Client) deliver(ctx context.Context, s *slot, r *request) (got reply, sentAgain bool, err error) {
	began := time.Now()
	if live := s.live.Load(); live != nil {
		if got, err = live.roundTrip(ctx, r); err == nil || ctx.Err() != nil {
			return got, false, err
		}
	}
	patience, cancel := context.WithDeadlineCause(ctx, began.Add(c.options.RetryFor), ErrNoAnswer)
	defer cancel()
	for {
		last := err
		var live *conn
		if live, err = c.connect(patience, s); err == nil {
			sentAgain = sentAgain || r.sent.Load()
			if got, err = live.roundTrip(patience, r); err == nil {
				return got, sentAgain, nil
			}
		}
		switch {
		case c.open.Err() != nil:
			return reply{}, sentAgain, ErrClosed
		case ctx.Err() != nil:
			return reply{}, sentAgain, ctx.Err()
		case patience.Err() != nil:
			if last == nil || errors.Is(last, errStalled) {
				return reply{}, sentAgain, fmt.Errorf("%s: %w", c.options.Address, ErrNoAnswer)
			}
			return reply{}, sentAgain, fmt.Errorf("%s: %w: %w", c.options.Address, ErrNoAnswer, last)
		case isFinal(err):
			return reply{}, sentAgain, err
		}
	}
}

// isFinal reports that another try to connect would not help: this process may not use a reserved
// port, or no host has the name.
func isFinal(err error) bool {
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && dns.IsNotFound || errors.Is(err, fs.ErrPermission)
}

// connect returns the connection of a slot, and makes it if there is none. Failures are followed by
// pauses, which all calls share.
func (c *Client) connect(ctx context.Context, s *slot) (*conn, error) {
	select {
	case s.dialing <- struct{}{}:
		defer func() { <-s.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if live := s.live.Load(); live != nil {
		if !live.isDead() {
			return live, nil
		}
		if s.live.Store(nil); live.heard.Load() != 0 {
			s.failures = 0
		}
	}
	if err := c.pause(ctx, time.Until(s.retryAt)); err != nil {
		return nil, err
	}
	// A connection that ends before it delivers a reply is a failure too.
	s.failures++
	s.retryAt = time.Now().Add(BackOff(s.failures, minBackOff, maxBackOff))
	dialing, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	defer context.AfterFunc(c.open, cancel)()
	nc, err := dial(dialing, c.options.Address, c.options.From)
	if err != nil {
		return nil, err
	}
	live := newConn(nc, c.options.Timeout, &c.running)
	s.live.Store(live)
	return live, nil
}

// pause waits. It fails if the Client is closed.
func (c *Client) pause(ctx context.Context, wait time.Duration) error {
	if c.open.Err() != nil {
		return ErrClosed
	}
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.open.Done():
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// BackOff returns the pause after a number of failures in a row: it doubles from least to most, and
// is shortened at random by up to a half, so that clients do not come at the same time.
func BackOff(failures int, least, most time.Duration) time.Duration {
	pause := most
	if shift := failures - 1; shift < 30 {
		pause = min(least<<max(shift, 0), most)
	}
	return pause/2 + rand.N(pause/2+1)
}

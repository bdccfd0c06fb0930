package rpc

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// queueLen bounds the requests that wait to be written to a connection. A call that finds the
	// queue full waits.
	queueLen = 64
	// maxUnknownBytes bounds a reply with an unknown xid. It is the reply to a call that was given
	// up, so it may be as large as any.
	maxUnknownBytes = 64 << 20
	readBufferBytes = 64 << 10
	// maxPooledBytes bounds the buffers of replies that are used again.
	maxPooledBytes = 2 << 20
)

// buffers are the buffers of replies.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// A request is one call, which may be sent several times.
type request struct {
	xid     uint32
	message []byte // with its mark. It never changes: a writer may use it after the call has ended
	limit   int    // of the reply, in bytes
	sent    atomic.Bool
	replies chan reply // holds one
}

type reply struct {
	buf *[]byte // without the xid; the receiver puts it back into buffers
	err error
}

// A conn is one connection. It is used until it fails.
type conn struct {
	nc      net.Conn
	timeout time.Duration
	queue   chan *request
	dead    chan struct{} // closed when the connection has failed
	heard   atomic.Int64  // when the last reply came, in nanoseconds since epoch

	mu      sync.Mutex
	err     error // why it failed
	pending map[uint32]*request
}

// epoch is the origin of monotonic times.
var epoch = time.Now()

// newConn starts the two goroutines of a connection, which fail ends.
func newConn(nc net.Conn, timeout time.Duration, running *sync.WaitGroup) *conn {
	c := &conn{nc: nc, timeout: timeout, queue: make(chan *request, queueLen), dead: make(chan struct{}), pending: map[uint32]*request{}}
	running.Go(func() { c.fail(c.write()) })
	running.Go(func() { c.fail(c.read()) })
	return c
}

// fail closes the connection. Calls on it are sent again on another one.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	c.nc.Close()
	close(c.dead)
}

func (c *conn) isDead() bool {
	select {
	case <-c.dead:
		return true
	default:
		return false
	}
}

func (c *conn) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// roundTrip sends a request and waits for its reply. With an error other than ctx's and the
// reply's own, the request may be sent again.
func (c *conn) roundTrip(ctx context.Context, r *request) (reply, error) {
	c.mu.Lock()
	c.pending[r.xid] = r
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, r.xid)
		c.mu.Unlock()
	}()
	began := time.Since(epoch)
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	queue := c.queue
	for {
		select {
		case queue <- r:
			queue = nil
		case got := <-r.replies:
			return got, nil
		case <-c.dead:
			select {
			case got := <-r.replies:
				return got, nil
			default:
				return reply{}, c.failure()
			}
		case <-ctx.Done():
			return reply{}, context.Cause(ctx)
		case <-timer.C:
			if c.heard.Load() < int64(began) {
				c.fail(errStalled)
			}
			return reply{}, errStalled
		}
	}
}

// write writes requests, as many at once as wait.
func (c *conn) write() error {
	var batch net.Buffers
	for {
		select {
		case <-c.dead:
			return nil
		case r := <-c.queue:
			batch = append(batch[:0], r.message)
			r.sent.Store(true)
		}
		for more := true; more && len(batch) < queueLen; {
			select {
			case r := <-c.queue:
				batch = append(batch, r.message)
				r.sent.Store(true)
			default:
				more = false
			}
		}
		if err := c.nc.SetWriteDeadline(time.Now().Add(c.timeout)); err != nil {
			return err
		}
		writing := batch // WriteTo consumes it
		if _, err := writing.WriteTo(c.nc); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		clear(batch)
	}
}

// read reads replies and gives each to the call that waits for it.
func (c *conn) read() error {
	from := bufio.NewReaderSize(c.nc, readBufferBytes)
	for {
		if from.Buffered() == 0 { // there is no limit to the time between two replies
			if err := c.nc.SetReadDeadline(time.Time{}); err != nil {
				return err
			}
			if _, err := from.Peek(1); err != nil {
				return fmt.Errorf("receive: %w", err)
			}
		}
		if err := c.nc.SetReadDeadline(time.Now().Add(c.timeout)); err != nil {
			return err
		}
		if err := c.readReply(from); err != nil {
			return fmt.Errorf("receive: %w", err)
		}
	}
}

func (c *conn) readReply(from *bufio.Reader) error {
	record := &record{from: from}
	var xid [4]byte
	if _, err := io.ReadFull(record, xid[:]); err != nil {
		return err
	}
	r := c.take(binary.BigEndian.Uint32(xid[:]))
	if r == nil {
		return record.discard(maxUnknownBytes)
	}
	buf := buffers.Get().(*[]byte)
	var err error
	*buf, err = record.readAll((*buf)[:0], r.limit)
	if err != nil && err != ErrTooLarge { //nolint:errorlint // readAll does not wrap it
		release(buf)
		return err // the request is sent again
	}
	c.heard.Store(max(int64(time.Since(epoch)), 1))
	got := reply{buf: buf, err: err}
	select {
	case r.replies <- got:
	default: // it has one already, from another connection
		release(buf)
	}
	return err
}

// take returns the request with an xid, and forgets it.
func (c *conn) take(xid uint32) *request {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.pending[xid]
	delete(c.pending, xid)
	return r
}

func release(buf *[]byte) {
	if cap(*buf) <= maxPooledBytes {
		buffers.Put(buf)
	}
}

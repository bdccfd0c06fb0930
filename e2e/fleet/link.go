package fleet

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// A Link is the network between one process and one server: a TCP proxy that
// forwards bytes, and that a test can cut. It knows nothing of what it carries.
type Link struct {
	Address string // where the process dials, host:port
	to      string

	done  chan struct{} // closed when the test ends
	owned sync.WaitGroup

	mu    sync.Mutex
	whole chan struct{} // closed unless the link is cut
	delay time.Duration
	conns map[net.Conn]struct{}
}

// newLink returns a whole link to a server, for as long as the test runs.
func newLink(t testing.TB, to string) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{
		Address: listener.Addr().String(), to: to,
		done: make(chan struct{}), whole: make(chan struct{}), conns: map[net.Conn]struct{}{},
	}
	close(l.whole)
	l.owned.Go(func() { l.accept(listener) })
	t.Cleanup(func() {
		close(l.done)
		_ = listener.Close() // which ends accept
		l.mu.Lock()
		for conn := range l.conns {
			_ = conn.Close()
		}
		l.mu.Unlock()
		l.owned.Wait()
	})
	return l
}

// Cut makes a partition: from now on nothing arrives on either side, not even over new connections,
// and no side gets an error. Data that was sent arrives after Heal if anybody still waits for it.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.whole) {
		l.whole = make(chan struct{})
	}
}

// Heal ends Cut and Slow.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = 0
	if !isClosed(l.whole) {
		close(l.whole)
	}
}

// Slow delays each piece of data, of up to 32 KiB, in each direction.
func (l *Link) Slow(delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = delay
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// pass waits until the link lets something through; false: the test ends.
func (l *Link) pass() bool {
	l.mu.Lock()
	whole, delay := l.whole, l.delay
	l.mu.Unlock()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.done:
			return false
		}
	}
	select {
	case <-whole:
		return true
	case <-l.done:
		return false
	}
}

func (l *Link) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // closed; a listener on loopback fails no other way
		}
		if l.keep(conn) {
			l.owned.Go(func() { l.serve(conn) })
		}
	}
}

// keep notes a connection, to be closed when the test ends; false: it has.
func (l *Link) keep(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.done) {
		_ = conn.Close()
		return false
	}
	l.conns[conn] = struct{}{}
	return true
}

func (l *Link) drop(conn net.Conn) {
	_ = conn.Close()
	l.mu.Lock()
	delete(l.conns, conn)
	l.mu.Unlock()
}

func (l *Link) serve(client net.Conn) {
	defer l.drop(client)
	if !l.pass() {
		return
	}
	server, err := net.Dial("tcp", l.to)
	if err != nil || !l.keep(server) {
		return // the server is down: the client sees its connection end
	}
	defer l.drop(server)
	var pumps sync.WaitGroup
	pumps.Go(func() { l.pump(server, client) })
	pumps.Go(func() { l.pump(client, server) })
	pumps.Wait()
}

// pump forwards one direction, and its end.
func (l *Link) pump(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !l.pass() {
			return
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				_ = from.Close() // so that who sends finds out
				return
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = to.(*net.TCPConn).CloseWrite() // the other direction may go on
			return
		case err != nil:
			_ = to.Close()
			return
		}
	}
}

// Links are a service's to one kind of server: one, or one to each node of a cluster.
type Links []*Link

// Cut cuts all of them.
func (s Links) Cut() {
	for _, l := range s {
		l.Cut()
	}
}

// Heal heals all of them.
func (s Links) Heal() {
	for _, l := range s {
		l.Heal()
	}
}

// Slow makes all of them slow.
func (s Links) Slow(delay time.Duration) {
	for _, l := range s {
		l.Slow(delay)
	}
}

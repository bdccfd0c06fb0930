// Package rpctest is an RPC server for tests. It executes calls with a function of the test, and
// can spoil what it answers in all ways in which servers and networks do.
package rpctest

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/bctl/bctl/internal/nfs3/rpc"
	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// A Call is a call that the server has received.
type Call struct {
	XID         uint32
	Program     rpc.Program
	Procedure   uint32
	Credentials []byte // the body; the flavor is in Flavor
	Flavor      uint32
	Connection  int // the first is 1
	Number      int // of this call among all that were received; the first is 1
	Args        []byte
}

// A Handler executes a call and returns the encoded results.
type Handler func(c *Call) []byte

// A Fault sends the answer to a call, which begins with the xid and has no record mark, in its own
// way. With an error, the connection is closed.
type Fault func(to *net.TCPConn, answer []byte) error

// A Server serves until the test ends.
type Server struct {
	handle Handler

	mu          sync.Mutex
	before      func(c *Call) Fault
	listener    net.Listener
	address     string
	conns       map[net.Conn]bool
	received    int
	connections int
	running     sync.WaitGroup
}

// Serve starts a server.
func Serve(t testing.TB, handle Handler) *Server {
	t.Helper()
	s := &Server{handle: handle, conns: map[net.Conn]bool{}}
	s.listen(t, "127.0.0.1:0")
	t.Cleanup(s.Stop)
	return s
}

func (s *Server) listen(t testing.TB, address string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.listener, s.address = l, l.Addr().String()
	s.mu.Unlock()
	s.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.connections++
			number := s.connections
			s.conns[conn] = true
			s.mu.Unlock()
			s.running.Go(func() { s.serve(conn.(*net.TCPConn), number) })
		}
	})
}

// Address returns the host and port of the server.
func (s *Server) Address() string { return s.address }

// Spoil sets a function that decides how each call is answered. nil is the right way, and so is a
// nil Fault. A call is executed in any case, except for Ignored.
func (s *Server) Spoil(before func(c *Call) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

// Counts returns how many calls and connections the server has seen.
func (s *Server) Counts() (calls, connections int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received, s.connections
}

// Stop ends the server. Start may start it again, at the same address.
func (s *Server) Stop() {
	s.mu.Lock()
	s.listener.Close()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
}

// Start starts a server that was stopped.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	s.listen(t, s.address)
}

func (s *Server) serve(conn *net.TCPConn, number int) {
	defer func() {
		conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	from := bufio.NewReader(conn)
	for {
		message, err := readRecord(from)
		if err != nil {
			return
		}
		c, err := decodeCall(message)
		if err != nil {
			return
		}
		c.Connection = number
		s.mu.Lock()
		s.received++
		c.Number = s.received
		var fault Fault
		if s.before != nil {
			fault = s.before(c)
		}
		s.mu.Unlock()
		answer := accepted(c.XID, s.handle(c))
		if fault == nil {
			fault = Right
		}
		if fault(conn, answer) != nil {
			return
		}
	}
}

// readRecord reads a record of any number of fragments.
func readRecord(from io.Reader) (message []byte, err error) {
	for last := false; !last; {
		var mark [4]byte
		if _, err := io.ReadFull(from, mark[:]); err != nil {
			return nil, err
		}
		n := binary.BigEndian.Uint32(mark[:])
		last = n>>31 == 1
		part := make([]byte, n&^(1<<31))
		if _, err := io.ReadFull(from, part); err != nil {
			return nil, err
		}
		message = append(message, part...)
	}
	return message, nil
}

func decodeCall(message []byte) (*Call, error) {
	d := xdr.NewDecoder(message)
	c := &Call{XID: d.Uint32()}
	if kind, version := d.Uint32(), d.Uint32(); kind != 0 || version != 2 {
		return nil, fmt.Errorf("message type %d, version %d", kind, version)
	}
	c.Program = rpc.Program{Number: d.Uint32(), Version: d.Uint32()}
	c.Procedure = d.Uint32()
	c.Flavor = d.Uint32()
	c.Credentials = d.Opaque(400)
	d.Uint32()
	d.Opaque(400)
	c.Args = d.Fixed(d.Len())
	return c, d.Err()
}

// accepted is the answer to a call that was executed.
func accepted(xid uint32, results []byte) []byte {
	b := xdr.AppendUint32(nil, xid)
	b = append(b, make([]byte, 20)...)
	binary.BigEndian.PutUint32(b[4:], 1)
	return append(b, results...)
}

// ClientPorts returns the ports of the connected clients.
func (s *Server) ClientPorts() (ports []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		ports = append(ports, c.RemoteAddr().(*net.TCPAddr).Port)
	}
	return ports
}

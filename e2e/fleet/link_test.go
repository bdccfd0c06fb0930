package fleet

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echo answers each line with the same.
func echo(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
	return listener.Addr().String()
}

// A caller talks to an echo over a link.
type caller struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func call(t *testing.T, l *Link) *caller {
	conn, err := net.Dial("tcp", l.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &caller{t, conn, bufio.NewReader(conn)}
}

func (c *caller) say(line string) {
	c.t.Helper()
	if _, err := c.conn.Write([]byte(line + "\n")); err != nil {
		c.t.Fatal(err)
	}
}

func (c *caller) hear(line string) {
	c.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(time.Minute))
	if got, err := c.in.ReadString('\n'); err != nil || got != line+"\n" {
		c.t.Fatalf("heard %q, %v; want %q", got, err, line)
	}
}

func (c *caller) hearNothing() {
	c.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if got, err := c.in.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("heard %q, %v over a link that is cut", got, err)
	}
}

func TestCutHoldsBackUntilHealed(t *testing.T) {
	l := newLink(t, echo(t))
	before := call(t, l)
	before.say("one")
	before.hear("one")
	l.Cut()
	during := call(t, l) // a partition does not refuse
	before.say("two")
	during.say("three")
	before.hearNothing()
	during.hearNothing()
	l.Heal()
	before.hear("two")
	during.hear("three")
}

func TestEndOfEitherSideIsForwarded(t *testing.T) {
	l := newLink(t, echo(t))
	c := call(t, l)
	c.say("last")
	if err := c.conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	c.hear("last")
	if _, err := c.in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

func TestServerThatIsDownEndsConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	c := call(t, newLink(t, listener.Addr().String()))
	c.conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := c.in.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
}

func TestSlowDelaysEachWay(t *testing.T) {
	l := newLink(t, echo(t))
	c := call(t, l)
	l.Slow(20 * time.Millisecond)
	started := time.Now()
	c.say("there and back")
	c.hear("there and back")
	if took := time.Since(started); took < 40*time.Millisecond {
		t.Errorf("it took %v", took)
	}
}

package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/nfs3/rpc"
	"github.com/bctl/bctl/internal/nfs3/rpc/rpctest"
	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// echo answers with the arguments.
func echo(c *rpctest.Call) []byte { return c.Args }

var program = rpc.Program{Number: 400_000, Version: 1}

// newClient has times that a test can wait for.
func newClient(t *testing.T, s *rpctest.Server, change func(o *rpc.Options)) *rpc.Client {
	t.Helper()
	o := rpc.Options{Address: s.Address(), Program: program, Timeout: 200 * time.Millisecond, RetryFor: 20 * time.Second}
	if change != nil {
		change(&o)
	}
	c := rpc.New(o)
	t.Cleanup(func() { c.Close() })
	return c
}

const maxBytes = 1 << 10

// call sends a text and returns what comes back.
func call(ctx context.Context, c *rpc.Client, text string) (back string, sentAgain bool, err error) {
	sentAgain, err = c.Call(ctx, 7, maxBytes, func(b []byte) []byte { return xdr.AppendOpaque(b, text) }, func(d *xdr.Decoder) error {
		back = string(d.Opaque(maxBytes))
		return d.Err()
	})
	return back, sentAgain, err
}

func TestCalls(t *testing.T) {
	s := rpctest.Serve(t, echo)
	c := newClient(t, s, func(o *rpc.Options) { o.Connections = 3; o.Timeout = 0 })
	var calls sync.WaitGroup
	for i := range 300 {
		calls.Go(func() {
			if got, again, err := call(t.Context(), c, fmt.Sprint("call ", i)); got != fmt.Sprint("call ", i) || again || err != nil {
				t.Errorf("call %d: %q, sent again %v, error %v", i, got, again, err)
			}
		})
	}
	calls.Wait()
	if calls, connections := s.Counts(); calls != 300 || connections != 3 || c.Calls() != 300 {
		t.Errorf("%d calls over %d connections, and the client counts %d; want 300 over 3", calls, connections, c.Calls())
	}
}

// After every fault of one answer, the call succeeds, and so does every other one.
func TestFaults(t *testing.T) {
	for name, test := range map[string]struct {
		fault     rpctest.Fault
		sentAgain bool
	}{
		"dropped":       {rpctest.Dropped, true},
		"reset":         {rpctest.Reset, true},
		"cut":           {rpctest.Cut, true},
		"twice":         {rpctest.Twice, false},
		"wrong xids":    {rpctest.WrongXIDs, false},
		"one byte each": {rpctest.Fragmented(1), false},
		"fragments":     {rpctest.Fragmented(7), false},
		"slow loris":    {rpctest.Begun, true},
		"empty":         {rpctest.EmptyFragments, true},
		"other xids":    {rpctest.OnlyWrongXIDs, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := rpctest.Serve(t, echo)
			c := newClient(t, s, nil)
			xids := map[string][]uint32{}
			s.Spoil(func(c *rpctest.Call) rpctest.Fault {
				xids[string(c.Args)] = append(xids[string(c.Args)], c.XID)
				if c.Number%2 == 1 {
					return test.fault
				}
				return nil
			})
			for i := range 4 {
				text := fmt.Sprint("call ", i)
				got, again, err := call(t.Context(), c, text)
				if got != text || again != test.sentAgain || err != nil {
					t.Errorf("call %d: %q, sent again %v, error %v", i, got, again, err)
				}
			}
			for args, ids := range xids {
				if ids[0] != ids[len(ids)-1] {
					t.Errorf("%q was sent with the xids %d", args, ids)
				}
			}
		})
	}
}

// Whatever a server answers, the call fails with the right error, and the next one succeeds.
func TestWrongAnswers(t *testing.T) {
	reply := func(words ...uint32) rpctest.Fault {
		b := xdr.AppendUint32(nil, 1)
		for _, w := range words {
			b = xdr.AppendUint32(b, w)
		}
		return rpctest.Replaced(b)
	}
	rejected := func(reason rpc.Reason) func(err error) bool {
		return func(err error) bool {
			e, ok := errors.AsType[*rpc.RejectedError](err)
			return ok && e.Reason == reason && e.Error() != "" && errors.Is(err, fs.ErrPermission) == (reason == rpc.BadCredentials)
		}
	}
	is := func(want error) func(err error) bool { return func(err error) bool { return errors.Is(err, want) } }
	for name, test := range map[string]struct {
		fault rpctest.Fault
		want  func(err error) bool
	}{
		"no program":       {reply(0, 0, 0, 1), rejected(rpc.NoProgram)},
		"other versions":   {reply(0, 0, 0, 2, 3, 4), rejected(rpc.ProgramMismatch)},
		"no procedure":     {reply(0, 0, 0, 3), rejected(rpc.NoProcedure)},
		"garbage":          {reply(0, 0, 0, 4), rejected(rpc.GarbageArgs)},
		"system":           {reply(0, 0, 0, 5), rejected(rpc.SystemError)},
		"other rpc":        {reply(1, 0, 2, 2), rejected(rpc.VersionMismatch)},
		"credentials":      {reply(1, 1, 1), rejected(rpc.BadCredentials)},
		"too weak":         {reply(1, 1, 5), rejected(rpc.BadCredentials)},
		"accept_stat":      {reply(0, 0, 0, 6), is(xdr.ErrMalformed)},
		"reply_stat":       {reply(2), is(xdr.ErrMalformed)},
		"reject_stat":      {reply(1, 2), is(xdr.ErrMalformed)},
		"a call":           {rpctest.Replaced(make([]byte, 40)), is(xdr.ErrMalformed)},
		"a large verifier": {reply(0, 0, 0xffffffff), is(xdr.ErrMalformed)},
		"nothing":          {rpctest.Truncated(4), is(xdr.ErrMalformed)},
		"half":             {rpctest.Truncated(26), is(xdr.ErrMalformed)},
		"2 GiB":            {rpctest.Oversized, is(rpc.ErrTooLarge)},
		"no end":           {rpctest.Endless, is(rpc.ErrTooLarge)},
		"over the limit":   {rpctest.Replaced(make([]byte, maxBytes+1000)), is(rpc.ErrTooLarge)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := rpctest.Serve(t, echo)
			c := newClient(t, s, nil)
			s.Spoil(func(c *rpctest.Call) rpctest.Fault {
				if c.Number == 1 {
					return test.fault
				}
				return nil
			})
			if got, _, err := call(t.Context(), c, "text"); !test.want(err) {
				t.Errorf("%q, error %v", got, err)
			}
			if got, _, err := call(t.Context(), c, "next"); got != "next" || err != nil {
				t.Errorf("the next call: %q, error %v", got, err)
			}
		})
	}
}

// A header that announces 2 GiB does not allocate them.
func TestAnnouncedBytesAreNotAllocated(t *testing.T) {
	s := rpctest.Serve(t, echo)
	c := newClient(t, s, nil)
	s.Spoil(func(*rpctest.Call) rpctest.Fault { return rpctest.Oversized })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 4 {
		if _, _, err := call(t.Context(), c, "x"); !errors.Is(err, rpc.ErrTooLarge) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if mib := (after.TotalAlloc - before.TotalAlloc) >> 20; mib > 16 {
		t.Errorf("%d MiB were allocated", mib)
	}
}

// A server that does not answer fails a call after its time, and nothing else.
func TestNoAnswer(t *testing.T) {
	for name, spoil := range map[string]rpctest.Fault{"silent": rpctest.Dropped, "resets": rpctest.Reset, "wrong xids": rpctest.OnlyWrongXIDs} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := rpctest.Serve(t, echo)
			c := newClient(t, s, func(o *rpc.Options) { o.Timeout, o.RetryFor = 50*time.Millisecond, 500*time.Millisecond })
			s.Spoil(func(*rpctest.Call) rpctest.Fault { return spoil })
			if _, again, err := call(t.Context(), c, "x"); !errors.Is(err, rpc.ErrNoAnswer) || !again {
				t.Errorf("sent again %v, error %v; want ErrNoAnswer", again, err)
			}
			s.Spoil(nil)
			got, err := "", rpc.ErrNoAnswer
			for errors.Is(err, rpc.ErrNoAnswer) && t.Context().Err() == nil { // a busy machine may not answer in time
				got, _, err = call(t.Context(), c, "x")
			}
			if got != "x" || err != nil {
				t.Errorf("afterwards: %q, error %v", got, err)
			}
		})
	}
	s := rpctest.Serve(t, echo)
	c := newClient(t, s, func(o *rpc.Options) { o.RetryFor = 300 * time.Millisecond })
	s.Stop()
	if _, _, err := call(t.Context(), c, "x"); !errors.Is(err, rpc.ErrNoAnswer) {
		t.Errorf("a server that does not run: error %v, want ErrNoAnswer", err)
	}
}

// Calls wait for a server that restarts.
func TestRestart(t *testing.T) {
	s := rpctest.Serve(t, echo)
	c := newClient(t, s, func(o *rpc.Options) { o.Connections = 2 })
	for round := range 3 {
		var calls sync.WaitGroup
		s.Stop()
		for i := range 20 {
			calls.Go(func() {
				text := fmt.Sprint(round, i)
				if got, _, err := call(t.Context(), c, text); got != text || err != nil {
					t.Errorf("%q, error %v; want %q", got, err, text)
				}
			})
		}
		s.Start(t)
		calls.Wait()
	}
}

func TestCancel(t *testing.T) {
	s := rpctest.Serve(t, echo)
	s.Spoil(func(*rpctest.Call) rpctest.Fault { return rpctest.Dropped })
	c := newClient(t, s, func(o *rpc.Options) { o.Timeout = time.Hour; o.RetryFor = time.Hour })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := call(ctx, c, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want DeadlineExceeded", err)
	}
	if _, _, err := call(ctx, c, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("before the call: error %v, want DeadlineExceeded", err)
	}
	waits := make(chan error, 1)
	before, _ := s.Counts() // the first call may not have come to the server in time
	go func() {
		_, _, err := call(t.Context(), c, "x")
		waits <- err
	}()
	for calls := before; calls == before; calls, _ = s.Counts() {
		runtime.Gosched()
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waits; !errors.Is(err, rpc.ErrClosed) || !errors.Is(err, fs.ErrClosed) {
		t.Errorf("error %v, want ErrClosed", err)
	}
	if _, _, err := call(t.Context(), c, "x"); !errors.Is(err, rpc.ErrClosed) {
		t.Errorf("after Close: error %v, want ErrClosed", err)
	}
}

// A server that reads nothing does not hold a call that is cancelled.
func TestServerThatReadsNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := rpc.New(rpc.Options{Address: l.Addr().String(), Program: program, Timeout: 100 * time.Millisecond, RetryFor: 400 * time.Millisecond})
	defer c.Close()
	large := bytes.Repeat([]byte{1}, 8<<20)
	_, err = c.Call(t.Context(), 1, 0, func(b []byte) []byte { return append(b, large...) }, func(*xdr.Decoder) error { return nil })
	if !errors.Is(err, rpc.ErrNoAnswer) {
		t.Errorf("error %v, want ErrNoAnswer", err)
	}
}

func TestCredentials(t *testing.T) {
	var seen []byte
	s := rpctest.Serve(t, func(c *rpctest.Call) []byte {
		seen = append([]byte{byte(c.Flavor)}, c.Credentials...)
		return c.Args
	})
	groups := make([]uint32, 16)
	credentials, err := rpc.Sys("host", 1000, 100, groups)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := call(t.Context(), newClient(t, s, func(o *rpc.Options) { o.Credentials = credentials }), "x"); err != nil {
		t.Fatal(err)
	}
	want := slices.Concat([]byte{1, 0, 0, 0, 0, 0, 0, 0, 4}, []byte("host"), []byte{0, 0, 3, 232, 0, 0, 0, 100, 0, 0, 0, 16}, make([]byte, 64))
	if !bytes.Equal(seen, want) {
		t.Errorf("credentials %x, want %x", seen, want)
	}
	if _, err := rpc.Sys("host", 0, 0, make([]uint32, 17)); err == nil {
		t.Error("17 groups were taken")
	}
	if _, err := rpc.Sys(string(make([]byte, 256)), 0, 0, nil); err == nil {
		t.Error("a name of 256 bytes was taken")
	}
}

func TestReservedPort(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("reserved ports need root")
	}
	s := rpctest.Serve(t, echo)
	c := newClient(t, s, func(o *rpc.Options) { o.From, o.Connections = rpc.RequireReserved, 4 })
	for range 8 {
		if _, _, err := call(t.Context(), c, "x"); err != nil {
			t.Fatal(err)
		}
	}
	ports := s.ClientPorts()
	if len(ports) != 4 || slices.Max(ports) >= 1024 {
		t.Errorf("the client has the ports %d, want 4 below 1024", ports)
	}
}

func TestUnknownHost(t *testing.T) {
	c := rpc.New(rpc.Options{Address: "no-such-host.invalid:1", Program: program, RetryFor: 5 * time.Second})
	defer c.Close()
	if _, _, err := call(t.Context(), c, "x"); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that there is no host", err)
	}
}

package rpc_test

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/nfs3/rpc"
	"github.com/bctl/bctl/internal/nfs3/rpc/rpctest"
	"github.com/bctl/bctl/internal/nfs3/xdr"
)

func TestPort(t *testing.T) {
	var answer atomic.Uint32
	answer.Store(2049)
	var asked atomic.Value // of []byte
	s := rpctest.Serve(t, func(c *rpctest.Call) []byte {
		asked.Store(bytes.Clone(c.Args))
		return xdr.AppendUint32(nil, answer.Load())
	})
	c := newClient(t, s, nil)
	nfs := rpc.Program{Number: 100003, Version: 3}
	if port, err := rpc.PortFrom(t.Context(), c, nfs); port != 2049 || err != nil {
		t.Errorf("port %d, error %v; want 2049", port, err)
	}
	if want := []byte{0, 1, 0x86, 0xa3, 0, 0, 0, 3, 0, 0, 0, 6, 0, 0, 0, 0}; !bytes.Equal(asked.Load().([]byte), want) {
		t.Errorf("asked for %x, want %x", asked.Load(), want)
	}
	answer.Store(0)
	if _, err := rpc.PortFrom(t.Context(), c, nfs); !errors.Is(err, rpc.ErrNotRegistered) {
		t.Errorf("port 0: error %v, want ErrNotRegistered", err)
	}
	answer.Store(1 << 16)
	if _, err := rpc.PortFrom(t.Context(), c, nfs); !errors.Is(err, xdr.ErrMalformed) {
		t.Errorf("port 65536: error %v, want ErrMalformed", err)
	}
}

func TestBackOff(t *testing.T) {
	for failures, most := range map[int]time.Duration{0: 1000, 1: 1000, 2: 2000, 3: 4000, 5: 16_000, 8: 100_000, 1000: 100_000} {
		for range 50 {
			if got := rpc.BackOff(failures, 1000, 100_000); got < most/2 || got > most {
				t.Errorf("after %d failures: %v, want %v to %v", failures, got, most/2, most)
			}
		}
	}
}

// The content of fragments is what comes, and never more than the limit.
func FuzzRecord(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 'a', 0x80, 0, 0, 2, 'b', 'c'}, 10)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 'a'}, 1<<20)
	f.Fuzz(func(t *testing.T, stream []byte, limit int) {
		limit &= 1<<20 - 1
		got, err := rpc.ReadRecord(bytes.NewReader(stream), limit)
		if len(got) > limit {
			t.Fatalf("%d bytes, limit %d", len(got), limit)
		}
		if err == io.EOF {
			t.Fatal("a record that is cut off is an end")
		}
		if err == nil && len(got) > len(stream) {
			t.Fatalf("%d bytes of %d", len(got), len(stream))
		}
	})
}

func FuzzReply(f *testing.F) {
	f.Add(make([]byte, 24))
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 5})
	f.Fuzz(func(t *testing.T, reply []byte) {
		err := rpc.DecodeReply(reply)
		if _, ok := errors.AsType[*rpc.RejectedError](err); err != nil && !ok && !errors.Is(err, xdr.ErrMalformed) {
			t.Fatalf("error %v", err)
		}
	})
}

package flow

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/testenv"
)

// absent asks until the connection has been open for long enough.
func absent(t *testing.T, c *Conn, instances ...string) (found map[string]bool) {
	t.Helper()
	until(t, "it can be known who is there", func(ctx context.Context) bool {
		var err error
		found, err = c.Absent(ctx, instances)
		if err != nil && !errors.Is(err, backup.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
	return found
}

// quickly returns a connection that need not be open for long.
func quickly(t *testing.T, o Options) *Conn {
	c := connect(t, o, ackWait)
	c.steady.wait = time.Millisecond
	return c
}

func TestWhoIsConnectedIsPresent(t *testing.T) {
	s := inProcess(t)
	keeper := quickly(t, listen(Options{}, s))
	var workers []*Conn
	var instances []string
	for range 20 {
		w := connect(t, listen(Options{}, s), ackWait)
		w.bePresent()
		if err := w.nc.Flush(); err != nil {
			t.Fatal(err)
		}
		workers, instances = append(workers, w), append(instances, w.instance)
	}
	never := connect(t, listen(Options{}, s), ackWait)
	if got := absent(t, keeper, append(instances, never.instance)...); len(got) != 1 || !got[never.instance] {
		t.Errorf("absent: %v, want the one that was never present", got)
	}
	workers[3].nc.Close() // to the server, the same as a process that dies: the connection ends
	workers[7].nc.Close()
	until(t, "two are absent", func(context.Context) bool { return len(absent(t, keeper, instances...)) == 2 })
	if got := absent(t, keeper, instances...); !got[instances[3]] || !got[instances[7]] {
		t.Errorf("absent: %v, want %s and %s", got, instances[3], instances[7])
	}
}

// A process that was disconnected itself does not report others as gone that are still
// reconnecting.
func TestNobodyIsAbsentWhileTheServerIs(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	keeper := connect(t, Options{URL: s.URL()}, ackWait)
	until(t, "the connection is there", func(context.Context) bool { return keeper.Ready() == nil })
	keeper.steady.wait = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	ask := func() (map[string]bool, error) { return keeper.Absent(ctx, []string{"nobody"}) }
	if got, err := ask(); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("just connected: %v, %v", got, err)
	}
	keeper.steady.since = time.Now().Add(-2 * time.Hour)
	if got, err := ask(); err != nil || !got["nobody"] {
		t.Errorf("connected for long: %v, %v", got, err)
	}
	s.Restart()
	until(t, "the connection is there again", func(context.Context) bool { return keeper.nc.Stats().Reconnects > 0 && keeper.Ready() == nil })
	if got, err := ask(); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("just connected again: %v, %v", got, err)
	}
}

// A holder's name has the worker and its instance, for any name of the worker.
func TestHolder(t *testing.T) {
	t.Parallel()
	c := connect(t, listen(Options{}, inProcess(t)), ackWait)
	for _, worker := range []string{"com1", "host-7-1234", "a", ""} {
		holder := c.Holder(worker)
		if InstanceOf(holder) != c.instance || WorkerOf(holder) != worker {
			t.Errorf("%s is instance %q of worker %q", holder, InstanceOf(holder), WorkerOf(holder))
		}
	}
	for _, other := range []string{"", "com1", "com1-ABCDEFGH", "-"} {
		if WorkerOf(other) != other {
			t.Errorf("%q is worker %q", other, WorkerOf(other))
		}
	}
}

package serve

import (
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// systemd is notified as long as the process works, and no longer.
func TestWatchdogTellsWhileAlive(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	hear := func() string {
		t.Helper()
		message := make([]byte, 100)
		n, err := systemd.Read(message)
		if err != nil {
			t.Fatal(err)
		}
		return string(message[:n])
	}
	var worked, hung atomic.Int64
	var hangs atomic.Bool
	alive := func() error {
		if hangs.Load() {
			hung.Add(1)
			return errors.New("a loop hangs")
		}
		worked.Add(1)
		return nil
	}
	w := startWatchdog(t.Context(), environment(socket, "3000", ""), alive, slog.New(slog.DiscardHandler))
	for range 3 {
		if message := hear(); message != "WATCHDOG=1" {
			t.Errorf("systemd heard %q", message)
		}
	}
	hangs.Store(true)
	for hung.Load() < 3 {
		<-time.After(time.Millisecond)
	}
	w.stop()
	// The notifications sent before it hung can be received, and no others.
	for range worked.Load() - 3 {
		hear()
	}
	if err := systemd.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if n, err := systemd.Read(make([]byte, 100)); err == nil {
		t.Errorf("systemd hears of a process that hangs: %d bytes", n)
	}
}

func TestWatchdogIsForWhoWasAsked(t *testing.T) {
	for _, env := range []func(string) string{
		environment("", "3000", ""), environment("/run/notify", "", ""), environment("/run/notify", "0", ""),
		environment("/run/notify", "soon", ""), environment("/run/notify", "3000", "1"),
	} {
		if w := startWatchdog(t.Context(), env, func() error { return nil }, slog.New(slog.DiscardHandler)); w != nil {
			w.stop()
			t.Error("it tells somebody who has not asked")
		}
	}
	var none *watchdog
	none.stop()
}

// An unavailable systemd does not prevent work; notifications are retried.
func TestWatchdogWithoutListener(t *testing.T) {
	asked := make(chan struct{}, 1)
	w := startWatchdog(t.Context(), environment(filepath.Join(t.TempDir(), "gone"), "3000", ""), func() error {
		select {
		case asked <- struct{}{}:
		default:
		}
		return nil
	}, slog.New(slog.DiscardHandler))
	for range 3 {
		<-asked
	}
	w.stop()
}

func environment(socket, microseconds, pid string) func(string) string {
	return func(name string) string {
		return map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": microseconds, "WATCHDOG_PID": pid}[name]
	}
}

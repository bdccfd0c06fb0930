package serve

import (
	"context"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"
)

// A watchdog notifies systemd periodically as long as this process works. systemd ends a hanging
// process with SIGABRT, on which Go writes the stacks of all goroutines to the journal, and
// restarts it. The interval follows from WatchdogSec= in the unit; see sd_notify(3).
type watchdog struct {
	every  time.Duration
	socket string
	alive  func() error
	log    *slog.Logger
	cancel context.CancelFunc
	ended  chan struct{} // closed after the last notification
}

// startWatchdog returns nil if systemd does not expect notifications.
func startWatchdog(ctx context.Context, getenv func(string) string, alive func() error, log *slog.Logger) *watchdog {
	microseconds, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || microseconds <= 0 || getenv("NOTIFY_SOCKET") == "" {
		return nil
	}
	if pid := getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return nil // they are expected from the process that started this one
	}
	// The notifications continue while the service stops, because it may hang until then.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w := &watchdog{
		every: time.Duration(microseconds) * time.Microsecond / 3, socket: getenv("NOTIFY_SOCKET"),
		alive: alive, log: log, cancel: cancel, ended: make(chan struct{}),
	}
	go w.run(ctx) // ends with stop
	return w
}

func (w *watchdog) run(ctx context.Context) {
	defer close(w.ended)
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		if err := w.alive(); err != nil {
			w.log.Error("this process hangs; systemd's watchdog is not notified and will restart it", "error", err)
		} else if err := w.notify(ctx); err != nil && ctx.Err() == nil {
			w.log.Warn("notifying systemd's watchdog failed", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// notify sends one notification. A name that begins with "@" is that of an abstract socket.
func (w *watchdog) notify(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unixgram", w.socket)
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte("WATCHDOG=1"))
	_ = conn.Close() // Write sends datagrams immediately
	return err
}

// stop ends the notifications. It does nothing on a nil watchdog.
func (w *watchdog) stop() {
	if w == nil {
		return
	}
	w.cancel()
	<-w.ended
}

package pgindex

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// silence is the time after which a process closes a connection if it has received nothing from
	// the server.
	silence = 10 * time.Second
	// connectTimeout is for an address that does not answer, if the DSN has no connect_timeout.
	connectTimeout = 10 * time.Second
	// Two probes, three seconds apart, after three seconds of silence.
	probeAfter = 3 * time.Second
	probeCount = 2
)

// setTimeouts makes the server end a connection after five seconds of silence, and then release its
// locks. A process that hangs or loses its connection in the middle of a transaction must not hold
// its locks until it returns, because others would wait for their turn to claim. The server ends
// such a transaction by its own clock, and the process tries again. A further connection of the
// process may wait for the same lock. The server looks every second whether the client of a waiting
// connection is still there, so that the lock goes to another process. It cannot tell that a client
// hangs: the locks are then held twice as long.
const setTimeouts = `
SET idle_in_transaction_session_timeout = 5000;
SET client_connection_check_interval = 1000;
SET tcp_keepalives_idle = 2;
SET tcp_keepalives_interval = 1;
SET tcp_keepalives_count = 3;
SET tcp_user_timeout = 5000`

// newDialer returns a dialer whose connections end after silence.
func newDialer(timeout time.Duration) *net.Dialer {
	if timeout <= 0 {
		timeout = connectTimeout
	}
	return &net.Dialer{
		Timeout:         timeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeAfter, Interval: probeAfter, Count: probeCount},
		// Keep-alive probes cover idle connections. This timeout covers connections with
		// unacknowledged data.
		Control: func(network, _ string, conn syscall.RawConn) error {
			if network == "unix" {
				return nil
			}
			var set error
			err := conn.Control(func(fd uintptr) {
				set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
			})
			return errors.Join(err, set)
		},
	}
}

package pgindex

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// silence is how long nothing may be heard of the other end of a connection, by either
	// end: then it is cut off, and what the connection had locked is free.
	silence = 15 * time.Second
	// connectTimeout is for an address that does not answer, where the DSN has no connect_timeout.
	connectTimeout = 10 * time.Second
	// Two probes, five seconds apart, after five without a word.
	probeAfter = silence / 3
	probeCount = 2
)

// setTimeouts is the server's side of it. A process that hangs, or is cut off, in the middle of a transaction
// must not hold its locks until it is back: others would wait for their turn to claim. The server
// then ends the transaction, by its own clock, and the process tries again.
const setTimeouts = `
SET idle_in_transaction_session_timeout = 15000;
SET tcp_keepalives_idle = 5;
SET tcp_keepalives_interval = 5;
SET tcp_keepalives_count = 2;
SET tcp_user_timeout = 15000`

// newDialer returns a dialer of connections that end after silence.
func newDialer(timeout time.Duration) *net.Dialer {
	if timeout <= 0 {
		timeout = connectTimeout
	}
	return &net.Dialer{
		Timeout:         timeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probeAfter, Interval: probeAfter, Count: probeCount},
		// Probes are for connections without data on its way: where some is, this counts.
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

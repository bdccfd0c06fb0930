package rpc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
)

// Reserved ports are those that a Linux client uses (sunrpc.min_resvport).
const minReserved, maxReserved = 665, 1023

// dial connects to the server.
func dial(ctx context.Context, address string, from Ports) (net.Conn, error) {
	if from == AnyPort {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	const count = maxReserved - minReserved + 1
	first := rand.IntN(count)
	var err error
	for i := range count {
		d := net.Dialer{LocalAddr: &net.TCPAddr{Port: minReserved + (first+i)%count}}
		var nc net.Conn
		nc, err = d.DialContext(ctx, "tcp", address)
		switch {
		case err == nil:
			return nc, nil
		case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, syscall.EADDRNOTAVAIL):
			continue
		case errors.Is(err, syscall.EACCES) && from == PreferReserved:
			return dial(ctx, address, AnyPort)
		case errors.Is(err, syscall.EACCES):
			return nil, fmt.Errorf("%w: a reserved port needs the capability CAP_NET_BIND_SERVICE", err)
		}
		return nil, err
	}
	return nil, fmt.Errorf("all reserved ports are in use: %w", err)
}

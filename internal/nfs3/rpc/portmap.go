package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// The port mapper, version 2 of rpcbind (RFC 1833, 3).
const (
	portmapPort     = "111"
	pmapGetPort     = 3 // PMAPPROC_GETPORT
	protocolTCP     = 6 // IPPROTO_TCP
	portReplyBytes  = 4
	portmapProgram  = 100000
	portmapVersion2 = 2
)

// ErrNotRegistered reports that the port mapper of the server does not know the program.
var ErrNotRegistered = errors.New("the server has not registered the program")

// Port asks the port mapper of host for the TCP port of a program: PMAPPROC_GETPORT (RFC 1833,
// 3.1). Of o, it uses the times.
func Port(ctx context.Context, host string, p Program, o Options) (port uint16, err error) {
	c := New(Options{
		Address: net.JoinHostPort(host, portmapPort), Program: Program{portmapProgram, portmapVersion2},
		Timeout: o.Timeout, RetryFor: o.RetryFor,
	})
	defer c.Close()
	return c.port(ctx, p)
}

func (c *Client) port(ctx context.Context, p Program) (port uint16, err error) {
	_, err = c.Call(ctx, pmapGetPort, portReplyBytes, func(b []byte) []byte {
		b = xdr.AppendUint32(b, p.Number)
		b = xdr.AppendUint32(b, p.Version)
		b = xdr.AppendUint32(b, protocolTCP)
		return xdr.AppendUint32(b, 0)
	}, func(d *xdr.Decoder) error {
		n := d.Uint32()
		if n > 0xffff {
			d.Fail("port %d", n)
		}
		port = uint16(n)
		return d.Err()
	})
	if err == nil && port == 0 {
		err = fmt.Errorf("%w %d version %d with its port mapper", ErrNotRegistered, p.Number, p.Version)
	}
	return port, err
}

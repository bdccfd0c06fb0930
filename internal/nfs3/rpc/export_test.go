package rpc

import (
	"bufio"
	"context"
	"io"

	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// PortFrom asks a port mapper at any port.
func PortFrom(ctx context.Context, c *Client, p Program) (uint16, error) { return c.port(ctx, p) }

// ReadRecord reads the first record of a stream.
func ReadRecord(from io.Reader, limit int) ([]byte, error) {
	r := &record{from: bufio.NewReader(from)}
	return r.readAll(nil, limit)
}

// DecodeReply reads the header of a reply.
func DecodeReply(reply []byte) error { return decodeReply(xdr.NewDecoder(reply)) }

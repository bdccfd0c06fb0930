package containers

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
)

// A relay is an address of this machine that forwards connections to a port of a container. It
// looks up the address of the container for each connection, because that changes when the
// container is started or connected again.
type relay struct {
	to    func(context.Context) (string, error)
	owned sync.WaitGroup
}

// relay returns the address of one.
func (p *project) relay(t *testing.T, service, network string, port int) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{to: func(ctx context.Context) (string, error) {
		found, err := p.find(ctx, service)
		if err != nil || len(found) != 1 {
			return "", fmt.Errorf("%d containers of %s: %v", len(found), service, err)
		}
		return found[0].address(ctx, network, port)
	}}
	ctx, stop := context.WithCancel(context.Background())
	r.owned.Go(func() { r.accept(ctx, listener) })
	t.Cleanup(func() {
		stop()
		_ = listener.Close() // which ends accept
		r.owned.Wait()
	})
	return listener.Addr().String()
}

func (r *relay) accept(ctx context.Context, listener net.Listener) {
	for {
		from, err := listener.Accept()
		if err != nil {
			return
		}
		r.owned.Go(func() { r.forward(ctx, from) })
	}
}

// forward copies both ways until either side, or the test, ends.
func (r *relay) forward(ctx context.Context, from net.Conn) {
	defer from.Close()
	address, err := r.to(ctx)
	if err != nil {
		return // who dialled sees its connection end
	}
	to, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		r.owned.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // the end of the connection reports an error to the other side
			ended <- struct{}{}
		})
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

package nfs3

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/bctl/bctl/internal/nfs3/rpc"
	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// MountProgram is the mount protocol, version 3 (RFC 1813, appendix I).
var MountProgram = rpc.Program{Number: 100005, Version: 3}

const (
	mountMNT    = 1 // MOUNTPROC3_MNT
	mountUMNT   = 3 // MOUNTPROC3_UMNT
	mountEXPORT = 5 // MOUNTPROC3_EXPORT

	maxPathBytes   = 1024 // MNTPATHLEN
	maxFlavors     = 64
	maxExports     = 10_000
	maxExportBytes = 4 << 20
)

// FlavorSys is AUTH_SYS among Mounted.Flavors.
const FlavorSys = 1

// A Mounter finds the handles of exports. It may be used concurrently.
type Mounter struct{ rpc *rpc.Client }

// NewMounter returns a Mounter. Of o, Program is ignored. It connects at the first call.
func NewMounter(o rpc.Options) *Mounter {
	o.Program, o.Connections = MountProgram, 1
	return &Mounter{rpc.New(o)}
}

// Close closes the connection. A second call does nothing.
func (m *Mounter) Close() error { return m.rpc.Close() }

// Mounted is the root of an export.
type Mounted struct {
	Root    Handle
	Flavors []uint32 // of credentials that the server accepts, in the order of its preference
}

// Mount returns the handle of a path that the server exports: MOUNTPROC3_MNT (RFC 1813, appendix I,
// 5.2.1). Many servers also accept paths below an export. The server follows symlinks in the path.
func (m *Mounter) Mount(ctx context.Context, path string) (r Mounted, err error) {
	if len(path) > maxPathBytes {
		return r, &Error{Op: "MNT", Status: StatusNameTooLong}
	}
	status, sentAgain, err := call(ctx, m.rpc, mountMNT, smallBytes,
		func(b []byte) []byte { return xdr.AppendOpaque(b, path) },
		func(d *xdr.Decoder) {
			r.Root = decodeHandle(d)
			n := d.Uint32()
			if n > maxFlavors {
				d.Fail("%d flavors of credentials", n)
				return
			}
			for range n {
				r.Flavors = append(r.Flavors, d.Uint32())
			}
		})
	if err != nil {
		return Mounted{}, &OpError{Op: "MNT", Err: err}
	}
	if status != StatusOK {
		return Mounted{}, &Error{Op: "MNT", Status: status, SentAgain: sentAgain}
	}
	return r, nil
}

// Unmount tells the server that the path is not used any more: MOUNTPROC3_UMNT (RFC 1813, appendix
// I, 5.2.3). Servers only keep statistics with it.
func (m *Mounter) Unmount(ctx context.Context, path string) error {
	_, err := m.rpc.Call(ctx, mountUMNT, 0, func(b []byte) []byte { return xdr.AppendOpaque(b, path) },
		func(d *xdr.Decoder) error { return d.Err() })
	if err != nil {
		return &OpError{Op: "UMNT", Err: err}
	}
	return nil
}

// Exports returns the paths that the server exports: MOUNTPROC3_EXPORT (RFC 1813, appendix I,
// 5.2.5).
func (m *Mounter) Exports(ctx context.Context) (paths []string, err error) {
	_, err = m.rpc.Call(ctx, mountEXPORT, maxExportBytes, func(b []byte) []byte { return b }, func(d *xdr.Decoder) error {
		paths = nil
		for d.Bool() {
			paths = append(paths, string(d.Opaque(maxPathBytes)))
			for d.Bool() { // the groups that may mount it
				d.Opaque(maxNameBytes)
			}
			if len(paths) > maxExports {
				d.Fail("more than %d exports", maxExports)
			}
		}
		return d.Err()
	})
	if err != nil {
		return nil, &OpError{Op: "EXPORT", Err: err}
	}
	return paths, nil
}

// A Server is where a server's programs are. A port of 0 is asked from the port mapper.
type Server struct {
	Host               string
	NFSPort, MountPort uint16
}

// Find returns the options of o with the addresses of the two programs: NFS, and the mount
// protocol.
func (s Server) Find(ctx context.Context, o rpc.Options) (nfs, mount rpc.Options, err error) {
	nfs, mount = o, o
	for _, p := range []struct {
		of      string
		program rpc.Program
		port    uint16
		to      *rpc.Options
	}{{"NFS", Program, s.NFSPort, &nfs}, {"mount", MountProgram, s.MountPort, &mount}} {
		if p.port == 0 {
			if p.port, err = rpc.Port(ctx, s.Host, p.program, o); err != nil {
				return nfs, mount, fmt.Errorf("find the %s port: %w", p.of, err)
			}
		}
		p.to.Address = net.JoinHostPort(s.Host, strconv.Itoa(int(p.port)))
	}
	return nfs, mount, nil
}

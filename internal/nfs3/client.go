package nfs3

import (
	"cmp"
	"context"
	"time"

	"github.com/bctl/bctl/internal/nfs3/rpc"
	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// Program is NFS version 3.
var Program = rpc.Program{Number: 100003, Version: 3}

const (
	minJukebox = 50 * time.Millisecond
	maxJukebox = 5 * time.Second
	// attrBytes is the size of a fattr3, and smallBytes room for every reply that contains only
	// attributes, handles and numbers.
	attrBytes  = 84
	smallBytes = 1024
)

// A Client calls the procedures of one server. It may be used concurrently.
type Client struct {
	rpc      *rpc.Client
	retryFor time.Duration
}

// New returns a Client. Of o, Program is ignored. It connects at the first call.
func New(o rpc.Options) *Client {
	o.Program = Program
	return &Client{rpc: rpc.New(o), retryFor: cmp.Or(max(o.RetryFor, 0), rpc.DefaultRetryFor)}
}

// Calls returns the number of RPCs so far.
func (c *Client) Calls() int64 { return c.rpc.Calls() }

// Close closes the connections. A second call does nothing.
func (c *Client) Close() error { return c.rpc.Close() }

// The numbers of the procedures (RFC 1813, 3.3).
const (
	procNull = iota
	procGetAttr
	procSetAttr
	procLookup
	procAccess
	procReadLink
	procRead
	procWrite
	procCreate
	procMkdir
	procSymlink
	procMknod
	procRemove
	procRmdir
	procRename
	procLink
	procReadDir
	procReadDirPlus
	procFSStat
	procFSInfo
	procPathConf
	procCommit
)

// ops are the names of the procedures.
var ops = [...]string{
	"NULL", "GETATTR", "SETATTR", "LOOKUP", "ACCESS", "READLINK", "READ", "WRITE", "CREATE", "MKDIR", "SYMLINK",
	"MKNOD", "REMOVE", "RMDIR", "RENAME", "LINK", "READDIR", "READDIRPLUS", "FSSTAT", "FSINFO", "PATHCONF", "COMMIT",
}

// call calls a procedure, and repeats it while the server answers JUKEBOX. decode reads the results
// of a procedure that succeeded, of at most maxBytes.
func (c *Client) call(ctx context.Context, procedure uint32, maxBytes int, encode func([]byte) []byte, decode func(*xdr.Decoder)) error {
	var began time.Time
	for tries := 1; ; tries++ {
		status, sentAgain, err := call(ctx, c.rpc, procedure, maxBytes, encode, decode)
		if err != nil {
			return &OpError{Op: ops[procedure], Err: err}
		}
		if status == StatusOK {
			return nil
		}
		failure := &Error{Op: ops[procedure], Status: status, SentAgain: sentAgain}
		if status != StatusJukebox {
			return failure
		}
		if tries == 1 {
			began = time.Now()
		}
		pause := rpc.BackOff(tries, minJukebox, maxJukebox)
		if time.Since(began)+pause > c.retryFor {
			return failure
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return &OpError{Op: ops[procedure], Err: ctx.Err()}
		}
	}
}

// call calls a procedure whose results begin with a status.
func call(ctx context.Context, c *rpc.Client, procedure uint32, maxBytes int, encode func([]byte) []byte, decode func(*xdr.Decoder)) (status Status, sentAgain bool, err error) {
	sentAgain, err = c.Call(ctx, procedure, maxBytes+smallBytes, encode, func(d *xdr.Decoder) error {
		if status = Status(d.Uint32()); d.Err() == nil && status == StatusOK {
			decode(d)
		}
		return d.Err()
	})
	return status, sentAgain, err
}

// An OpError is an error that is not the server's answer to a procedure: there was none, or it is
// malformed.
type OpError struct {
	Op  string // the procedure
	Err error  // of package rpc, or ctx's
}

func (e *OpError) Error() string { return e.Op + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *OpError) Unwrap() error { return e.Err }

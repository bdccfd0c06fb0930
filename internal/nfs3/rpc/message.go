package rpc

import (
	"fmt"

	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// The constants of RFC 5531, 9 and appendix A.
const (
	msgCall, msgReply = 0, 1
	rpcVersion        = 2
	replyAccepted     = 0
	replyDenied       = 1
	authNone, authSys = 0, 1
	authTooWeak       = 5

	maxAuthBytes    = 400
	maxMachineBytes = 255
	maxGIDs         = 16
)

// Credentials are what a server believes about the caller. The zero Credentials are AUTH_NONE.
type Credentials struct{ body []byte }

// Sys returns AUTH_SYS credentials (RFC 5531, appendix A). The protocol has room for 16 groups.
func Sys(machine string, uid, gid uint32, groups []uint32) (Credentials, error) {
	if len(machine) > maxMachineBytes {
		return Credentials{}, fmt.Errorf("the name of the machine has %d bytes, at most %d are possible", len(machine), maxMachineBytes)
	}
	if len(groups) > maxGIDs {
		return Credentials{}, fmt.Errorf("%d groups, at most %d are possible", len(groups), maxGIDs)
	}
	b := xdr.AppendUint32(nil, 0) // stamp
	b = xdr.AppendOpaque(b, machine)
	b = xdr.AppendUint32(b, uid)
	b = xdr.AppendUint32(b, gid)
	b = xdr.AppendUint32(b, uint32(len(groups)))
	for _, g := range groups {
		b = xdr.AppendUint32(b, g)
	}
	return Credentials{body: b}, nil
}

// A Program is an RPC program and its version.
type Program struct{ Number, Version uint32 }

// appendCall appends the header of a call.
func appendCall(b []byte, xid uint32, p Program, procedure uint32, c Credentials) []byte {
	b = xdr.AppendUint32(b, xid)
	b = xdr.AppendUint32(b, msgCall)
	b = xdr.AppendUint32(b, rpcVersion)
	b = xdr.AppendUint32(b, p.Number)
	b = xdr.AppendUint32(b, p.Version)
	b = xdr.AppendUint32(b, procedure)
	if c.body == nil {
		b = xdr.AppendUint32(b, authNone)
	} else {
		b = xdr.AppendUint32(b, authSys)
	}
	b = xdr.AppendOpaque(b, c.body)
	b = xdr.AppendUint32(b, authNone) // verifier
	return xdr.AppendUint32(b, 0)
}

// decodeReply reads the header of a reply, behind its xid. After it, d is at the results.
func decodeReply(d *xdr.Decoder) error {
	if kind := d.Uint32(); d.Err() == nil && kind != msgReply {
		d.Fail("message type %d is no reply", kind)
	}
	status := d.Uint32()
	if d.Err() != nil {
		return d.Err()
	}
	switch status {
	case replyAccepted:
		return decodeAccepted(d)
	case replyDenied:
		return decodeDenied(d)
	}
	d.Fail("reply_stat %d", status)
	return d.Err()
}

func decodeAccepted(d *xdr.Decoder) error {
	d.Uint32() // flavor of the verifier
	d.Opaque(maxAuthBytes)
	status := d.Uint32()
	e := &RejectedError{}
	switch status {
	case 0:
		return d.Err()
	case 1:
		e.Reason = NoProgram
	case 2:
		e.Reason, e.Low, e.High = ProgramMismatch, d.Uint32(), d.Uint32()
	case 3:
		e.Reason = NoProcedure
	case 4:
		e.Reason = GarbageArgs
	case 5:
		e.Reason = SystemError
	default:
		d.Fail("accept_stat %d", status)
	}
	if d.Err() != nil {
		return d.Err()
	}
	return e
}

func decodeDenied(d *xdr.Decoder) error {
	e := &RejectedError{}
	switch status := d.Uint32(); status {
	case 0:
		e.Reason, e.Low, e.High = VersionMismatch, d.Uint32(), d.Uint32()
	case 1:
		e.Reason, e.Auth = BadCredentials, d.Uint32()
	default:
		d.Fail("reject_stat %d", status)
	}
	if d.Err() != nil {
		return d.Err()
	}
	return e
}

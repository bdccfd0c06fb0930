package rpc

import (
	"errors"
	"fmt"
	"io/fs"
)

var (
	// ErrNoAnswer reports a call that the server has not answered within Options.RetryFor. It may
	// have been executed.
	ErrNoAnswer = errors.New("the server does not answer")
	// ErrTooLarge reports a reply that is larger than the caller allows.
	ErrTooLarge = errors.New("the reply is too large")
	// ErrClosed reports that the Client was closed.
	ErrClosed = fmt.Errorf("the client is closed: %w", fs.ErrClosed)

	errStalled = errors.New("the connection has delivered nothing in time")
)

// A RejectedError is the answer of a server that has not executed the call (RFC 5531, 9).
type RejectedError struct {
	Reason    Reason
	Low, High uint32 // of the versions that the server supports, for ProgramMismatch and VersionMismatch
	Auth      uint32 // auth_stat, for BadCredentials
}

// A Reason is why a call was rejected.
type Reason int

// The reasons: accept_stat and reject_stat of RFC 5531, 9.
const (
	NoProgram       Reason = iota + 1 // PROG_UNAVAIL
	ProgramMismatch                   // PROG_MISMATCH
	NoProcedure                       // PROC_UNAVAIL
	GarbageArgs                       // GARBAGE_ARGS
	SystemError                       // SYSTEM_ERR
	VersionMismatch                   // RPC_MISMATCH
	BadCredentials                    // AUTH_ERROR
)

func (e *RejectedError) Error() string {
	switch e.Reason {
	case NoProgram:
		return "the server does not have this RPC program"
	case ProgramMismatch:
		return fmt.Sprintf("the server supports versions %d to %d of this RPC program", e.Low, e.High)
	case NoProcedure:
		return "the server does not have this procedure"
	case GarbageArgs:
		return "the server cannot decode the arguments"
	case SystemError:
		return "the server reports a system error"
	case VersionMismatch:
		return fmt.Sprintf("the server supports versions %d to %d of RPC", e.Low, e.High)
	}
	if e.Auth == authTooWeak {
		return "the server refuses the credentials: they are too weak; it may demand a reserved port, or Kerberos"
	}
	return fmt.Sprintf("the server refuses the credentials (auth_stat %d)", e.Auth)
}

// Is implements errors.Is: refused credentials are fs.ErrPermission.
func (e *RejectedError) Is(target error) bool {
	return target == fs.ErrPermission && e.Reason == BadCredentials
}

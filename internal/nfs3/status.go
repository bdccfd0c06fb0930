package nfs3

import (
	"fmt"
	"syscall"
)

// A Status is the nfsstat3 of a procedure (RFC 1813, 2.6), or the mountstat3 of the mount protocol
// (appendix I, 5.1.5), which uses the same numbers.
type Status uint32

// The statuses.
const (
	StatusOK          Status = 0
	StatusPerm        Status = 1
	StatusNoEnt       Status = 2
	StatusIO          Status = 5
	StatusNXIO        Status = 6
	StatusAccess      Status = 13
	StatusExist       Status = 17
	StatusXDev        Status = 18
	StatusNoDev       Status = 19
	StatusNotDir      Status = 20
	StatusIsDir       Status = 21
	StatusInval       Status = 22
	StatusFBig        Status = 27
	StatusNoSpc       Status = 28
	StatusROFS        Status = 30
	StatusMLink       Status = 31
	StatusNameTooLong Status = 63
	StatusNotEmpty    Status = 66
	StatusDQuot       Status = 69
	StatusStale       Status = 70
	StatusRemote      Status = 71
	StatusBadHandle   Status = 10001
	StatusNotSync     Status = 10002
	StatusBadCookie   Status = 10003
	StatusNotSupp     Status = 10004
	StatusTooSmall    Status = 10005
	StatusServerFault Status = 10006
	StatusBadType     Status = 10007
	StatusJukebox     Status = 10008
)

// ErrStale reports that the server does not know the handle, because the file was removed, its file
// system is not exported any more, or the server has lost the meaning of the handle.
const ErrStale = StatusStale

var statuses = map[Status]struct {
	errno syscall.Errno
	text  string
}{
	StatusPerm:        {syscall.EPERM, "not the owner"},
	StatusNoEnt:       {syscall.ENOENT, "no such file or directory"},
	StatusIO:          {syscall.EIO, "I/O error of the server"},
	StatusNXIO:        {syscall.ENXIO, "no such device or address"},
	StatusAccess:      {syscall.EACCES, "permission denied"},
	StatusExist:       {syscall.EEXIST, "file exists"},
	StatusXDev:        {syscall.EXDEV, "link to another file system"},
	StatusNoDev:       {syscall.ENODEV, "no such device"},
	StatusNotDir:      {syscall.ENOTDIR, "not a directory"},
	StatusIsDir:       {syscall.EISDIR, "is a directory"},
	StatusInval:       {syscall.EINVAL, "invalid argument"},
	StatusFBig:        {syscall.EFBIG, "file too large"},
	StatusNoSpc:       {syscall.ENOSPC, "no space left"},
	StatusROFS:        {syscall.EROFS, "read-only file system"},
	StatusMLink:       {syscall.EMLINK, "too many hard links"},
	StatusNameTooLong: {syscall.ENAMETOOLONG, "name too long"},
	StatusNotEmpty:    {syscall.ENOTEMPTY, "directory not empty"},
	StatusDQuot:       {syscall.EDQUOT, "quota exceeded"},
	StatusStale:       {syscall.ESTALE, "stale file handle"},
	StatusRemote:      {syscall.EREMOTE, "file of another server"},
	StatusBadHandle:   {syscall.ESTALE, "bad file handle"},
	StatusNotSync:     {syscall.EAGAIN, "the file has changed meanwhile"},
	StatusBadCookie:   {syscall.EINVAL, "the position in the directory is no longer valid"},
	StatusNotSupp:     {syscall.EOPNOTSUPP, "not supported by the server"},
	StatusTooSmall:    {syscall.EINVAL, "buffer too small"},
	StatusServerFault: {syscall.EREMOTEIO, "the server failed"},
	StatusBadType:     {syscall.EINVAL, "type not supported by the server"},
	StatusJukebox:     {syscall.EAGAIN, "the server needs more time"},
}

func (s Status) Error() string {
	if known, ok := statuses[s]; ok {
		return known.text
	}
	return fmt.Sprintf("status %d of the server", uint32(s))
}

// Is implements errors.Is for the syscall.Errno of the same meaning, and what that is.
func (s Status) Is(target error) bool {
	if s == StatusBadHandle && target == ErrStale {
		return true
	}
	known, ok := statuses[s]
	return ok && (target == known.errno || known.errno.Is(target))
}

// An Error is the refusal of a procedure by the server.
type Error struct {
	Op        string // the procedure: "LOOKUP"
	Status    Status // not StatusOK
	SentAgain bool   // the call was sent more than once: an earlier execution may have succeeded
}

func (e *Error) Error() string { return e.Op + ": " + e.Status.Error() }

// Unwrap returns the Status.
func (e *Error) Unwrap() error { return e.Status }

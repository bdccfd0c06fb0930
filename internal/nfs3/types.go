package nfs3

import (
	"time"

	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// The sizes of RFC 1813, 2.4, and limits of what the protocol leaves open.
const (
	MaxHandleBytes = 64 // NFS3_FHSIZE
	verifierBytes  = 8  // NFS3_COOKIEVERFSIZE, NFS3_CREATEVERFSIZE, NFS3_WRITEVERFSIZE

	maxNameBytes   = 4 << 10
	maxTargetBytes = 64 << 10 // of a symlink
)

// A Handle is the server's name of a file or directory: opaque bytes, at most MaxHandleBytes. It
// stays valid when the server restarts, and when the file is renamed.
type Handle string

// A Verifier is eight opaque bytes of the server.
type Verifier [verifierBytes]byte

// A FileType is an ftype3 (RFC 1813, 2.6).
type FileType uint32

// The types of files.
const (
	Regular     FileType = 1
	Directory   FileType = 2
	BlockDevice FileType = 3
	CharDevice  FileType = 4
	Symlink     FileType = 5
	Socket      FileType = 6
	FIFO        FileType = 7
)

// A Time is an nfstime3. It ends in 2106, and cannot express times before 1970. The server need not
// keep Nsec below a second.
type Time struct{ Sec, Nsec uint32 }

// TimeOf returns t as a Time. ok is false if a Time cannot express it.
func TimeOf(t time.Time) (n Time, ok bool) {
	sec := t.Unix()
	return Time{uint32(sec), uint32(t.Nanosecond())}, sec >= 0 && sec < 1<<32
}

// A Device is a specdata3: the numbers of a device file.
type Device struct{ Major, Minor uint32 }

// Attr is a fattr3 (RFC 1813, 2.6): the attributes of a file.
type Attr struct {
	Type                FileType
	Mode                uint32 // permission, set-ID and sticky bits; some servers add type bits
	Nlink               uint32
	UID, GID            uint32
	Size, Used          uint64 // bytes
	Device              Device
	FSID                uint64 // of the file system
	FileID              uint64 // inode
	Atime, Mtime, Ctime Time
}

// A PostAttr is a post_op_attr: attributes that the server may leave out.
type PostAttr struct {
	Attr
	Known bool
}

func decodeTime(d *xdr.Decoder) Time { return Time{d.Uint32(), d.Uint32()} }

func decodeAttr(d *xdr.Decoder, a *Attr) {
	a.Type, a.Mode, a.Nlink = FileType(d.Uint32()), d.Uint32(), d.Uint32()
	a.UID, a.GID = d.Uint32(), d.Uint32()
	a.Size, a.Used = d.Uint64(), d.Uint64()
	a.Device = Device{d.Uint32(), d.Uint32()}
	a.FSID, a.FileID = d.Uint64(), d.Uint64()
	a.Atime, a.Mtime, a.Ctime = decodeTime(d), decodeTime(d), decodeTime(d)
}

func decodePostAttr(d *xdr.Decoder, a *PostAttr) {
	if a.Known = d.Bool(); a.Known {
		decodeAttr(d, &a.Attr)
	}
}

func decodeHandle(d *xdr.Decoder) Handle { return Handle(d.Opaque(MaxHandleBytes)) }

// decodePostHandle reads a post_op_fh3. A handle that the server leaves out is "".
func decodePostHandle(d *xdr.Decoder) Handle {
	if !d.Bool() {
		return ""
	}
	return decodeHandle(d)
}

func decodeVerifier(d *xdr.Decoder) (v Verifier) {
	copy(v[:], d.Fixed(verifierBytes))
	return v
}

// skipWCC reads wcc_data: attributes before and after a change. Only those after it are returned.
func skipWCC(d *xdr.Decoder) (after PostAttr) {
	const preAttrBytes = 24
	if d.Bool() {
		d.Fixed(preAttrBytes)
	}
	decodePostAttr(d, &after)
	return after
}

// A SetAttr is a sattr3: the attributes to set. nil leaves an attribute as it is.
type SetAttr struct {
	Mode, UID, GID *uint32
	Size           *uint64
	Atime, Mtime   *Time
}

func (s *SetAttr) appendTo(b []byte) []byte {
	for _, v := range []*uint32{s.Mode, s.UID, s.GID} {
		if b = xdr.AppendBool(b, v != nil); v != nil {
			b = xdr.AppendUint32(b, *v)
		}
	}
	if b = xdr.AppendBool(b, s.Size != nil); s.Size != nil {
		b = xdr.AppendUint64(b, *s.Size)
	}
	const dontChange, setToClientTime = 0, 2
	for _, t := range []*Time{s.Atime, s.Mtime} {
		if t == nil {
			b = xdr.AppendUint32(b, dontChange)
			continue
		}
		b = xdr.AppendUint32(b, setToClientTime)
		b = xdr.AppendUint32(xdr.AppendUint32(b, t.Sec), t.Nsec)
	}
	return b
}

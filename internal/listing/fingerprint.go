package listing

import (
	"encoding/binary"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
)

// fingerprintVersion is the first byte that is hashed: a new way to compute
// fingerprints makes every page look changed once.
const fingerprintVersion = 1

// A Fingerprinter computes fingerprints; it reuses its buffers and belongs to
// one goroutine.
type Fingerprinter struct {
	record []byte
	hash   *blake3.Hasher
}

// NewFingerprinter returns a Fingerprinter.
func NewFingerprinter() *Fingerprinter {
	return &Fingerprinter{hash: blake3.New()}
}

// Of returns the fingerprint of a page: names and attributes of its entries
// and of Self, in order, without content, xattrs (a change of them shows in
// ctime), device numbers (they change from boot to boot) and birth times.
func (f *Fingerprinter) Of(self *backup.Entry, entries []backup.Entry) (fp backup.Fingerprint) {
	f.record = append(f.record[:0], fingerprintVersion)
	if self != nil {
		f.add(self)
	}
	for i := range entries {
		f.add(&entries[i])
	}
	f.hash.Reset()
	f.hash.Write(f.record)
	d := f.hash.Digest()
	d.Read(fp[:])
	return fp
}

func (f *Fingerprinter) add(e *backup.Entry) {
	r := binary.AppendUvarint(f.record, uint64(len(e.Name)))
	r = append(r, e.Name...)
	r = append(r, byte(e.Kind))
	r = binary.LittleEndian.AppendUint64(r, e.Inode)
	if e.Kind != backup.Directory || e.Name == "" {
		r = binary.LittleEndian.AppendUint64(r, uint64(e.Mode)<<32|uint64(e.Nlink))
		r = binary.LittleEndian.AppendUint64(r, uint64(e.UID)<<32|uint64(e.GID))
		r = binary.LittleEndian.AppendUint64(r, uint64(e.Size))
		r = binary.LittleEndian.AppendUint64(r, uint64(e.Mtime.Sec))
		r = binary.LittleEndian.AppendUint64(r, uint64(e.Ctime.Sec))
		r = binary.LittleEndian.AppendUint64(r, uint64(e.Mtime.Nsec)<<32|uint64(e.Ctime.Nsec))
		r = binary.LittleEndian.AppendUint64(r, e.Rdev)
		r = binary.AppendUvarint(r, uint64(len(e.Target)))
		r = append(r, e.Target...)
	}
	f.record = r
}

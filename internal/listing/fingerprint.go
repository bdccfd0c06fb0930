package listing

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
)

// The first byte of the hashed data. If the computation of fingerprints changes, every page looks
// changed once. The same is true if Compare changes, which is the second byte.
const (
	fingerprintVersion   = 1
	fingerprintOfCompare = 2 // if not everything is compared
)

// OfUnshown returns the fingerprint of a page with an entry of which the file system showed no
// xattrs, given that of the page. It is another one, so that the page is looked at again once the
// file system shows them.
func OfUnshown(fp backup.Fingerprint) backup.Fingerprint {
	if fp == (backup.Fingerprint{}) {
		return fp
	}
	for i := range fp {
		fp[i] ^= 0xff
	}
	return fp
}

// Stored returns the fingerprint that is stored with a page, given the one that Of returns.
func Stored(fp backup.Fingerprint, self *backup.Entry, entries []backup.Entry) backup.Fingerprint {
	unshown := func(e backup.Entry) bool { return e.Flags&backup.XattrsUnshown != 0 }
	if self != nil && unshown(*self) || slices.ContainsFunc(entries, unshown) {
		return OfUnshown(fp)
	}
	return fp
}

// A Fingerprinter computes fingerprints. It reuses its buffers, and must be used by one goroutine
// only.
type Fingerprinter struct {
	record []byte
	hash   *blake3.Hasher
}

// NewFingerprinter returns a Fingerprinter.
func NewFingerprinter() *Fingerprinter {
	return &Fingerprinter{hash: blake3.New()}
}

// Of returns the fingerprint of a page. It covers the names and attributes of Self and of the
// entries, in order, and for each whether it is on a file system of its own. It also covers the key
// of the next page. It does not cover content, xattrs (ctime shows a change of them), birth times,
// and device numbers (which differ between boots). Of mtime, ctime and inode it covers those in by,
// and always the inode of an entry with several hard links, because that shows which names are one
// file.
func (f *Fingerprinter) Of(by backup.Compare, self *backup.Entry, entries []backup.Entry, next backup.PageKey) (fp backup.Fingerprint) {
	by = by.OrAll()
	f.record = append(f.record[:0], fingerprintVersion)
	if by != backup.CompareAll {
		f.record = append(f.record[:0], fingerprintOfCompare, byte(by))
	}
	if self != nil {
		f.add(by, self)
	}
	for i := range entries {
		f.add(by, &entries[i])
	}
	f.record = binary.LittleEndian.AppendUint64(f.record, uint64(next))
	f.hash.Reset()
	f.hash.Write(f.record)
	d := f.hash.Digest()
	d.Read(fp[:])
	return fp
}

// onBoundary is added to the kind of an entry that is on a file system of its own.
const onBoundary = 1 << 7

func (f *Fingerprinter) add(by backup.Compare, e *backup.Entry) {
	inode, mtime, ctime := e.Inode, e.Mtime, e.Ctime
	if by != backup.CompareAll {
		if by&backup.CompareInode == 0 && (e.Kind == backup.Directory || e.Nlink <= 1) {
			inode = 0
		}
		if by&backup.CompareMtime == 0 {
			mtime = backup.Time{}
		}
		if by&backup.CompareCtime == 0 {
			ctime = backup.Time{}
		}
	}
	r := binary.AppendUvarint(f.record, uint64(len(e.Name)))
	r = append(r, e.Name...)
	kind := byte(e.Kind)
	if e.Flags&backup.Boundary != 0 {
		kind |= onBoundary
	}
	r = append(r, kind)
	r = binary.LittleEndian.AppendUint64(r, inode)
	if e.Kind != backup.Directory || e.Name == "" {
		r = binary.LittleEndian.AppendUint64(r, uint64(e.Mode)<<32|uint64(e.Nlink))
		r = binary.LittleEndian.AppendUint64(r, uint64(e.UID)<<32|uint64(e.GID))
		r = binary.LittleEndian.AppendUint64(r, uint64(e.Size))
		r = binary.LittleEndian.AppendUint64(r, uint64(mtime.Sec))
		r = binary.LittleEndian.AppendUint64(r, uint64(ctime.Sec))
		r = binary.LittleEndian.AppendUint64(r, uint64(mtime.Nsec)<<32|uint64(ctime.Nsec))
		r = binary.LittleEndian.AppendUint64(r, e.Rdev)
		r = binary.AppendUvarint(r, uint64(len(e.Target)))
		r = append(r, e.Target...)
	}
	f.record = r
}

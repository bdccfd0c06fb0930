package entindex

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// These columns are read by the index alone: the directories of a task, the pages of a batch, the
// parts of a result. Integers are varints, a list is its length and its elements, and the first
// byte is the version. Listings are compressed already, so further compression is not worthwhile.
//
// A part of a result that counts judged files has version 2, and these counts at its end.
// Committers of older versions take it for damaged: the task is walked again.
const (
	codecVersion  = 1
	judgedVersion = 2
	// judgedFrom is the first of the counts of judged files among all counts.
	judgedFrom = 14
)

func appendBytes[T string | []byte](dst []byte, b T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

func appendStrings(dst []byte, list []string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	for _, s := range list {
		dst = appendBytes(dst, s)
	}
	return dst
}

func appendPages(dst []byte, pages []backup.PageVersion) []byte {
	size := 0
	for i := range pages {
		size += len(pages[i].Path) + len(pages[i].Listing) + 48
	}
	dst = slices.Grow(dst, size)
	dst = binary.AppendUvarint(dst, uint64(len(pages)))
	for i := range pages {
		p := &pages[i]
		dst = appendBytes(dst, p.Path)
		dst = binary.AppendUvarint(dst, uint64(p.Key))
		dst = append(dst, p.Fingerprint[:]...)
		dst = binary.AppendUvarint(dst, p.Inode)
		dst = appendBytes(dst, p.Listing)
	}
	return dst
}

// appendFrames appends the lengths of a pack's frames.
func appendFrames(dst []byte, lengths []uint32) []byte {
	for _, n := range lengths {
		dst = binary.AppendUvarint(dst, uint64(n))
	}
	return NotNull(dst)
}

func encodeChild(c *backup.Child) []byte { return appendChild([]byte{codecVersion}, c) }

func appendChild(dst []byte, c *backup.Child) []byte {
	return appendStrings(appendStrings(dst, c.Directories), c.Mounts)
}

func decodeChild(data []byte) (backup.Child, error) {
	d := newDecoder(data)
	c := d.child()
	return c, d.finish("directories of a walk task")
}

func (d *decoder) child() backup.Child {
	return backup.Child{Directories: d.strings(), Mounts: d.strings()}
}

func encodeToRead(p *backup.PagesToRead) []byte { return appendToRead([]byte{codecVersion}, p) }

func appendToRead(dst []byte, p *backup.PagesToRead) []byte {
	return appendStrings(appendPages(dst, p.Pages), p.Mounts)
}

func decodeToRead(data []byte) (backup.PagesToRead, error) {
	d := newDecoder(data)
	p := d.toRead()
	return p, d.finish("pages of a read batch")
}

func (d *decoder) toRead() backup.PagesToRead {
	return backup.PagesToRead{Pages: d.pages(), Mounts: d.strings()}
}

// digestNames returns a digest that is equal for two lists with the same pages in any order.
func digestNames(pages []backup.PageVersion) []byte {
	names := make([][]byte, len(pages))
	for i := range pages {
		directory := listing.DirectoryID(pages[i].Path)
		names[i] = binary.BigEndian.AppendUint64(directory[:], uint64(pages[i].Key))
	}
	slices.SortFunc(names, bytes.Compare)
	sum := blake3.Sum256(bytes.Join(names, nil))
	return sum[:16]
}

func appendCounts(dst []byte, c *backup.Counts) []byte {
	integers := c.Integers()
	for _, n := range integers[:judgedFrom] {
		dst = binary.AppendUvarint(dst, uint64(*n))
	}
	for _, f := range c.Seconds() {
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(*f))
	}
	return dst
}

// encodeSlice encodes the content of a part of a result, but not its position among the parts.
func encodeSlice(s *backup.SliceWalked) []byte {
	dst := appendPages([]byte{codecVersion}, s.Pages)
	dst = binary.AppendUvarint(dst, uint64(len(s.Ended)))
	for _, name := range s.Ended {
		dst = binary.AppendUvarint(appendBytes(dst, name.Path), uint64(name.Key))
	}
	dst = appendStrings(dst, s.Removed)
	dst = binary.AppendUvarint(dst, uint64(len(s.Batches)))
	for i := range s.Batches {
		dst = appendToRead(dst, &s.Batches[i])
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.Children)))
	for i := range s.Children {
		dst = appendChild(dst, &s.Children[i])
	}
	dst = appendCounts(dst, &s.Counts)
	dst = binary.AppendUvarint(dst, uint64(len(s.Problems)))
	for _, p := range s.Problems {
		dst = appendBytes(appendBytes(appendBytes(dst, p.Path), p.Op), p.Err)
	}
	dst = binary.LittleEndian.AppendUint64(dst, s.Run)
	dst = appendBytes(appendBytes(dst, s.Source), s.Root.String())
	if s.Counts.FilesJudged > 0 {
		dst[0] = judgedVersion
		integers := s.Counts.Integers()
		for _, n := range integers[judgedFrom:] {
			dst = binary.AppendUvarint(dst, uint64(*n))
		}
	}
	return dst
}

func decodeSlice(data []byte) (*backup.SliceWalked, error) {
	judged := len(data) > 0 && data[0] == judgedVersion
	d := &decoder{}
	if judged {
		d.data = data[1:]
	} else {
		d = newDecoder(data)
	}
	s := &backup.SliceWalked{Pages: d.pages()}
	for range d.count(2) {
		s.Ended = append(s.Ended, backup.PageName{Path: string(d.bytes()), Key: backup.PageKey(d.uvarint())})
	}
	s.Removed = d.strings()
	for range d.count(2) {
		s.Batches = append(s.Batches, d.toRead())
	}
	for range d.count(2) {
		s.Children = append(s.Children, d.child())
	}
	integers := s.Counts.Integers()
	for _, n := range integers[:judgedFrom] {
		*n = int64(d.uvarint())
	}
	for _, f := range s.Counts.Seconds() {
		*f = math.Float64frombits(d.uint64())
	}
	for range d.count(3) {
		s.Problems = append(s.Problems, backup.Problem{Path: string(d.bytes()), Op: string(d.bytes()), Err: string(d.bytes())})
	}
	s.Run = d.uint64()
	s.Source = string(d.bytes())
	var err error
	if s.Root, err = backup.ParseRoot(string(d.bytes())); err != nil {
		d.fail()
	}
	if judged {
		for _, n := range integers[judgedFrom:] {
			*n = int64(d.uvarint())
		}
	}
	return s, d.finish("part of a result")
}

// A decoder reads what the functions above wrote. After an error it returns zeros, and finish
// returns the error. The decoded values share memory with data.
type decoder struct {
	data []byte
	bad  bool
}

func newDecoder(data []byte) *decoder {
	if len(data) == 0 || data[0] != codecVersion {
		return &decoder{bad: true}
	}
	return &decoder{data: data[1:]}
}

func (d *decoder) finish(what string) error {
	if d.bad || len(d.data) > 0 {
		return fmt.Errorf("%s in the index: %w", what, backup.ErrCorrupt)
	}
	return nil
}

func (d *decoder) fail() { d.bad, d.data = true, nil }

func (d *decoder) uvarint() uint64 {
	n, size := binary.Uvarint(d.data)
	if size <= 0 {
		d.fail()
		return 0
	}
	d.data = d.data[size:]
	return n
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.data)) {
		d.fail()
		return nil
	}
	b := d.data[:n:n]
	d.data = d.data[n:]
	return b
}

func (d *decoder) bytes() []byte { return d.take(d.uvarint()) }

func (d *decoder) uint64() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads the length of a list whose elements have at least minBytes, so that a damaged length
// does not cause an allocation.
func (d *decoder) count(minBytes int) int {
	n := d.uvarint()
	if n > uint64(len(d.data)/minBytes) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoder) strings() []string {
	n := d.count(1)
	if n == 0 {
		return nil
	}
	list := make([]string, n)
	for i := range list {
		list[i] = string(d.bytes())
	}
	return list
}

func (d *decoder) pages() []backup.PageVersion {
	n := d.count(20)
	if n == 0 {
		return nil
	}
	pages := make([]backup.PageVersion, n)
	for i := range pages {
		p := &pages[i]
		p.Path = string(d.bytes())
		p.Key = backup.PageKey(d.uvarint())
		copy(p.Fingerprint[:], d.take(16))
		p.Inode = d.uvarint()
		p.Listing = d.bytes()
	}
	return pages
}

package live

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"os"
	"sort"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// A what is what a record says of pages.
type what byte

const (
	isGone what = iota // the directory is gone, with everything below it
	isPage
	isEnded // there is no such page any more
)

// A record is a page, or says that there is none.
type record struct {
	pathKey string
	what    what
	page    backup.PageVersion // its Path is only in pathKey
}

// compare orders records as pages are ordered. What is said of a whole directory comes first.
func (r *record) compare(of *record) int {
	return cmp.Or(strings.Compare(r.pathKey, of.pathKey), cmp.Compare(min(r.what, isPage), min(of.what, isPage)), cmp.Compare(r.page.Key, of.page.Key))
}

// version returns the page.
func (r *record) version() (v backup.PageVersion, err error) {
	v = r.page
	v.Path, err = backup.PathOfKey([]byte(r.pathKey))
	return v, err
}

// A pageFile has sorted records, in a temporary file without a name.
type pageFile struct {
	file  *os.File
	out   *bufio.Writer // nil: everything is written
	end   int64
	marks []mark
	head  []byte
}

// A mark is where a record begins. There is one in markBytes of the file.
type mark struct {
	pathKey string
	at      int64
}

const markBytes = 64 << 10

func newPageFile() (*pageFile, error) {
	f, err := os.CreateTemp("", "bctl-diff-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &pageFile{file: f, out: bufio.NewWriterSize(f, 1<<20)}, nil
}

// write appends a record.
func (p *pageFile) write(r *record) error {
	if n := len(p.marks); n == 0 || p.end-p.marks[n-1].at >= markBytes {
		p.marks = append(p.marks, mark{r.pathKey, p.end})
	}
	b := binary.AppendUvarint(p.head[:0], uint64(len(r.pathKey)))
	b = append(b, r.pathKey...)
	b = append(b, byte(r.what))
	b = binary.AppendVarint(b, int64(r.page.Key))
	b = binary.AppendUvarint(b, r.page.Inode)
	b = append(b, r.page.Fingerprint[:]...)
	b = append(b, r.page.Digest[:]...)
	b = binary.AppendUvarint(b, uint64(len(r.page.Listing)))
	p.head = b
	p.end += int64(len(b) + len(r.page.Listing))
	_, err := p.out.Write(b)
	if err == nil {
		_, err = p.out.Write(r.page.Listing)
	}
	return err
}

// flush ends the writing, and gives the memory of the buffer free.
func (p *pageFile) flush() error {
	err := p.out.Flush()
	p.out = nil
	return err
}

// from yields the records at a path key and after it. The file must have been flushed.
func (p *pageFile) from(pathKey string) iter.Seq2[record, error] {
	return func(yield func(record, error) bool) {
		// Records of this path key may begin before the first mark of it.
		n := max(sort.Search(len(p.marks), func(i int) bool { return p.marks[i].pathKey >= pathKey })-1, 0)
		if len(p.marks) == 0 {
			return
		}
		at := p.marks[n].at
		in := bufio.NewReaderSize(io.NewSectionReader(p.file, at, p.end-at), 256<<10)
		for {
			r, err := readRecord(in)
			if errors.Is(err, io.EOF) {
				return
			}
			if err == nil && r.pathKey < pathKey {
				continue
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

func readRecord(in *bufio.Reader) (r record, err error) {
	pathKey, err := readBytes(in)
	if err != nil {
		return r, err // the only place where a file may end
	}
	r.pathKey = string(pathKey)
	kind, err := in.ReadByte()
	if err != nil {
		return r, noEnd(err)
	}
	r.what = what(kind)
	key, err := binary.ReadVarint(in)
	if err != nil {
		return r, noEnd(err)
	}
	r.page.Key = backup.PageKey(key)
	if r.page.Inode, err = binary.ReadUvarint(in); err != nil {
		return r, noEnd(err)
	}
	for _, field := range [][]byte{r.page.Fingerprint[:], r.page.Digest[:]} {
		if _, err := io.ReadFull(in, field); err != nil {
			return r, noEnd(err)
		}
	}
	r.page.Listing, err = readBytes(in)
	return r, noEnd(err)
}

func readBytes(in *bufio.Reader) ([]byte, error) {
	n, err := binary.ReadUvarint(in)
	if err != nil {
		return nil, err
	}
	b := make([]byte, n) // this process has written the length
	_, err = io.ReadFull(in, b)
	return b, noEnd(err)
}

func noEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (p *pageFile) close() {
	if p != nil {
		_ = p.file.Close() // the file has no name, so that deletes it
	}
}

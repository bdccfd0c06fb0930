package names

import (
	"bytes"
	"encoding/binary"

	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// A reader reads one part of a block. Its first failure makes all later reads return zero.
type reader struct {
	b      []byte
	failed bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || r.failed {
		r.failed = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) bytes(n uint64) []byte {
	if n > uint64(len(r.b)) || r.failed {
		r.failed = true
		return nil
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

// minPageBytes is the least that the head of a block has of a page: four numbers.
const minPageBytes = 4

// parse reads a block after decompression. It allocates no more than the limits of a block allow,
// whatever the block says: the bytes of each page and of each name must be there.
func parse(raw []byte) ([]Page, error) {
	r := reader{b: raw}
	var parts [4]reader
	for i := range parts {
		parts[i].b = r.bytes(r.uvarint())
	}
	head, shared, own, text := &parts[0], &parts[1], &parts[2], &parts[3]
	count := head.uvarint()
	if r.failed || len(r.b) > 0 || head.failed || count > uint64(len(head.b))/minPageBytes {
		return nil, corrupt("its parts are not as long as they say")
	}
	p := parser{shared: shared, own: own, text: text, path: []byte{}}
	pages := make([]Page, 0, count)
	for range count {
		page, err := p.page(head)
		if err != nil {
			return nil, err
		}
		pages = append(pages, page)
	}
	if len(head.b)+len(shared.b)+len(own.b)+len(text.b) > 0 {
		return nil, corrupt("it has more than its pages")
	}
	return pages, nil
}

type parser struct {
	shared, own, text *reader
	path              []byte // of the last page
	total             int    // bytes of names and path keys
}

func (p *parser) page(head *reader) (Page, error) {
	shared := head.uvarint()
	own := head.bytes(head.uvarint())
	key, count := head.uvarint(), head.uvarint()
	if head.failed || shared > uint64(len(p.path)) || key > 1<<63-1 || count > uint64(len(p.shared.b)) {
		return Page{}, corrupt("a page of it is malformed")
	}
	path := append(bytes.Clone(p.path[:shared]), own...)
	p.path = path
	if p.total += len(path); p.total > maxText {
		return Page{}, corrupt("it has too many bytes")
	}
	if count > uint64(maxText-p.total) { // a name has at least one byte
		return Page{}, corrupt("it has too many names")
	}
	if _, err := backup.PathOfKey(path); err != nil {
		return Page{}, err
	}
	names, err := p.names(int(count))
	return Page{PathKey: path, Key: backup.PageKey(key), Names: names}, err
}

// names reads the names of a page into one string.
func (p *parser) names(count int) ([]string, error) {
	var arena strings.Builder
	ends := make([]int, count)
	last := 0 // where the last name begins
	for i := range ends {
		shared, own := p.shared.uvarint(), p.text.bytes(p.own.uvarint())
		if p.shared.failed || p.own.failed || p.text.failed || shared > uint64(arena.Len()-last) {
			return nil, corrupt("a name of it is malformed")
		}
		if p.total += int(shared) + len(own); p.total > maxText {
			return nil, corrupt("it has too many bytes")
		}
		before := arena.String()[last:][:shared]
		last = arena.Len()
		arena.WriteString(before)
		arena.Write(own)
		ends[i] = arena.Len()
	}
	text, begin := arena.String(), 0
	names := make([]string, count)
	for i, end := range ends {
		names[i] = text[begin:end]
		if err := backup.CheckName(names[i]); err != nil {
			return nil, corrupt("%v", err)
		}
		begin = end
	}
	return names, nil
}

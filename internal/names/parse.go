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
	if len(r.b) > 0 && r.b[0] < 0x80 && !r.failed {
		v := r.b[0]
		r.b = r.b[1:]
		return uint64(v)
	}
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
	spans             []span // of the names of a page
}

// A span says how much of a name is the beginning of the one before it, and how much is its own.
type span struct{ shared, own uint64 }

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
	p.spans = p.spans[:0]
	length, total := uint64(0), uint64(0) // of the last name, and of all
	for range count {
		n := span{p.shared.uvarint(), p.own.uvarint()}
		if p.shared.failed || p.own.failed || n.shared > length || n.own > uint64(len(p.text.b)) {
			return nil, corrupt("a name of it is malformed")
		}
		length = n.shared + n.own
		if total += length; total > uint64(maxText-p.total) {
			return nil, corrupt("it has too many bytes")
		}
		p.spans = append(p.spans, n)
	}
	p.total += int(total)
	var arena strings.Builder
	arena.Grow(int(total))
	names, last := make([]string, count), ""
	for i, n := range p.spans {
		own := p.text.bytes(n.own)
		if p.text.failed {
			return nil, corrupt("a name of it is malformed")
		}
		begin := arena.Len()
		arena.WriteString(last[:n.shared])
		arena.Write(own)
		last = arena.String()[begin:]
		if err := backup.CheckName(last); err != nil {
			return nil, corrupt("%v", err)
		}
		names[i] = last
	}
	return names, nil
}

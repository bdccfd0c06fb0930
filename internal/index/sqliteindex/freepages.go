package sqliteindex

import (
	"encoding/binary"
	"io"
	"slices"
)

// https://www.sqlite.org/fileformat2.html: the header of the file, and the list of free pages. It
// is a chain of trunk pages, each with the numbers of leaf pages, which have no content.
const (
	headerBytes     = 100
	pageSizeAt      = 16
	reservedAt      = 20
	firstTrunkAt    = 32
	freeCountAt     = 36
	minPageBytes    = 512
	maxPageBytes    = 64 << 10
	trunkLeavesAt   = 8 // after the number of the next trunk, and that of leaves
	pageNumberBytes = 4
)

// freePages are the pages of a database file that have no content.
type freePages struct {
	pageBytes int64
	is        []bool // by number - 1; nil: they are not known
}

// readFreePages reads the list of free pages of a database file. The list of a damaged file may be
// wrong: then no page counts as free.
func readFreePages(file io.ReaderAt, bytes int64) (f freePages, err error) {
	var header [headerBytes]byte
	if bytes < headerBytes {
		return f, nil
	}
	if _, err := file.ReadAt(header[:], 0); err != nil {
		return f, err
	}
	f.pageBytes = int64(binary.BigEndian.Uint16(header[pageSizeAt:]))
	if f.pageBytes == 1 {
		f.pageBytes = maxPageBytes
	}
	pages, free := int64(0), int64(binary.BigEndian.Uint32(header[freeCountAt:]))
	if f.pageBytes >= minPageBytes {
		pages = bytes / f.pageBytes
	}
	if free == 0 || free >= pages || bytes%f.pageBytes != 0 {
		return f, nil
	}
	is := make([]bool, pages)
	var trunks []int64
	trunk, found := int64(binary.BigEndian.Uint32(header[firstTrunkAt:])), int64(0)
	for page := make([]byte, f.pageBytes-int64(header[reservedAt])); trunk != 0; {
		if found++; found > free || trunk > pages {
			return f, nil
		}
		trunks = append(trunks, trunk)
		if _, err := file.ReadAt(page, (trunk-1)*f.pageBytes); err != nil {
			return f, err
		}
		leaves := int64(binary.BigEndian.Uint32(page[pageNumberBytes:]))
		if leaves > (int64(len(page))-trunkLeavesAt)/pageNumberBytes {
			return f, nil
		}
		for i := range leaves {
			n := int64(binary.BigEndian.Uint32(page[trunkLeavesAt+i*pageNumberBytes:]))
			if found++; n <= 1 || n > pages || is[n-1] {
				return f, nil
			}
			is[n-1] = true
		}
		trunk = int64(binary.BigEndian.Uint32(page))
	}
	if found == free && !slices.ContainsFunc(trunks, func(n int64) bool { return is[n-1] }) {
		f.is = is
	}
	return f, nil
}

// A contentReader reads a database file, with zeros instead of what its free pages have been.
type contentReader struct {
	file      io.ReaderAt
	at, bytes int64
	free      freePages
}

func (r *contentReader) Read(p []byte) (n int, err error) {
	for n < len(p) && r.at < r.bytes {
		free, end := r.run(r.at + int64(len(p)-n))
		part := p[n : n+int(end-r.at)]
		if free {
			clear(part)
		} else if _, err := r.file.ReadAt(part, r.at); err != nil {
			return n, err
		}
		n, r.at = n+len(part), end
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// run returns the end of the run of free pages, or of others, that begins where the reader is. It
// is at most limit.
func (r *contentReader) run(limit int64) (free bool, end int64) {
	limit = min(limit, r.bytes)
	if r.free.is == nil {
		return false, limit
	}
	page := r.at / r.free.pageBytes
	free = r.free.is[page]
	for page++; page*r.free.pageBytes < limit && r.free.is[page] == free; page++ {
	}
	return free, min(page*r.free.pageBytes, limit)
}

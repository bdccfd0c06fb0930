package walk

import (
	"bufio"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

const (
	// spillEntries is how many entries of one directory are held in memory: about 20 MB. A larger
	// directory is sorted in runs of that many entries, which are written to a temporary file and
	// merged from there (I9).
	spillEntries = 64 << 10
	// All directories together hold bufferedDirectories times spillEntries in memory. Beyond that,
	// runs become shorter, down to spillEntries divided by spillParts.
	bufferedDirectories = 2
	spillParts          = 8
	spillRuns           = 64 // maximum number of runs of a directory that are shorter than spillEntries
	// blockEntries is how many entries of a run are encoded and read back together.
	blockEntries = 512
	// spillSubdirectories is how many subdirectories of a directory wait in memory; further ones
	// become child tasks at once.
	spillSubdirectories = 8192
)

// A runFile has the sorted runs of one directory. The file is unlinked.
type runFile struct {
	file *os.File
	runs []run
	end  int64
}

// A run is a part of the file: blocks, each a length and a listing.
type run struct{ from, to int64 }

// isLarge reports whether the entries in memory are to be spilled.
func (w *visit) isLarge() bool {
	n, most := len(w.entries), w.slice.svc.spillEntries
	if n < most/spillParts {
		return false // the case of almost all directories
	}
	buffered := w.buffer(n)
	// A merge holds one block per run: the more runs there are, the longer the next one must be.
	return n >= most || buffered > int64(bufferedDirectories*most) && n >= w.total/spillRuns
}

// buffer makes the service count n entries of this directory, and returns the count of all
// directories.
func (w *visit) buffer(n int) int64 {
	if n == w.buffered {
		return w.slice.svc.buffered.Load()
	}
	change := n - w.buffered
	w.buffered = n
	return w.slice.svc.buffered.Add(int64(change))
}

// spill writes the entries in memory as one more run. A failure is caused by this machine, not by
// the directory.
func (w *visit) spill() error {
	if err := w.spillRun(); err != nil {
		return fmt.Errorf("sort a large directory: %w: %w", err, backup.ErrUnavailable)
	}
	return nil
}

func (w *visit) spillRun() error {
	if w.spilled == nil {
		f, err := os.CreateTemp("", "bctl-walk-")
		if err != nil {
			return err
		}
		if err := os.Remove(f.Name()); err != nil {
			return errors.Join(err, f.Close())
		}
		w.spilled = &runFile{file: f}
	}
	w.sortAndCount()
	err := w.spilled.write(w.entries)
	clear(w.entries)
	w.entries = w.entries[:0]
	w.buffer(0)
	return err
}

func (s *runFile) write(entries []backup.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	out := bufio.NewWriterSize(io.NewOffsetWriter(s.file, s.end), 1<<20)
	var encode listing.Encoder
	var block []byte
	from := s.end
	for len(entries) > 0 {
		n := min(blockEntries, len(entries))
		var err error
		if block, err = encode.Encode(block[:0], &backup.Page{Entries: entries[:n]}); err != nil {
			return err
		}
		var size [4]byte
		binary.LittleEndian.PutUint32(size[:], uint32(len(block)))
		if _, err := out.Write(size[:]); err != nil {
			return err
		}
		if _, err := out.Write(block); err != nil {
			return err
		}
		s.end += int64(len(size) + len(block))
		entries = entries[n:]
	}
	s.runs = append(s.runs, run{from, s.end})
	return out.Flush()
}

func (s *runFile) close() { _ = s.file.Close() } // the file has no name, so that deletes it

// A merge yields the entries of all runs in order, each name once: from the last run that has it.
type merge struct {
	cursors []*cursor
	last    string // name that it yielded last
}

// A cursor is a position in a run.
type cursor struct {
	run     int
	in      *bufio.Reader
	entries []backup.Entry // of the block, beginning with the current one
}

func (s *runFile) merge() (*merge, error) {
	m := &merge{}
	for i, r := range s.runs {
		c := &cursor{run: i, in: bufio.NewReaderSize(io.NewSectionReader(s.file, r.from, r.to-r.from), 64<<10)}
		if err := c.block(); err != nil {
			return nil, err
		}
		m.cursors = append(m.cursors, c)
	}
	heap.Init(m)
	return m, nil
}

// block reads the cursor's next block; io.EOF is the end of the run.
func (c *cursor) block() error {
	var size [4]byte
	if _, err := io.ReadFull(c.in, size[:]); err != nil {
		return err
	}
	data := make([]byte, binary.LittleEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c.in, data); err != nil {
		return fmt.Errorf("sort a large directory: %w", err)
	}
	p, err := listing.Decode(data)
	c.entries = p.Entries
	return err
}

// next appends up to n entries to dst; after the last entry it appends none and returns io.EOF.
func (m *merge) next(dst []backup.Entry, n int) ([]backup.Entry, error) {
	if len(m.cursors) == 0 {
		return dst, io.EOF
	}
	for n > 0 && len(m.cursors) > 0 {
		c := m.cursors[0]
		if name := c.entries[0].Name; name != m.last {
			dst = append(dst, c.entries[0])
			m.last = name
			n--
		}
		c.entries = c.entries[1:]
		if len(c.entries) == 0 {
			switch err := c.block(); {
			case errors.Is(err, io.EOF):
				heap.Pop(m)
				continue
			case err != nil:
				return dst, err
			}
		}
		heap.Fix(m, 0)
	}
	return dst, nil
}

// For container/heap: the cursor at the least name is first; of several, the one in the last run.
func (m *merge) Len() int { return len(m.cursors) }

func (m *merge) Less(i, j int) bool {
	a, b := m.cursors[i], m.cursors[j]
	if c := strings.Compare(a.entries[0].Name, b.entries[0].Name); c != 0 {
		return c < 0
	}
	return a.run > b.run
}

func (m *merge) Swap(i, j int) { m.cursors[i], m.cursors[j] = m.cursors[j], m.cursors[i] }
func (m *merge) Push(x any)    { m.cursors = append(m.cursors, x.(*cursor)) }

func (m *merge) Pop() any {
	last := m.cursors[len(m.cursors)-1]
	m.cursors = m.cursors[:len(m.cursors)-1]
	return last
}

// pages calls fn with each page of the directory in turn; next is the key of the following page.
func (s *runFile) pages(fn func(key, next backup.PageKey, entries []backup.Entry) error) error {
	m, err := s.merge()
	if err != nil {
		return err
	}
	var ahead []backup.Entry
	var keys listing.Keys
	key, more := backup.PageKey(0), true
	for {
		n := listing.Cut(ahead, more)
		// The entry after a page must be known, too.
		for more && (n == 0 || n == len(ahead)) {
			if ahead, err = m.next(ahead, blockEntries); errors.Is(err, io.EOF) {
				more = false
			} else if err != nil {
				return err
			}
			n = listing.Cut(ahead, more)
		}
		if n == 0 {
			return nil
		}
		next := backup.PageKey(0)
		if n < len(ahead) {
			next = keys.Next(ahead[n].Name)
		}
		if err := fn(key, next, ahead[:n]); err != nil {
			return err
		}
		ahead = append(ahead[:0], ahead[n:]...)
		key = next
	}
}

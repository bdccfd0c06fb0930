package walk

import (
	"bufio"
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

const (
	// spillEntries is how much of one directory is held in memory: about 20 MB.
	// A larger one is sorted in runs of so many entries, which are written to a
	// temporary file and merged from there (I9).
	spillEntries = 64 << 10
	// All directories together hold heldDirectories times as many: beyond that, runs are as short as a spillParts-th of it.
	heldDirectories = 2
	spillParts      = 8
	spillRuns       = 64 // runs shorter than spillEntries are of a directory, at most
	// blockEntries of a run are encoded and read back together.
	blockEntries = 512
	// spillSubdirectories of a directory wait in memory; more become child
	// tasks at once.
	spillSubdirectories = 8192
)

// A spill is the sorted runs of one directory, in a file that has no name.
type spill struct {
	file *os.File
	runs []run
	end  int64
}

// A run is a part of the file: blocks, each a length and a listing.
type run struct{ from, to int64 }

// isLarge says whether the entries in memory are to be spilled.
func (w *visit) isLarge() bool {
	n, most := len(w.entries), w.slice.svc.spillEntries
	if n < most/spillParts {
		return false // as of almost all directories
	}
	held := w.hold(n)
	// A merge holds a block of each run: the more there are, the longer is the next.
	return n >= most || held > int64(heldDirectories*most) && n >= w.total/spillRuns
}

// hold has the service count n entries of this directory, and returns how many it counts of all.
func (w *visit) hold(n int) int64 {
	if n == w.held {
		return w.slice.svc.held.Load()
	}
	change := n - w.held
	w.held = n
	return w.slice.svc.held.Add(int64(change))
}

// spill writes the entries in memory as one more run. That it cannot is this
// machine's fault, and says nothing about the directory.
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
		w.spilled = &spill{file: f}
	}
	w.admit()
	err := w.spilled.write(w.entries)
	clear(w.entries)
	w.entries = w.entries[:0]
	w.hold(0)
	return err
}

func (s *spill) write(entries []backup.Entry) error {
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

func (s *spill) close() { _ = s.file.Close() } // it has no name: that is the end of it

// A merge yields the entries of all runs in order, each name once.
type merge struct {
	cursors []*cursor
	last    string // name that it yielded last
}

// A cursor is at one entry of a run.
type cursor struct {
	in      *bufio.Reader
	entries []backup.Entry // of the block, from the one that the cursor is at
}

func (s *spill) merge() (*merge, error) {
	m := &merge{}
	for _, r := range s.runs {
		c := &cursor{in: bufio.NewReaderSize(io.NewSectionReader(s.file, r.from, r.to-r.from), 64<<10)}
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

// next appends up to n entries to dst; it returns io.EOF with none after the last.
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

// For container/heap: the cursor at the least name is first.
func (m *merge) Len() int { return len(m.cursors) }
func (m *merge) Less(i, j int) bool {
	return m.cursors[i].entries[0].Name < m.cursors[j].entries[0].Name
}
func (m *merge) Swap(i, j int) { m.cursors[i], m.cursors[j] = m.cursors[j], m.cursors[i] }
func (m *merge) Push(x any)    { m.cursors = append(m.cursors, x.(*cursor)) }
func (m *merge) Pop() any {
	last := m.cursors[len(m.cursors)-1]
	m.cursors = m.cursors[:len(m.cursors)-1]
	return last
}

// pages calls fn with each page of the directory in turn; next is the key of
// the one that follows.
func (s *spill) pages(fn func(key, next backup.PageKey, entries []backup.Entry) error) error {
	m, err := s.merge()
	if err != nil {
		return err
	}
	var window []backup.Entry
	var keys listing.Keys
	key, more := backup.PageKey(0), true
	for {
		n := listing.Cut(window, more)
		// What follows a page must be known, too.
		for more && (n == 0 || n == len(window)) {
			if window, err = m.next(window, blockEntries); errors.Is(err, io.EOF) {
				more = false
			} else if err != nil {
				return err
			}
			n = listing.Cut(window, more)
		}
		if n == 0 {
			return nil
		}
		next := backup.PageKey(0)
		if n < len(window) {
			next = keys.Next(window[n].Name)
		}
		if err := fn(key, next, window[:n]); err != nil {
			return err
		}
		window = append(window[:0], window[n:]...)
		key = next
	}
}

// storeSpilled is cut and store for a directory that is not in memory: a page
// at a time, each compared with the last snapshot's page of the same key, at the path where the directory was then. A
// file that has come to another page because the cuts moved is read again.
func (w *visit) storeSpilled(ctx context.Context) (subdirectories []string, err error) {
	from, err := w.oldPath(ctx)
	if err != nil {
		return nil, err
	}
	if len(w.marks) > 0 {
		var self *backup.Entry
		err := w.eachOld(ctx, []backup.PageName{{Path: from}}, func(_ string, p *backup.Page) error { self = p.Self; return nil })
		if err != nil {
			return nil, err
		}
		if w.unmounted(self) {
			return nil, w.slice.carry(ctx, w.path, w.path, errUnmounted, "open")
		}
	}
	keys := map[backup.PageKey]bool{}
	gone := map[string]bool{} // subdirectories of old pages that are not on their new ones
	err = w.spilled.pages(func(key, next backup.PageKey, entries []backup.Entry) error {
		keys[key] = true
		subdirectories = w.subdirectories(subdirectories, entries)
		if len(subdirectories) >= spillSubdirectories {
			if err := w.slice.result.children(ctx, subdirectories, w.slice.task.Generation); err != nil {
				return err
			}
			subdirectories = nil
		}
		return w.storeSpilledPage(ctx, page{key: key, next: next, entries: entries}, from, gone)
	})
	if err != nil {
		return nil, err
	}
	var ended []backup.PageKey
	for i := range w.marks {
		if !keys[w.marks[i].Key] {
			ended = append(ended, w.marks[i].Key)
		}
	}
	return subdirectories, w.endSpilled(ctx, ended, gone)
}

func (w *visit) storeSpilledPage(ctx context.Context, p page, from string, gone map[string]bool) error {
	key, entries := p.key, p.entries
	if key == 0 {
		p.self = &w.self
	}
	w.pages = w.pages[:0]
	w.compare(p)
	if len(w.pages) > 0 {
		var old backup.Page
		if from != w.path || w.marked(key) {
			err := w.eachOld(ctx, []backup.PageName{{Path: from, Key: key}}, func(_ string, p *backup.Page) error { old = *p; return nil })
			if err != nil {
				return err
			}
		}
		if from == w.path { // elsewhere, the directory that it was in ends it if it is gone
			for _, name := range listing.RemovedDirectories(entries, old.Entries) {
				gone[name] = true
			}
		}
		if err := w.takeOver(ctx, &w.pages[0], old.Entries, old.Self); err != nil {
			return err
		}
	}
	err := w.storePages(ctx)
	w.counts, w.problems, w.answers = backup.Counts{}, nil, 0
	return err
}

// endSpilled ends pages that are gone, and directories that are on no page.
func (w *visit) endSpilled(ctx context.Context, ended []backup.PageKey, gone map[string]bool) error {
	err := w.eachOld(ctx, pageNames(w.path, ended), func(_ string, old *backup.Page) error {
		for _, name := range listing.RemovedDirectories(nil, old.Entries) {
			gone[name] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, key := range ended {
		if err := w.slice.result.ended(ctx, backup.PageName{Path: w.path, Key: key}); err != nil {
			return err
		}
	}
	if len(gone) == 0 {
		return nil
	}
	err = w.spilled.pages(func(_, _ backup.PageKey, entries []backup.Entry) error {
		for i := range entries {
			if entries[i].Kind == backup.Directory {
				delete(gone, entries[i].Name)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for name := range gone {
		if err := w.slice.result.removed(ctx, backup.Join(w.path, name)); err != nil {
			return err
		}
	}
	return nil
}

package live

import (
	"iter"
	"slices"
)

// runBytes is how much a sorter holds in memory. More is sorted in runs of that length, which are
// written to temporary files.
const runBytes = 32 << 20

// A sorter sorts records. Of records of the same page, the last one counts.
type sorter struct {
	held  []record
	bytes int
	most  int // fewer than runBytes in tests
	runs  []*pageFile
}

func (s *sorter) add(r record) error {
	s.held = append(s.held, r)
	s.bytes += len(r.pathKey) + len(r.page.Listing) + 128
	if s.bytes < s.most {
		return nil
	}
	return s.spill()
}

// spill writes what is in memory as one more run.
func (s *sorter) spill() error {
	run, err := newPageFile()
	if err != nil {
		return err
	}
	s.runs = append(s.runs, run)
	s.sort()
	for i := range s.held {
		if err := run.write(&s.held[i]); err != nil {
			return err
		}
	}
	s.held, s.bytes = nil, 0
	return run.flush()
}

func (s *sorter) sort() {
	slices.SortStableFunc(s.held, func(a, b record) int { return a.compare(&b) })
}

// all yields the records in order.
func (s *sorter) all() iter.Seq2[record, error] {
	return func(yield func(record, error) bool) {
		s.sort()
		var sources []*cursor
		defer func() {
			for _, c := range sources {
				c.stop()
			}
		}()
		for _, run := range s.runs {
			sources = append(sources, newCursor(run.from("")))
		}
		sources = append(sources, newCursor(func(yield func(record, error) bool) {
			for i := range s.held {
				if !yield(s.held[i], nil) {
					return
				}
			}
		}))
		for {
			r, ok, err := least(sources)
			if !ok || !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// least takes the least of the next records. Of equal ones, it takes all, and returns the last.
func least(sources []*cursor) (found record, ok bool, err error) {
	for _, c := range sources {
		if c.err != nil {
			return found, true, c.err
		}
		if c.ok && (!ok || c.head.compare(&found) < 0) {
			found, ok = c.head, true
		}
	}
	for _, c := range sources {
		for ok && c.ok && c.head.compare(&found) == 0 {
			found = c.head
			c.advance()
		}
	}
	return found, ok, nil
}

// A cursor is a place in a stream of records.
type cursor struct {
	next func() (record, error, bool)
	stop func()
	head record
	ok   bool // there is a head
	err  error
}

func newCursor(of iter.Seq2[record, error]) *cursor {
	c := &cursor{}
	c.next, c.stop = iter.Pull2(of)
	c.advance()
	return c
}

func (c *cursor) advance() {
	c.head, c.err, c.ok = c.next()
	c.ok = c.ok && c.err == nil
}

func (s *sorter) close() {
	for _, run := range s.runs {
		run.close()
	}
}

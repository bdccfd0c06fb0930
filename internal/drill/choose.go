package drill

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/listing"
)

// A choice is what a drill restores.
type choice struct {
	sample      map[string]bool // paths
	sampleBytes int64
	directory   *candidate // nil: none is small enough
	tally
}

// A tally counts the files of a snapshot: all that is not a directory.
type tally struct {
	files    int64
	missing  int64 // of these, those without content, which no restore makes
	tooLarge int64 // of these, those that are not in the sample because of their size
}

// A candidate is a directory, with everything below it.
type candidate struct {
	path    string
	rank    float64 // the least wins
	bytes   int64
	entries int64
}

// less orders candidates by rank; the path decides between equal ones.
func (c *candidate) less(other *candidate) bool {
	return other == nil || cmp.Or(cmp.Compare(c.rank, other.rank), cmp.Compare(c.path, other.path)) < 0
}

// A chooser reads the listings of a snapshot in walk order.
type chooser struct {
	seed     uint64
	maxFiles int
	maxBytes int64

	open   []level // directories from the root to the current one
	sample sampleHeap
	tally
}

// A level is an open directory.
type level struct {
	candidate
	best *candidate // of the directories below
}

// chosen is a file of the sample.
type chosen struct {
	path string
	rank uint64
	size int64
}

// sampleHeap has the file that leaves first at its top.
type sampleHeap []chosen

func (h sampleHeap) Len() int           { return len(h) }
func (h sampleHeap) Less(i, j int) bool { return compareChosen(h[i], h[j]) > 0 }
func (h sampleHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *sampleHeap) Push(x any)        { *h = append(*h, x.(chosen)) }
func (h *sampleHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func compareChosen(a, b chosen) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.path, b.path))
}

// choose reads all listings of the snapshot. Damaged ones are left out: the restore reports them.
func choose(ctx context.Context, c browse.Catalog, id backup.SnapshotID, seed uint64, maxFiles int, maxBytes int64) (*choice, error) {
	s := &chooser{seed: seed, maxFiles: maxFiles, maxBytes: maxBytes}
	var best *candidate
	for v, err := range c.Pages(ctx, id, "") {
		if err != nil {
			return nil, err
		}
		page, err := listing.DecodePage(v)
		if err != nil {
			continue
		}
		best = s.enter(v.Path, best)
		s.add(v.Path, page.Entries)
	}
	for len(s.open) > 0 {
		best = s.leave(best)
	}
	result := &choice{sample: map[string]bool{}, directory: best, tally: s.tally}
	slices.SortFunc(s.sample, compareChosen)
	for _, f := range s.sample {
		if f.size > maxBytes-result.sampleBytes {
			result.tooLarge++
			continue
		}
		result.sample[f.path] = true
		result.sampleBytes += f.size
	}
	return result, nil
}

// enter makes path the current directory. best is the best candidate of what was left so far, if no
// open directory has it.
func (s *chooser) enter(path string, best *candidate) *candidate {
	for len(s.open) > 0 && s.open[len(s.open)-1].path != path && !backup.IsBelow(path, s.open[len(s.open)-1].path) {
		best = s.leave(best)
	}
	if len(s.open) == 0 || s.open[len(s.open)-1].path != path {
		s.open = append(s.open, level{candidate: candidate{path: path}})
	}
	return best
}

// leave closes the innermost directory. A directory that is small enough stands for everything
// below it.
func (s *chooser) leave(best *candidate) *candidate {
	last := s.open[len(s.open)-1]
	s.open = s.open[:len(s.open)-1]
	found := last.best
	if last.bytes <= s.maxBytes && last.entries > 0 {
		c := last.candidate
		// With these ranks, the probability of each directory is in proportion to its entries.
		c.rank = -math.Log((float64(s.hash("directory", c.path)>>11)+0.5)/(1<<53)) / float64(c.entries)
		found = &c
	}
	if len(s.open) == 0 {
		if found != nil && found.less(best) {
			best = found
		}
		return best
	}
	above := &s.open[len(s.open)-1]
	above.bytes = sum(above.bytes, last.bytes)
	above.entries += last.entries
	if found != nil && found.less(above.best) {
		above.best = found
	}
	return best
}

// add considers the entries of a page.
func (s *chooser) add(dir string, entries []backup.Entry) {
	above := &s.open[len(s.open)-1]
	for i := range entries {
		e := &entries[i]
		if e.Kind == backup.Directory {
			continue
		}
		s.files++
		if !restorable(e) {
			s.missing++
			continue
		}
		size := max(e.Size, 0)
		above.entries++
		above.bytes = sum(above.bytes, size)
		if size > s.maxBytes {
			s.tooLarge++
			continue
		}
		path := backup.Join(dir, e.Name)
		f := chosen{path, s.hash("file", path), size}
		switch {
		case len(s.sample) < s.maxFiles:
			heap.Push(&s.sample, f)
		case s.maxFiles > 0 && compareChosen(f, s.sample[0]) < 0:
			s.sample[0] = f
			heap.Fix(&s.sample, 0)
		}
	}
}

// ErrNothing reports that a drill would prove nothing: the snapshot has files, and none can be
// restored within the limits.
var ErrNothing = errors.New("nothing to restore")

// provesNothing returns ErrNothing if a snapshot with files has none for the drill. A snapshot
// without files is proven by its listings.
func (c *choice) provesNothing(o *Options) error {
	switch {
	case len(c.sample) > 0 || c.directory != nil || c.files == 0:
		return nil
	case c.missing == c.files:
		return fmt.Errorf("%w: the snapshot lacks the content of all its files (%d)", ErrNothing, c.files)
	}
	return fmt.Errorf("%w: %d files of at most %d bytes were allowed, and a directory of at most as many bytes", ErrNothing, o.MaxFiles, o.MaxBytes)
}

// sum adds sizes. Those of sparse files may exceed any disk.
func sum(a, b int64) int64 { return min(a, math.MaxInt64-b) + b }

// restorable reports whether a restore makes a file of the entry.
func restorable(e *backup.Entry) bool {
	return e.Kind != backup.File || e.Flags&(backup.ContentMissing|backup.Wanted) == 0
}

// hash is uniform for any paths: the users who name files do not know the seed.
func (s *chooser) hash(purpose, path string) uint64 {
	b := binary.LittleEndian.AppendUint64(nil, s.seed)
	b = append(b, purpose...)
	b = append(b, 0)
	sum := blake3.Sum256(append(b, path...))
	return binary.LittleEndian.Uint64(sum[:8])
}

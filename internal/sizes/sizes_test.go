package sizes

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// sum adds up what is below a path of one snapshot.
func sum(ctx context.Context, x Index, path string, o Options, pages backup.PageSet) (Result, Flaws, error) {
	t := NewTally(o)
	flaws, err := t.Add(ctx, x, backup.SnapshotID{}, path, pages)
	return t.Result(), flaws, err
}

// rows are the pages of a snapshot, in the order of an index.
type rows []backup.PageVersion

func (r rows) Pages(_ context.Context, _ backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error] {
	return func(yield func(backup.PageVersion, error) bool) {
		for _, v := range r {
			if (v.Path == path || backup.IsBelow(v.Path, path)) && !yield(v, nil) {
				return
			}
		}
	}
}

// sorted sorts rows as an index does.
func (r rows) sorted() rows {
	slices.SortFunc(r, func(a, b backup.PageVersion) int {
		return cmp.Or(bytes.Compare(backup.PathKey(a.Path), backup.PathKey(b.Path)), cmp.Compare(a.Key, b.Key))
	})
	return r
}

// add adds a directory in pages of n entries.
func (r *rows) add(t testing.TB, path string, self backup.Entry, entries []backup.Entry, n int) {
	t.Helper()
	listing.Sort(entries)
	self.Kind = backup.Directory
	for from := 0; from == 0 || from < len(entries); from += n {
		p := backup.Page{Path: path, Entries: entries[from:min(from+n, len(entries))]}
		if from == 0 {
			p.Self = &self
		} else {
			p.Key = listing.Key(p.Entries[0].Name)
		}
		if from+n < len(entries) {
			p.Next = listing.Key(entries[from+n].Name)
		}
		data, err := listing.Encode(nil, &p)
		if err != nil {
			t.Fatal(err)
		}
		v := backup.PageVersion{Path: path, Key: p.Key, Listing: data}
		v.Digest = listing.Digest(&v)
		*r = append(*r, v)
	}
}

// file returns a file with one chunk.
func file(name string, size int64) backup.Entry {
	e := backup.Entry{Name: name, Kind: backup.File, Nlink: 1, Size: size}
	if size > 0 {
		e.Content.Refs = []backup.Ref{{Length: size, Span: size}}
	}
	return e
}

// tree makes n directories in groups below the root, with files.
func tree(t testing.TB, directories, files, page int) (r rows, all Sum) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 1))
	names := map[string][]backup.Entry{"": nil}
	for n := range directories {
		group := fmt.Sprintf("g%d", n%7)
		if names[group] == nil {
			names[""] = append(names[""], backup.Entry{Name: group, Kind: backup.Directory})
		}
		dir := fmt.Sprintf("d%06d", n)
		names[group] = append(names[group], backup.Entry{Name: dir, Kind: backup.Directory})
		for k := range files {
			size := random.Int64N(100_000)
			all.Files, all.Bytes = all.Files+1, all.Bytes+size
			e := file(fmt.Sprintf("file%05d.x%d", k, k%10), size)
			e.UID = uint32(k % 5)
			names[group+"/"+dir] = append(names[group+"/"+dir], e)
		}
	}
	for path, entries := range names {
		r.add(t, path, backup.Entry{}, entries, page)
		all.Directories++
	}
	return r.sorted(), all
}

// Whatever is asked for, the rows and the others are all that there is, and what is kept is what is
// largest.
func TestRowsAddUp(t *testing.T) {
	r, all := tree(t, 60, 40, 16)
	for by := Directory; by <= File; by++ {
		for _, most := range []int{1, 3, 100, 1_000_000} {
			for _, depth := range []int{0, 1, 2} {
				result, _, err := sum(t.Context(), r, "", Options{By: by, Depth: depth, Most: most}, backup.PageSet{})
				if err != nil || result.Total != all {
					t.Fatalf("by %d: %+v of %+v, %v", by, result.Total, all, err)
				}
				listed := result.Others
				for n := range result.Rows {
					listed.Add(&result.Rows[n].Sum)
					if n > 0 && before(&result.Rows[n-1], &result.Rows[n]) >= 0 {
						t.Errorf("by %d: row %d is not in order", by, n)
					}
				}
				if by == Extension || by == Class || by == File {
					listed.Directories = all.Directories
				}
				if listed != all || len(result.Rows) > most || result.Groups < int64(len(result.Rows)) || len(result.Rows) < min(most, int(result.Groups)) {
					t.Errorf("by %d, most %d, depth %d: %d rows of %d with %+v, want %+v", by, most, depth, len(result.Rows), result.Groups, listed, all)
				}
				full, _, err := sum(t.Context(), r, "", Options{By: by, Depth: depth, Most: 1_000_000}, backup.PageSet{})
				if err != nil || !slices.Equal(result.Rows, full.Rows[:len(result.Rows)]) {
					t.Errorf("by %d, most %d, depth %d: not the first of all rows, %v", by, most, depth, err)
				}
			}
		}
	}
}

// What is missing or damaged is said, and the rest is added up.
func TestIncomplete(t *testing.T) {
	r, all := tree(t, 10, 40, 16)
	var set backup.PageSet
	for n := range r {
		set.Add(r[n].Digest)
	}
	check := func(r rows) (Result, Flaws) {
		t.Helper()
		result, flaws, err := sum(t.Context(), r, "", Options{Most: 10, Depth: 1}, set)
		if err != nil {
			t.Fatal(err)
		}
		return result, flaws
	}
	if result, flaws := check(r); flaws.Differs != nil || flaws.Directories != nil || result.Total != all {
		t.Errorf("all pages: %+v, %+v", result, flaws)
	}
	for n := 1; n < len(r); n++ {
		without := slices.Delete(slices.Clone(r), n, n+1)
		if _, flaws := check(without); !errors.Is(flaws.Differs, backup.ErrCorrupt) || len(flaws.Directories) == 0 {
			t.Errorf("without page %d of %q: %+v", r[n].Key, r[n].Path, flaws)
		}
		damaged := slices.Clone(r)
		damaged[n].Listing = slices.Clone(damaged[n].Listing)
		damaged[n].Listing[len(damaged[n].Listing)/2] ^= 1
		result, flaws := check(damaged)
		if len(flaws.Directories) == 0 || result.Total.Files+result.Total.Directories >= all.Files+all.Directories {
			t.Errorf("page %d of %q is damaged: %+v, %+v", r[n].Key, r[n].Path, result, flaws)
		}
	}
	if _, _, err := sum(t.Context(), rows{}, "", Options{Most: 1}, set); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("no pages at all: %v", err)
	}
}

// Two snapshots are twice as much as one.
func TestSeveral(t *testing.T) {
	r, all := tree(t, 10, 40, 16)
	for _, by := range []By{Owner, Extension, Class} {
		tally := NewTally(Options{By: by, Most: 100})
		for range 2 {
			if _, err := tally.Add(t.Context(), r, backup.SnapshotID{}, "", backup.PageSet{}); err != nil {
				t.Fatal(err)
			}
		}
		once, _, err := sum(t.Context(), r, "", Options{By: by, Most: 100}, backup.PageSet{})
		twice := tally.Result()
		if err != nil || twice.Total.Files != 2*all.Files || twice.Groups != once.Groups {
			t.Errorf("by %d: %+v, once %+v, %v", by, twice, once, err)
		}
		for n := range once.Rows {
			double := once.Rows[n]
			double.Add(&once.Rows[n].Sum)
			if twice.Rows[n] != double {
				t.Errorf("by %d: %+v, want %+v", by, twice.Rows[n], double)
			}
		}
	}
}

// A failure of the index ends the reading.
func TestFailure(t *testing.T) {
	r, _ := tree(t, 300, 40, 16)
	_, _, err := sum(t.Context(), failing{r}, "", Options{Most: 1}, backup.PageSet{})
	if !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := sum(ctx, r, "", Options{Most: 1}, backup.PageSet{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

type failing struct{ rows }

func (f failing) Pages(ctx context.Context, id backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error] {
	return func(yield func(backup.PageVersion, error) bool) {
		n := 0
		for v := range f.rows.Pages(ctx, id, path) {
			if n++; n > 150 {
				yield(backup.PageVersion{}, backup.ErrUnavailable)
				return
			}
			if !yield(v, nil) {
				return
			}
		}
	}
}

// Files that claim to be huge do not make sums overflow.
func TestHugeSizes(t *testing.T) {
	var r rows
	var files []backup.Entry
	for n := range 10 {
		e := backup.Entry{Name: fmt.Sprint(n), Kind: backup.File, Size: 1<<63 - 1}
		files = append(files, e)
	}
	r.add(t, "", backup.Entry{}, files, 100)
	result, _, err := sum(t.Context(), r, "", Options{By: Class, Most: 10}, backup.PageSet{})
	if err != nil || result.Total.Bytes != backup.MaxCount || result.Rows[0].Number != 1<<62 || ClassEnd(1<<62) != 1<<63-1 {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestClasses(t *testing.T) {
	for size, want := range map[int64]int64{0: 0, 1: 1, 1023: 1, 1024: 1024, 4095: 1024, 4096: 4096, 1<<62 - 1: 1 << 60, 1 << 62: 1 << 62} {
		if from := ClassOf(size); from != want || size >= ClassEnd(from) {
			t.Errorf("size %d is in the class from %d to %d", size, from, ClassEnd(from))
		}
	}
}

func TestGroupOf(t *testing.T) {
	for _, test := range []struct {
		top, path string
		depth     int
		want      string
	}{
		{"", "", 0, ""}, {"", "", 2, ""}, {"", "a", 0, ""}, {"", "a", 1, "a"}, {"", "a/b/c", 1, "a"}, {"", "a/b/c", 2, "a/b"},
		{"a", "a", 1, "a"}, {"a", "a/b", 0, "a"}, {"a", "a/b/c", 1, "a/b"}, {"a/b", "a/b/c/d", 1, "a/b/c"}, {"a/b", "a/b/c", 9, "a/b/c"},
	} {
		if got := groupOf(test.top, test.path, test.depth); got != test.want {
			t.Errorf("%q below %q, depth %d: %q, want %q", test.path, test.top, test.depth, got, test.want)
		}
	}
}

// Groups for which there is no room are not lost.
func TestManyGroups(t *testing.T) {
	g, h := groups{sums: map[Key]*Sum{}}, groups{sums: map[Key]*Sum{}}
	for n := range int64(maxGroups + 5) {
		g.of(Key{Number: n}).Files++
		h.of(Key{Number: -n - 1}).Files++
	}
	g.join(&h)
	total := g.further
	for _, sum := range g.sums {
		total.Add(sum)
	}
	if !g.full || len(g.sums) != maxGroups || total.Files != 2*(maxGroups+5) {
		t.Errorf("%d groups with %+v", len(g.sums), total)
	}
}

func BenchmarkTally(b *testing.B) {
	r, all := tree(b, 50, 10_000, 1000)
	for by := Directory; by <= File; by++ {
		b.Run([]string{"directory", "owner", "extension", "size", "file"}[by], func(b *testing.B) {
			b.ReportAllocs()
			start := processorNanos(b)
			for b.Loop() {
				if _, _, err := sum(b.Context(), r, "", Options{By: by, Depth: 2, Most: 50}, backup.PageSet{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((processorNanos(b)-start)/float64(b.N)/float64(all.Files), "cpu-ns/entry")
		})
	}
}

// processorNanos returns the processor time of this process, which other load on the machine does
// not affect.
func processorNanos(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano() + u.Stime.Nano())
}

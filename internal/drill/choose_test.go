package drill

import (
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// pages is a catalog of one snapshot.
type pages []backup.PageVersion

func (p pages) Pages(context.Context, backup.SnapshotID, string) iter.Seq2[backup.PageVersion, error] {
	return func(yield func(backup.PageVersion, error) bool) {
		for i := range p {
			if !yield(p[i], nil) {
				return
			}
		}
	}
}

func (p *pages) add(t *testing.T, path string, entries ...backup.Entry) {
	t.Helper()
	page := backup.Page{Path: path, Self: &backup.Entry{Kind: backup.Directory}, Entries: entries}
	var encode listing.Encoder
	data, err := encode.Encode(nil, &page)
	if err != nil {
		t.Fatal(err)
	}
	*p = append(*p, backup.PageVersion{Path: path, Listing: data})
}

func file(name string, size int64) backup.Entry {
	return backup.Entry{Name: name, Kind: backup.File, Size: size}
}

func chosenBy(t *testing.T, p pages, seed uint64, files int, size int64) *choice {
	t.Helper()
	c, err := choose(t.Context(), p, backup.SnapshotID{}, seed, files, size)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Each file has the same chance, the same seed chooses the same, and the directory is the largest
// that fits.
func TestChoice(t *testing.T) {
	var p pages
	dir := func(name string) backup.Entry { return backup.Entry{Name: name, Kind: backup.Directory} }
	p.add(t, "", dir("a"), dir("b"), dir("c"), file("huge", 1<<40))
	p.add(t, "a", dir("deep"), file("x", 10), file("y", 10))
	p.add(t, "a/deep", file("z", 10))
	p.add(t, "b", file("large", 100))
	var many []backup.Entry
	for n := range 97 {
		many = append(many, file(fmt.Sprintf("f%03d", n), 1))
	}
	p.add(t, "c", many...)

	directories, hits := map[string]int{}, map[string]int{}
	const seeds = 1000
	for seed := range uint64(seeds) {
		c := chosenBy(t, p, seed+1, 10, 97)
		again := chosenBy(t, p, seed+1, 10, 97)
		if c.directory == nil || *c.directory != *again.directory || len(c.sample) != len(again.sample) || c.sampleBytes != again.sampleBytes {
			t.Fatalf("seed %d: %+v, then %+v", seed+1, c, again)
		}
		if c.sampleBytes > 97 || len(c.sample) != 10 || c.tooLarge != 2 {
			t.Fatalf("%d files with %d bytes, %d too large", len(c.sample), c.sampleBytes, c.tooLarge)
		}
		directories[c.directory.path]++
		for path := range c.sample {
			hits[path]++
		}
	}
	// "a" fits with all below it, so that "a/deep" is never chosen; "b" does not fit.
	if len(directories) != 2 || directories["a"] < seeds*1/100 || directories["a"] > seeds*6/100 {
		t.Errorf("directories %v: want c, and a in 3%%", directories)
	}
	if len(hits) != 100 {
		t.Errorf("%d of 100 files were chosen", len(hits))
	}
	for path, n := range hits {
		if n < seeds*5/100 || n > seeds*16/100 {
			t.Errorf("%s was chosen %d times of %d, want about 10%%", path, n, seeds)
		}
	}

	if c := chosenBy(t, p, 1, 1000, math.MaxInt64); len(c.sample) != 102 || c.directory.path != "" || c.tooLarge != 0 {
		t.Errorf("%d files, directory %+v, %d too large", len(c.sample), c.directory, c.tooLarge)
	}
	if c := chosenBy(t, p, 1, 0, 5); len(c.sample) != 0 || c.directory != nil {
		t.Errorf("%+v, directory %+v", c, c.directory)
	}
	if c := chosenBy(t, pages{}, 1, 10, 5); len(c.sample) != 0 || c.directory != nil {
		t.Errorf("of nothing: %+v", c)
	}
}

// Sizes of files without an end, and listings that are damaged, do no harm.
func TestHostileListings(t *testing.T) {
	var p pages
	lost := file("lost", 5)
	lost.Flags = backup.ContentMissing | backup.Unreadable
	p.add(t, "", file("a", math.MaxInt64), file("b", math.MaxInt64), lost)
	p.add(t, "elsewhere/deep", file("c", 1))
	p = append(p, backup.PageVersion{Path: "damaged", Listing: []byte("no listing")})
	c := chosenBy(t, p, 1, 10, 1000)
	var sample []string
	for path := range c.sample {
		sample = append(sample, path)
	}
	if !slices.Equal(sample, []string{"elsewhere/deep/c"}) || c.tooLarge != 2 || c.directory.path != "elsewhere/deep" {
		t.Errorf("%q, %d too large, directory %+v", sample, c.tooLarge, c.directory)
	}
}

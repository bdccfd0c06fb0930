package live

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// TestSorter sorts records in memory and in several runs. Of equal ones, the last must count, and
// what is written to a file must be found from each path.
func TestSorter(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, most := range []int{runBytes, 20_000} {
		s := sorter{most: most}
		defer s.close()
		want := map[string]record{}
		for n := range 2000 {
			path := fmt.Sprintf("d%d/%d", random.IntN(20), random.IntN(20))
			r := record{pathKey: string(backup.PathKey(path)), what: what(random.IntN(3))}
			if r.what != isGone {
				r.page = backup.PageVersion{Key: backup.PageKey(random.IntN(3)), Inode: uint64(n), Listing: make([]byte, random.IntN(200))}
			}
			want[fmt.Sprint(r.pathKey, r.what == isGone, r.page.Key)] = r
			if err := s.add(r); err != nil {
				t.Fatal(err)
			}
		}
		if (len(s.runs) > 1) != (most < runBytes) {
			t.Fatalf("%d runs", len(s.runs))
		}
		sorted := slices.SortedFunc(maps.Values(want), func(a, b record) int { return a.compare(&b) })
		file, err := newPageFile()
		if err != nil {
			t.Fatal(err)
		}
		defer file.close()
		var got []record
		for r, err := range s.all() {
			if err == nil {
				err = file.write(&r)
			}
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, r)
		}
		wantRecords(t, got, sorted)
		if err := file.out.Flush(); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"", "d0", "d11/3", "d7/19", "e"} {
			from := string(backup.PathKey(path))
			at, _ := slices.BinarySearchFunc(sorted, from, func(r record, key string) int { return strings.Compare(r.pathKey, key) })
			got = nil
			for r, err := range file.from(from) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, r)
			}
			wantRecords(t, got, sorted[at:])
		}
	}
}

func wantRecords(t *testing.T, got, want []record) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i := range got {
		g, w := &got[i], &want[i]
		if g.pathKey != w.pathKey || g.what != w.what || g.page.Key != w.page.Key || g.page.Inode != w.page.Inode || len(g.page.Listing) != len(w.page.Listing) {
			t.Fatalf("record %d is %+v, want %+v", i, *g, *w)
		}
	}
}

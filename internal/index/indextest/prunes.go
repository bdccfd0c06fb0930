package indextest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/index"
)

// Prunes that freed something are listed, and the last one.
func testPrunes(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	term, ok, err := f.x.Lead(f.ctx, "pruner", "one", time.Minute)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	all := []index.Prune{
		{Took: time.Second, Packs: 3, Bytes: 1 << 40, Freed: 5, Copied: 6, Snapshots: 7},
		{Took: time.Microsecond},
		{},
		{Snapshots: 1},
		{Freed: 1},
		{},
	}
	for n, p := range all {
		f.must(f.x.NotePrune(f.ctx, term, p))
		found, err := f.x.Prunes(f.ctx)
		f.must(err)
		var want []index.Prune
		for m, other := range all[:n+1] {
			if m == n || other.Packs+other.Snapshots > 0 || other.Freed > 0 {
				want = append(want, other)
			}
		}
		now, err := f.x.Clock(f.ctx)
		f.must(err)
		for m := range found {
			if age := now.Sub(found[m].Ended); age < 0 || age > time.Minute {
				t.Errorf("it ended %v ago", age)
			}
			found[m].Ended = time.Time{}
		}
		if !slices.Equal(found, want) {
			t.Errorf("%+v, want %+v", found, want)
		}
	}
	f.must(f.x.Resign(f.ctx, term))
	if err := f.x.NotePrune(f.ctx, term, index.Prune{}); !errors.Is(err, index.ErrNotLeading) {
		t.Errorf("noted by one who does not lead: %v", err)
	}
}

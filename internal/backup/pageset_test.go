package backup

import (
	"encoding/hex"
	"testing"

	"pgregory.net/rapid"
)

var anyDigest = rapid.OneOf(
	rapid.Map(rapid.SliceOfN(rapid.Byte(), 32, 32), func(b []byte) PageDigest { return PageDigest(b) }),
	rapid.SampledFrom([]PageDigest{{}, {1}, {31: 0xff}, {31: 0x80}, allOnes()}),
)

func allOnes() (d PageDigest) {
	for i := range d {
		d[i] = 0xff
	}
	return d
}

func setOf(digests []PageDigest) (s PageSet) {
	for _, d := range digests {
		s.Add(d)
	}
	return s
}

// The set depends only on the pages present, not on the order in which pages are added and removed.
func TestPageSetIsOfWhatIsThere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		digests := rapid.SliceOfN(anyDigest, 0, 30).Draw(t, "digests")
		stay := rapid.IntRange(0, len(digests)).Draw(t, "stay")
		want := setOf(digests[:stay])
		var s PageSet
		for _, d := range rapid.Permutation(digests).Draw(t, "come") {
			s.Add(d)
		}
		for _, d := range rapid.Permutation(digests[stay:]).Draw(t, "go") {
			s.Remove(d)
		}
		if s != want {
			t.Fatalf("got %+v, want %+v", s, want)
		}
		// A page may end before it is added, as in a segment.
		var early PageSet
		for _, d := range digests[stay:] {
			early.Remove(d)
		}
		for _, d := range digests {
			early.Add(d)
		}
		if early != want {
			t.Fatalf("pages that went before they came: got %+v, want %+v", early, want)
		}
	})
}

func TestPageSetShowsWhatIsMissing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		digests := rapid.SliceOfN(anyDigest, 1, 20).Draw(t, "digests")
		all := setOf(digests)
		at := rapid.IntRange(0, len(digests)-1).Draw(t, "missing")
		less := all
		less.Remove(digests[at])
		if less == all {
			t.Fatal("a page that is missing does not show")
		}
		other := anyDigest.Draw(t, "other")
		less.Add(other)
		if (less == all) != (other == digests[at]) {
			t.Fatalf("another version of a page: equal is %v", less == all)
		}
	})
}

// The sum is part of commit records, so it is part of the format.
func TestPageSetSum(t *testing.T) {
	for _, test := range []struct {
		add, remove []PageDigest
		pages       int64
		sum         string
	}{
		{nil, nil, 0, "0000000000000000000000000000000000000000000000000000000000000000"},
		{[]PageDigest{{0xff}, {2}}, nil, 2, "0101000000000000000000000000000000000000000000000000000000000000"},
		{[]PageDigest{allOnes(), {1}}, nil, 2, "0000000000000000000000000000000000000000000000000000000000000000"},
		{[]PageDigest{{7: 0xff}, {7: 1}}, nil, 2, "0000000000000000010000000000000000000000000000000000000000000000"},
		{[]PageDigest{{8: 1}, {8: 1}}, []PageDigest{{1}}, 1, "ffffffffffffffff010000000000000000000000000000000000000000000000"},
		{nil, []PageDigest{{1}}, -1, "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"},
	} {
		s := setOf(test.add)
		for _, d := range test.remove {
			s.Remove(d)
		}
		if s.Pages != test.pages || hex.EncodeToString(s.Sum[:]) != test.sum {
			t.Errorf("%x less %x: %d pages, %x; want %d, %s", test.add, test.remove, s.Pages, s.Sum, test.pages, test.sum)
		}
	}
}

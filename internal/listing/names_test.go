package listing

import (
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

func TestNames(t *testing.T) {
	encoded := func(size int64, names ...string) (stored, plain []byte) {
		t.Helper()
		p := backup.Page{Self: &backup.Entry{Kind: backup.Directory}}
		for _, name := range names {
			p.Entries = append(p.Entries, backup.Entry{Name: name, Kind: backup.File, Size: size})
		}
		stored, err := Encode(nil, &p)
		if err != nil {
			t.Fatal(err)
		}
		if plain, err = Plain(stored); err != nil {
			t.Fatal(err)
		}
		return stored, plain
	}
	stored, one := encoded(1, "a", "ab", "\xff")
	var d Decoder
	for _, data := range [][]byte{stored, one} {
		if got, err := d.Names(data); err != nil || !slices.Equal(got, []string{"a", "ab", "\xff"}) {
			t.Errorf("names %q, %v", got, err)
		}
	}
	_, two := encoded(2, "a", "ab", "\xff")
	_, other := encoded(1, "a", "ac", "\xff")
	_, fewer := encoded(1, "a", "ab")
	if !SameNames(one, two) || SameNames(one, other) || SameNames(one, fewer) || SameNames(fewer, one) || SameNames(nil, nil) {
		t.Error("names are compared wrongly")
	}
	for i := range one {
		if got, err := d.Names(one[:i]); err == nil && len(got) != 3 { // what follows them is not read
			t.Errorf("the names of the first %d bytes are %q", i, got)
		}
		SameNames(one[:i], one) // does not panic
	}
}

package journal

import (
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// benchChanges are the changes of 100,000 new files, with 34 bytes of listing each.
const (
	benchChanges      = 1000
	benchListingBytes = 3400
)

func benchSegment(b *testing.B) (k keys, changes []backup.PageChange) {
	for c, err := range manyChanges(benchChanges, benchListingBytes) {
		if err != nil {
			b.Fatal(err)
		}
		changes = append(changes, c)
	}
	return newKeys(b), changes
}

func BenchmarkWrite(b *testing.B) {
	k, changes := benchSegment(b)
	b.ReportAllocs()
	b.SetBytes(benchChanges * benchListingBytes)
	for b.Loop() {
		_, err := WriteSegment(k.Keys, exampleSnapshot(), false, manyPages, each(changes), func(string, []byte) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	k, changes := benchSegment(b)
	segment, parts := write(b, k, false, manyPages, each(changes))
	b.ReportAllocs()
	b.SetBytes(benchChanges * benchListingBytes)
	for b.Loop() {
		n := 0
		for i, part := range parts {
			p, err := OpenSegment(part.data, snapshot, segment.Attempt, i, k.trust())
			if err != nil {
				b.Fatal(err)
			}
			for _, err := range p.Changes(noBase) {
				if err != nil {
					b.Fatal(err)
				}
				n++
			}
		}
		if n != len(changes) {
			b.Fatalf("%d changes of %d", n, len(changes))
		}
	}
}

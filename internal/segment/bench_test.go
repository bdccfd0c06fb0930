package segment

import (
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// benchChanges are those of 100,000 files that are new, at 34 bytes of listing each.
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
		err := Write(k.sealer, attempt, exampleHeader(), each(changes), func(int, []byte) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	k, changes := benchSegment(b)
	parts := write(b, k, each(changes))
	b.ReportAllocs()
	b.SetBytes(benchChanges * benchListingBytes)
	for b.Loop() {
		n := 0
		for part := range slices.Values(parts) {
			p, err := Open(part, attempt, k.opener)
			if err != nil {
				b.Fatal(err)
			}
			for _, err := range p.Changes() {
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

package storetest

import (
	"fmt"
	"testing"

	"github.com/bctl/bctl/internal/store"
)

// Bench measures the most frequent operations of bctl: packs of 32 MiB are put, read whole, and
// read one frame at a time.
func Bench(b *testing.B, s store.Store) {
	data := content(32<<20, 9)
	b.Run("Put32MiB", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			put(b, s, fmt.Sprintf("packs/bench/%d", i%8), data)
			b.StopTimer()
			if err := s.Delete(b.Context(), fmt.Sprintf("packs/bench/%d", i%8)); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	put(b, s, "packs/bench/read", data)
	for _, lengthBytes := range []int64{32 << 20, 512 << 10} {
		b.Run(fmt.Sprintf("GetRange%dKiB", lengthBytes>>10), func(b *testing.B) {
			b.SetBytes(lengthBytes)
			b.ReportAllocs()
			buf := make([]byte, 0, lengthBytes)
			for i := 0; b.Loop(); i++ {
				offset := int64(i) * lengthBytes % int64(len(data))
				if _, err := s.GetRange(b.Context(), buf, "packs/bench/read", offset, lengthBytes); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

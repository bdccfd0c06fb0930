package fetch

import (
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
)

// For any content of the lists, the chunks of a file ascend, do not overlap, and stay within the
// file.
func FuzzRefs(f *testing.F) {
	f.Add(int64(100), []byte{1, 10, 2, 0, 30, 0, 1, 5})
	f.Add(int64(1<<62), []byte{2, 255, 255, 255, 255, 1, 0})
	f.Fuzz(func(t *testing.T, size int64, script []byte) {
		next := func() int64 {
			if len(script) == 0 {
				return 0
			}
			b := script[0]
			script = script[1:]
			return int64(int8(b)) << (b & 63) // small, huge and negative numbers
		}
		refs := func() (refs []backup.Ref) {
			for range next() & 3 {
				refs = append(refs, backup.Ref{Hole: next(), Length: next(), Span: next()})
			}
			return refs
		}
		s := NewRefs(size, backup.Content{Depth: int(next() % 4), Refs: refs()})
		end := int64(0)
		for steps := 0; ; steps++ {
			ref, offset, list, ok, err := s.Peek()
			if err != nil || !ok {
				return
			}
			if offset < end || offset > size || ref.Length <= 0 || ref.Length > chunk.MaxBytes {
				t.Fatalf("ref %+v at %d in a file of %d, after %d", ref, offset, size, end)
			}
			if list {
				if steps > 1000 {
					return
				}
				s.push(backup.Content{Depth: int(next() % 4), Refs: refs()})
				continue
			}
			if end = offset + ref.Length; end > size {
				t.Fatalf("ref %+v at %d ends beyond %d", ref, offset, size)
			}
			s.Advance()
		}
	})
}

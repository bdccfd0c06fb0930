package journal

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/store"
)

// A copy of an index is the file again, of whatever length. Its empty pages take hardly any space.
func TestIndexCopyComesBack(t *testing.T) {
	k := newKeys(t)
	random := make([]byte, 6<<20)
	rand.NewChaCha8([32]byte{1}).Read(random)
	empty := make([]byte, 40<<20)
	for name, file := range map[string][]byte{
		"no byte":                  {},
		"one page":                 random[:minPageBytes],
		"more than a part":         random[:IndexPartBytes+1],
		"empty":                    empty[:IndexPartBytes],
		"empty pages in between":   bytes.Join([][]byte{random[:3*minPageBytes], empty, random[:5<<20]}, nil),
		"empty part of a page":     bytes.Join([][]byte{random[:minPageBytes/2], empty[:minPageBytes/2], random[:1<<20]}, nil),
		"a single empty page":      bytes.Join([][]byte{random[:1<<20], empty[:minPageBytes], random[:1<<20]}, nil),
		"an empty page at the end": bytes.Join([][]byte{random[:1<<20], empty[:minPageBytes]}, nil),
	} {
		var got bytes.Buffer
		stored, part := 0, 0
		err := WriteIndexCopy(k.Keys, 7, time.Now(), bytes.NewReader(file), int64(len(file)), func(object string, data []byte) error {
			if object != store.IndexName(7, part) {
				t.Errorf("%s: object %s", name, object)
			}
			h, write, err := OpenIndexPart(data, 7, part, k.trust())
			if err != nil {
				return err
			}
			if h.Bytes != int64(len(file)) || h.Parts != max(1, (len(file)+IndexPartBytes-1)/IndexPartBytes) {
				t.Errorf("%s: %+v", name, h)
			}
			stored, part = stored+len(data), part+1
			return write(&got)
		})
		if err != nil || !bytes.Equal(got.Bytes(), file) {
			t.Errorf("%s: %d bytes come back as %d: %v", name, len(file), got.Len(), err)
		}
		if content := len(bytes.TrimRight(file, "\x00")); name == "empty pages in between" && stored > content-len(empty)+1<<20 {
			t.Errorf("%d bytes are stored", stored)
		}
	}
}

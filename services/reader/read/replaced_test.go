package read

import (
	"context"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// An incarnationOf is an index with an incarnation that a test chooses.
type incarnationOf struct {
	Index
	text string
}

func (x *incarnationOf) Incarnation(context.Context) (string, error) { return x.text, nil }

// A reader forgets which packs the store has, and what it has stored, when the index was replaced
// by an earlier one: the packs may have been moved since.
func TestReplacedIndexIsNoticed(t *testing.T) {
	index := &incarnationOf{text: "first"}
	s := &Service{known: newKnown()}
	s.Index = index
	chunk := bufferedChunk{}
	look := func() (checks, chunks int) {
		s.incarnation.looked = time.Time{}
		s.forgetReplaced(t.Context())
		return len(s.packChecks.packs), len(s.known.young)
	}
	look()
	s.packChecks.packs = map[backup.PackID]*packCheck{backup.NewPackID(): {}}
	s.known.add([]backup.ChunkID{chunk.hash.ID()}, &packRef{})
	if checks, chunks := look(); checks != 1 || chunks != 1 {
		t.Fatalf("%d checks and %d chunks are left of the same index, want 1 and 1", checks, chunks)
	}
	index.text = "restored"
	if checks, chunks := look(); checks != 0 || chunks != 0 {
		t.Fatalf("%d checks and %d chunks are left of another index, want none", checks, chunks)
	}
}

package read

import (
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// However many buffers are stuck, there are never more than the shares and the spare ones together
// (I9); when they are returned, the initial state is restored.
func TestBuffersOfStuckReadsAreBounded(t *testing.T) {
	const limit, spare = 4, 3
	p := newBufferPool(limit, spare, 16)
	var taken []*chunkBuffer
	takeAll := func(filer backup.FilerID) {
		for p.slots.TryTake(filer) {
			p.slots.Give(filer)
			taken = append(taken, must(p.take(t.Context(), filer))(t))
		}
	}
	for range 10 { // the filer hangs with all its buffers, and gets more, again and again
		takeAll(1)
		for _, buf := range taken {
			p.replace(buf)
		}
	}
	if want := limit + spare; len(taken) != want {
		t.Errorf("a filer that hangs has %d buffers, want %d", len(taken), want)
	}
	takeAll(2)
	takeAll(3)
	takeAll(4)
	if most := 2*limit + spare; len(taken) != most {
		t.Errorf("there are %d buffers, want %d", len(taken), most)
	}
	for _, buf := range taken {
		buf.recycle()
	}
	if len(p.free) != 2*limit || p.spare != spare || p.slots.Taken() != 0 {
		t.Errorf("%d buffers are kept, %d are spare, %d slots are taken", len(p.free), p.spare, p.slots.Taken())
	}
}

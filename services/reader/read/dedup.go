package read

import (
	"context"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// known remembers the chunks that this process stored recently, because the index learns of them
// only when the committer does. It holds two generations of bounded size: when the younger is full,
// the older is dropped.
type known struct {
	mu         sync.Mutex
	young, old map[backup.ChunkID]*packRef
}

const knownChunks = 64 << 10 // per generation: about 4 MB

func newKnown() *known { return &known{young: map[backup.ChunkID]*packRef{}} }

func (k *known) add(ids []backup.ChunkID, ref *packRef) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		if len(k.young) >= knownChunks {
			k.old, k.young = k.young, make(map[backup.ChunkID]*packRef, knownChunks)
		}
		k.young[id] = ref
	}
}

// find returns the pack of each chunk that it knows, nil for the others.
func (k *known) find(chunks []windowChunk) []*packRef {
	refs := make([]*packRef, len(chunks))
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range chunks {
		id := chunks[i].hash.ID()
		ref := k.young[id]
		if ref == nil {
			ref = k.old[id]
		}
		if ref != nil && !ref.failed() {
			refs[i] = ref
		}
	}
	return refs
}

// dedup finds out which chunks of the window are stored already, makes the batch rely on their
// packs, and returns the other chunks.
func (s *Service) dedup(ctx context.Context, w *window) (fresh []windowChunk, err error) {
	b := w.batch
	refs := make([]*packRef, len(w.chunks))
	if b.msg.Attempt <= 1 {
		// A later attempt may exist because a pack was condemned, which only the index knows.
		refs = s.known.find(w.chunks)
	}
	var ask []backup.ChunkID
	for i := range w.chunks {
		if refs[i] == nil {
			ask = append(ask, w.chunks[i].hash.ID())
		}
	}
	var found []index.Location
	if len(ask) > 0 {
		if found, err = s.Index.Locate(ctx, ask); err != nil {
			return nil, err
		}
		if err := s.believe(ctx, ask, found); err != nil {
			return nil, err
		}
	}
	next := 0
	seen := make(map[backup.ChunkID]struct{}, len(ask))
	for i := range w.chunks {
		if refs[i] != nil {
			b.relyOn(refs[i])
			continue
		}
		at := found[next]
		next++
		if at.Pack != (backup.PackID{}) {
			b.relyOn(s.packer.durable(at.Pack))
			continue
		}
		id := w.chunks[i].hash.ID()
		if _, twice := seen[id]; twice {
			continue
		}
		seen[id] = struct{}{}
		fresh = append(fresh, w.chunks[i])
	}
	return fresh, nil
}

func (b *batch) relyOn(ref *packRef) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.packs[ref] = struct{}{}
}

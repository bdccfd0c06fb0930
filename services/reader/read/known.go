package read

import (
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
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

// find returns, for each chunk, the pack that a batch of the snapshot may rely on without a look
// into the index, or nil.
func (k *known) find(chunks []bufferedChunk, snapshot backup.SnapshotID) []*packRef {
	refs, now := make([]*packRef, len(chunks)), time.Now()
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range chunks {
		id := chunks[i].hash.ID()
		ref := k.young[id]
		if ref == nil {
			ref = k.old[id]
		}
		if ref != nil && ref.mayRely(snapshot, now) {
			refs[i] = ref
		}
	}
	return refs
}

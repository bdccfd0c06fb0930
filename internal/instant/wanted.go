package instant

import (
	"context"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/mount"
	"github.com/bctl/bctl/internal/store"
)

// What somebody waits for comes first: the background work gives way to the requests of the view,
// each of which takes several of the store, one after another.

const (
	// quiet is how long nobody must have waited before the background work goes on.
	quiet = 20 * time.Millisecond
	// patience is the longest time that a request of the background work gives way: the work
	// goes on while users read all the time.
	patience = 250 * time.Millisecond
	lookEach = 5 * time.Millisecond
)

// A queue knows whether somebody waits.
type queue struct {
	mu      sync.Mutex
	waiting int
	last    time.Time // when somebody waited last
}

// begin counts a request that somebody waits for, until end is called.
func (q *queue) begin() (end func()) {
	q.add(1)
	return func() { q.add(-1) }
}

func (q *queue) add(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting += n
	q.last = time.Now()
}

func (q *queue) isQuiet() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting == 0 && time.Since(q.last) >= quiet
}

// giveWay returns when nobody waits, or after patience.
func (q *queue) giveWay(ctx context.Context) {
	for began := time.Now(); !q.isQuiet() && time.Since(began) < patience && ctx.Err() == nil; {
		loop.Pause(ctx, lookEach)
	}
}

// viewCatalog and viewStore are what the view reads.
type viewCatalog struct {
	mount.Catalog
	queue *queue
}

// LocateReadable is as in index.Catalog. It comes before the first request to the store.
func (c *viewCatalog) LocateReadable(ctx context.Context, ids []backup.ChunkID) ([]index.Location, error) {
	defer c.queue.begin()()
	return c.Catalog.LocateReadable(ctx, ids)
}

type viewStore struct {
	store.Store
	queue *queue
}

// GetRange is as in store.Store.
func (s *viewStore) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	defer s.queue.begin()()
	return s.Store.GetRange(ctx, dst, name, offset, length)
}

// backgroundStore is what the background work reads.
type backgroundStore struct {
	store.Store
	queue *queue
}

// GetRange is as in store.Store.
func (s *backgroundStore) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	s.queue.giveWay(ctx)
	return s.Store.GetRange(ctx, dst, name, offset, length)
}

package mount

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/hardlink"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/seal"
)

const (
	// idleAfter is how long a snapshot is kept from being forgotten after it was last looked at.
	idleAfter = 2 * time.Minute
	lookEvery = 30 * time.Second
)

// A view is a snapshot that was looked at.
type view struct {
	id backup.SnapshotID

	mu    sync.Mutex // guards keyer
	keyer *hardlink.Keyer

	asking  sync.Mutex // held while the index is asked to keep the snapshot
	holding sync.Mutex // guards what follows
	end     func()     // gives the snapshot free; nil: nothing keeps it
	open    int        // files and directories
	used    time.Time
	lastDir *node // of the file that was opened last
}

// views has the snapshots that were looked at.
type views struct {
	hold func(ctx context.Context, id backup.SnapshotID) (end func(), err error)
	key  seal.DedupKey
	ctx  context.Context

	mu   sync.Mutex
	byID map[backup.SnapshotID]*view
}

// get returns the view of a snapshot. It is the same for all paths that lead to the snapshot.
func (vs *views) get(s *backup.Snapshot) *view {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	v := vs.byID[s.ID]
	if v == nil {
		v = &view{id: s.ID, keyer: hardlink.NewKeyer(vs.key, s.Compare)}
		vs.byID[s.ID] = v
	}
	return v
}

// use keeps the snapshot from being forgotten, as far as the index can be written. It fails with
// backup.ErrNotFound if it was forgotten already. One request asks the index; those that come
// meanwhile wait for its answer.
func (vs *views) use(v *view) error {
	if vs.hold == nil || v.isKept() {
		return nil
	}
	v.asking.Lock()
	defer v.asking.Unlock()
	if v.isKept() {
		return nil
	}
	end, err := vs.hold(vs.ctx, v.id)
	if errors.Is(err, backup.ErrNotFound) {
		return err
	}
	if err == nil {
		v.holding.Lock()
		v.end = end
		v.holding.Unlock()
	}
	return nil
}

// isKept notes that the snapshot is used, and reports whether it is kept from being forgotten.
func (v *view) isKept() bool {
	v.holding.Lock()
	defer v.holding.Unlock()
	v.used = time.Now()
	return v.end != nil
}

// opened counts a file or directory that was opened, or with -1 closed.
func (v *view) opened(n int) {
	v.holding.Lock()
	defer v.holding.Unlock()
	v.open += n
	v.used = time.Now()
}

// follows reports whether the file that was read last is in the same directory, and makes that the
// last one.
func (v *view) follows(dir *node) bool {
	v.holding.Lock()
	defer v.holding.Unlock()
	same := v.lastDir == dir
	v.lastDir = dir
	return same
}

// release gives snapshots free that have not been looked at for a while, until the end; then all.
func (vs *views) release(ctx context.Context) {
	loop.Every(ctx, lookEvery, func() { vs.releaseIdle(time.Now().Add(-idleAfter), false) })
	vs.releaseIdle(time.Time{}, true)
}

func (vs *views) releaseIdle(before time.Time, all bool) {
	vs.mu.Lock()
	known := slices.Collect(maps.Values(vs.byID))
	vs.mu.Unlock() // giving a snapshot free may have to wait for the index
	for _, v := range known {
		if end := v.giveFree(before, all); end != nil {
			end()
		}
	}
}

// giveFree returns what gives the snapshot free, if it is kept, and is not used any more.
func (v *view) giveFree(before time.Time, all bool) func() {
	v.holding.Lock()
	defer v.holding.Unlock()
	if !all && (v.open > 0 || !v.used.Before(before)) {
		return nil
	}
	end := v.end
	v.end = nil
	return end
}

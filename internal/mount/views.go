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
// backup.ErrNotFound if it was forgotten already.
func (vs *views) use(v *view) error {
	v.holding.Lock()
	defer v.holding.Unlock()
	v.used = time.Now()
	if v.end != nil || vs.hold == nil {
		return nil
	}
	end, err := vs.hold(vs.ctx, v.id)
	if err == nil {
		v.end = end
	}
	if errors.Is(err, backup.ErrNotFound) {
		return err
	}
	return nil
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
		v.holding.Lock()
		if v.end != nil && (all || v.open == 0 && v.used.Before(before)) {
			v.end()
			v.end = nil
		}
		v.holding.Unlock()
	}
}

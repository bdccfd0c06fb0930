package prune

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/index"
)

// Within is longer than the time between two passes of a pruner with the default settings. If
// something waits, a pruner that runs has made a pass within it.
const Within = 2 * time.Hour

// A Backlog is what waits for a pruner.
type Backlog struct {
	Snapshots int       // forgotten, and not needed by others
	Condemned int64     // packs that are to be deleted
	Last      time.Time // when the last pass ended; zero: there was none
	Now       time.Time
}

// Waits reports whether anything does.
func (b *Backlog) Waits() bool { return b.Snapshots > 0 || b.Condemned > 0 }

// ReadBacklog returns what waits for a pruner. It reads neither listings nor places.
func ReadBacklog(ctx context.Context, i interface {
	index.PruneReports
	Forgotten(ctx context.Context) ([]index.Forgotten, error)
	PruneWork(ctx context.Context) (index.PruneWork, error)
}) (b Backlog, err error) {
	forgotten, err := i.Forgotten(ctx)
	if err != nil {
		return b, err
	}
	work, err := i.PruneWork(ctx)
	if err != nil {
		return b, err
	}
	prunes, err := i.Prunes(ctx)
	if err != nil {
		return b, err
	}
	b.Condemned, b.Now = work.Condemned, work.Now
	b.Snapshots = Removable(forgotten)
	if n := len(prunes); n > 0 {
		b.Last = prunes[n-1].Ended
	}
	return b, nil
}

// Removable returns how many forgotten snapshots are not needed by others.
func Removable(forgotten []index.Forgotten) (n int) {
	for i := range forgotten {
		if !forgotten[i].Needed {
			n++
		}
	}
	return n
}

package cli

import (
	"context"
	"errors"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/loop"
)

const (
	// readingLease is how long the content of a snapshot stays after its restore was killed.
	readingLease = 2 * time.Minute
	renewReading = 20 * time.Second
)

// beginReading keeps bctl forget and bctl prune from deleting a snapshot while it is read,
// until end is called. Reading also works if bctl cannot write the index; the snapshot is then
// unprotected.
func (a *app) beginReading(ctx context.Context, i index.Index, id backup.SnapshotID) (end func(), err error) {
	shut := func() {}
	if _, local := i.(*sqliteindex.Index); local { // it was opened to be read only
		if i, err = a.openIndex(ctx, toWrite); err != nil {
			a.log.Debug("the index cannot be written: nothing keeps the snapshot from being forgotten", "error", err)
			return shut, nil
		}
		shut = func() { _ = i.Close() }
	}
	reading := backup.NewPackID()
	switch err := i.BeginReading(ctx, reading, id, readingLease); {
	case errors.Is(err, backup.ErrNotFound):
		shut()
		return nil, absent("snapshot %s was forgotten meanwhile", id.Short())
	case err != nil:
		a.note("nothing keeps the snapshot from being forgotten while it is read: %v", err)
		shut()
		return func() {}, nil
	}
	renewing, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	renewed := wallClock()
	go func() {
		defer close(done)
		loop.Every(renewing, renewReading, func() {
			switch err := i.BeginReading(renewing, reading, id, readingLease); {
			case err == nil:
				renewed = wallClock()
			case renewing.Err() == nil && !errors.Is(err, backup.ErrNotFound): // end reports that
				a.log.Warn("the snapshot may be forgotten while it is read", "error", err)
			}
		})
	}()
	return func() {
		stop()
		<-done
		// Where this fails, the lease ends by itself.
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookWithin)
		defer cancel()
		// This process, or the machine, may have been paused.
		if wallClock().Sub(renewed) >= readingLease && errors.Is(i.BeginReading(ending, reading, id, readingLease), backup.ErrNotFound) {
			a.note("snapshot %s was forgotten while bctl was paused for longer than %.0f minutes; what it has not read may have been pruned (bctl log)", id.Short(), readingLease.Minutes())
		}
		_ = i.EndReading(ending, reading)
		shut()
	}, nil
}

// wallClock returns the time. Unlike the monotonic clock, it goes on while the machine sleeps.
var wallClock = func() time.Time { return time.Now().Round(0) }

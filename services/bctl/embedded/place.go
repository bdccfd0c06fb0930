package embedded

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// placeEvery is the interval at which a backup checks that its index file is still in place.
const placeEvery = time.Second

// watchIndex calls broken if the index's file was replaced or removed: later processes would not
// find what is written to it, and the services would wait for ever for results that are in another
// file.
func watchIndex(ctx context.Context, i index.Index, snapshot backup.SnapshotID, broken func(error)) {
	ticker := time.NewTicker(placeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if err := checkInPlace(i); err != nil {
			broken(err)
			return
		}
		// The content of another file may have been written over it.
		if _, err := i.Snapshot(ctx, snapshot); errors.Is(err, backup.ErrNotFound) || errors.Is(err, backup.ErrCorrupt) {
			broken(fmt.Errorf("the index was replaced while it was open: %w", err))
			return
		}
	}
}

// checkInPlace returns an error if the index is a file that was replaced or removed.
func checkInPlace(i index.Index) error {
	file, ok := i.(interface{ InPlace() error })
	if !ok {
		return nil
	}
	if err := file.InPlace(); err != nil {
		return fmt.Errorf("the snapshot is lost: %w", err)
	}
	return nil
}

package embedded

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// placeEvery is how often a backup looks whether its index is still there.
const placeEvery = time.Second

// watchIndex calls broken once the index's file was replaced or removed: nobody
// would find there what is written then, and work would wait for ever for what it
// does not find there itself.
func watchIndex(ctx context.Context, i index.Index, snapshot backup.SnapshotID, broken func(error)) {
	ticker := time.NewTicker(placeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if err := inPlace(i); err != nil {
			broken(err)
			return
		}
		// Another file's content may have been written over it.
		if _, err := i.Snapshot(ctx, snapshot); errors.Is(err, backup.ErrNotFound) || errors.Is(err, backup.ErrCorrupt) {
			broken(fmt.Errorf("the index was replaced while it was open: %w", err))
			return
		}
	}
}

// inPlace returns an error where the index is a file, and another one is in its place.
func inPlace(i index.Index) error {
	file, ok := i.(interface{ InPlace() error })
	if !ok {
		return nil
	}
	if err := file.InPlace(); err != nil {
		return fmt.Errorf("the snapshot is lost: %w", err)
	}
	return nil
}

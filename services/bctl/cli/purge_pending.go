package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/bctl/bctl/internal/index"
)

// pendingPurges returns the purges that are not complete. A role that may not see them has none.
func pendingPurges(ctx context.Context, i index.Index) ([]index.PurgeState, error) {
	states, err := i.PurgeStates(ctx)
	if errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	return states, err
}

// purgesPending warns of purges that are not complete, of these shards.
func purgesPending(states []index.PurgeState, shards []index.ShardStatus) (list []lack) {
	for n := range states {
		for m := range shards {
			if s := &shards[m]; s.ID == states[n].Shard {
				list = append(list, lack{What: "purge", Text: fmt.Sprintf("purge of %s %s is not complete: %s (bctl purge --resume)", display(s.Filer.Name), display(s.Name), progressOf(&states[n])), Warns: true})
			}
		}
	}
	return list
}

// progressOf describes how far a purge is. Its name is not in the text.
func progressOf(s *index.PurgeState) string {
	if s.Path == "" {
		return "only its traces are left to be removed"
	}
	return fmt.Sprintf("%s to be written again, %s of removed content, %s deleted", counted(int(s.Stale), "record"), counted(int(s.Chunks), "chunk"), counted(int(s.Objects), "object"))
}

// pendingPurgeJSON is a purge that is not complete. The names are fixed.
type pendingPurgeJSON struct {
	ID      string  `json:"id"` // in the log
	Started *string `json:"started"`
	Records int64   `json:"records"` // to be written again
	Chunks  int64   `json:"chunks"`  // of removed content
	Objects int64   `json:"objects"` // deleted
}

func pendingPurgesJSON(states []index.PurgeState) []pendingPurgeJSON {
	list := make([]pendingPurgeJSON, len(states))
	for n := range states {
		s := &states[n]
		list[n] = pendingPurgeJSON{s.ID.String(), jsonTime(s.Started), s.Stale, s.Chunks, s.Objects}
	}
	return list
}

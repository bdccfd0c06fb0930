package commit

import (
	"context"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/churn"
	"github.com/bctl/bctl/internal/index"
)

// judge notes in the index whether the changes of a snapshot look as if somebody encrypted the
// files (package churn). The counts were accepted with the results that have them, each once (I3),
// and the commit of the snapshot raises the alarm: so neither depends on who commits, or how often.
func (s *Service) judge(ctx context.Context, snap *backup.Snapshot) error {
	if snap.Counts.FilesOpaque == 0 {
		return nil // the score is 0
	}
	history, err := s.Index.Snapshots(ctx, index.SnapshotFilter{
		Filer: snap.Filer.Name, Shard: snap.Shard.Name, States: []backup.State{backup.Committed}, Limit: churn.History,
	})
	if err != nil {
		return err
	}
	slices.Reverse(history) // newest first
	v := churn.Judge(snap, history)
	if !v.Alarm() {
		return s.Index.SetChurn(ctx, snap.ID, v.Score, "")
	}
	since := time.Time{}
	for i := range history {
		if history[i].ID == snap.BaseID {
			since = history[i].Started
		}
	}
	text, err := churn.Alarm(snap, &v, since, s.Index.Changes(ctx, snap.ID))
	if err != nil {
		return err
	}
	s.log.Warn("the changes of a snapshot look like encryption, and the shard is on hold", "snapshot", snap.ID.Short(),
		"filer", snap.Filer.Name, "shard", snap.Shard.Name, "alarm", text)
	return s.Index.SetChurn(ctx, snap.ID, v.Score, text)
}

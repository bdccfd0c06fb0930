package sweep

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/telemetry"
)

// parityEvery is how often parity is measured between passes: another pruner, or bctl repair, may
// have changed it.
const parityEvery = time.Hour

// measureParity measures how much has parity, after each pass and once an hour. That reads all
// packs from the index. So it is not done while there is no group and none is wanted.
func (s *Sweeper) measureParity(ctx context.Context) error {
	if !s.parity.IsZero() && time.Since(s.parity) < parityEvery {
		return nil
	}
	used := s.opts.Parity.Parity > 0
	if !used {
		for _, err := range s.index.ParityGroups(ctx) {
			if err != nil {
				return err
			}
			used = true
			break
		}
	}
	r := prune.ParityReport{}
	if used {
		var err error
		if r, err = prune.ReadParity(ctx, s.index); err != nil {
			return err
		}
	}
	s.opts.Metrics.Parity().State(telemetry.ParityState{
		Groups: r.Groups, Bytes: r.Bytes, Damaged: r.Damaged, Protected: r.Objects, ProtectedBytes: r.ObjectBytes, Unprotected: r.Without, UnprotectedBytes: r.WithoutBytes,
	})
	s.parity = time.Now()
	return nil
}

package cli

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// readings is an index of which a snapshot may be forgotten.
type readings struct {
	index.Index
	forgotten bool
}

func (r *readings) BeginReading(context.Context, backup.PackID, backup.SnapshotID, time.Duration) error {
	if r.forgotten {
		return backup.ErrNotFound
	}
	return nil
}

func (r *readings) EndReading(context.Context, backup.PackID) error { return nil }

// A restore that was paused for longer than its lease says whether its snapshot was forgotten
// meanwhile: otherwise what it has not found looks like damage.
func TestRestoreIsPaused(t *testing.T) {
	clock, at := wallClock, time.Date(2026, 11, 22, 18, 30, 0, 0, time.UTC)
	defer func() { wallClock = clock }()
	wallClock = func() time.Time { return at }
	for _, paused := range []time.Duration{0, readingLease} {
		for _, forgotten := range []bool{false, true} {
			var says strings.Builder
			a := &app{term: &terminal{err: &says}, log: slog.New(slog.NewTextHandler(io.Discard, nil))}
			x := &readings{}
			end, err := a.beginReading(t.Context(), x, backup.SnapshotID{1})
			if err != nil {
				t.Fatal(err)
			}
			at, x.forgotten = at.Add(paused), forgotten
			end()
			if said := strings.Contains(says.String(), "was forgotten while bctl was paused"); said != (paused > 0 && forgotten) {
				t.Errorf("paused for %v, forgotten %v: %q", paused, forgotten, says.String())
			}
		}
	}
}

package installation

import (
	"errors"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/pgindex"
	"github.com/bctl/bctl/internal/shares"
	"github.com/bctl/bctl/internal/sizes"
)

// An operator may read what bctl du and bctl stats read.
func TestOperatorsReadSizes(t *testing.T) {
	cluster := longCluster(t)
	p := testPlan(t.TempDir())
	p.Postgres.Name = "sizes"
	runRoles(t, &p, cluster.DSN())
	migrate(t, as(t, &p, cluster.DSN(), Admin))
	x, err := pgindex.Open(t.Context(), as(t, &p, cluster.DSN(), Operator), pgindex.Options{MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	w, err := shares.ReadWeights(t.Context(), x)
	if err != nil {
		t.Fatal(err)
	}
	chunk := backup.ChunkID{1}
	if err := w.AddLists(t.Context(), map[backup.ChunkID]struct{}{chunk: {}}); err != nil {
		t.Error(err)
	}
	if bytes, err := w.Of(t.Context(), []backup.ChunkID{chunk}); err != nil || bytes[0] != shares.Unknown {
		t.Errorf("a chunk that is not stored: %d, %v", bytes, err)
	}
	tally := sizes.NewTally(sizes.Options{Most: 1, Weights: w})
	if _, err := tally.Add(t.Context(), x, backup.SnapshotID{1}, "", backup.PageSet{}); !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("a snapshot that does not exist: %v", err)
	}
}

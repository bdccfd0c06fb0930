package embedded_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// A snapshot that was cancelled, or whose process died, has no record in the store, and perhaps no
// other backup follows. Pruning writes the record, without which the index cannot be copied.
func TestPruneWritesMissingRecords(t *testing.T) {
	m := newMachine(t)
	m.grow(1)
	first, err := m.backup(t.Context())
	m.must(err)
	m.must(os.WriteFile(filepath.Join(m.tree, "more"), []byte("more"), 0o600))
	_, err = m.backup(t.Context())
	m.must(err)
	idx := m.Index.(*sqliteindex.Index)
	cancelled, err := idx.BeginSnapshot(t.Context(), m.shard.ID, backup.Snapshot{ID: backup.NewSnapshotID()}, time.Time{})
	m.must(err)
	ended, err := embedded.Cancel(t.Context(), idx, m.LockDir, &cancelled, "cancelled")
	if err != nil || !ended {
		t.Fatalf("%v, %v", ended, err)
	}
	m.must(idx.Forget(t.Context(), first.ID, "tester", ""))
	o := prune.Options{Store: m.Store, Log: slog.New(slog.DiscardHandler), Holder: "tester"}
	_, err = embedded.Prune(t.Context(), idx, m.Keys, m.LockDir, o)
	m.must(err)
	_, err = m.Store.Stat(t.Context(), store.CommitName(cancelled.ID))
	m.must(err)
	if missing, err := idx.Unrecorded(t.Context(), nil, 1); err != nil || len(missing) > 0 {
		t.Fatalf("%+v, %v", missing, err)
	}
	m.must(idx.Forget(t.Context(), cancelled.ID, "tester", ""))
}

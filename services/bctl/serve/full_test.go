package serve

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/testenv"
)

// A reader whose store was full is ready again soon after there is space, although no work comes:
// it has put one test object, which belongs to no snapshot. Then it takes work.
func TestReaderAfterAFullStore(t *testing.T) {
	disk := testenv.NewDisk(t, 16<<20)
	f := newFleetWith(t, map[string]string{"BCTL_STORE": filepath.Join(disk.Dir, "store")})
	f.startAll(nil)
	ready := func(want int, says string) func() bool {
		return func() bool {
			status, body := f.get("reader", "/readyz")
			return status == want && strings.Contains(body, says)
		}
	}
	f.until("the reader is ready", ready(http.StatusOK, "ok"))
	if err := disk.Fill(); err != nil {
		t.Fatal(err)
	}
	begun := value(f.idx.BeginSnapshot(t.Context(), f.shard.ID, backup.Snapshot{}, time.Now()))(f)
	f.until("the reader's store is full", ready(http.StatusServiceUnavailable, "disk full"))
	if err := f.idx.RequestCancel(t.Context(), begun.ID, "by the test"); err != nil {
		t.Fatal(err)
	}
	f.until("the snapshot has ended", func() bool { return value(f.idx.Snapshot(t.Context(), begun.ID))(f).State == backup.Failed })
	f.wants("reader", "/readyz", http.StatusServiceUnavailable)
	if err := disk.Free(); err != nil {
		t.Fatal(err)
	}
	f.until("the reader is ready again", ready(http.StatusOK, "ok"))
	// A batch of the snapshot may have come again since: it has packs of its own.
	tests := value(filepath.Glob(filepath.Join(disk.Dir, "store", store.PacksPrefix, backup.SnapshotID{}.String(), "*")))(t)
	if len(tests) != 1 {
		t.Errorf("test objects %q, want one", tests)
	}
	f.backUp()
}

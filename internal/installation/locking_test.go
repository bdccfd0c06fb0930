package installation

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// The object lock of an installation is switched on where that is possible. Otherwise the error
// says why, and no file changes.
func TestRefreshSwitchesTheLock(t *testing.T) {
	for _, test := range []struct {
		kind     StoreKind
		from, to store.LockMode
		refused  string
	}{
		{AWS, store.Unlocked, store.Governance, ""},
		{AWS, store.Unlocked, store.Compliance, ""},
		{AWS, store.Governance, store.Governance, ""},
		{AWS, store.Governance, store.Compliance, "locks in mode governance cannot be extended in mode compliance"},
		{AWS, store.Compliance, store.Unlocked, "permission to bypass the locks"},
		{MinIO, store.Unlocked, store.Governance, "when the bucket is created"},
		{VersityGW, store.Unlocked, store.Compliance, "the default lock of its bucket"},
		{VersityGW, store.Governance, store.Unlocked, "from governance to off"},
		{VersityGW, store.Unlocked, store.Unlocked, ""},
	} {
		t.Run(string(test.kind)+" "+test.from.Text()+" "+test.to.Text(), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "fleet")
			p := testPlan("", "nats1")
			p.Store = Store{URL: "s3://bctl/repo", Endpoint: "https://s3.example.com:7070", Kind: test.kind, ObjectLock: test.from}
			if err := Init(dir, p, time.Now()); err != nil {
				t.Fatal(err)
			}
			i := opened(t, dir)
			before := read(t, dir)
			err := i.Refresh(time.Now(), Refreshing{ObjectLock: &test.to})
			after := read(t, dir)
			if test.refused != "" {
				if !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), test.refused) || !strings.Contains(err.Error(), "bctl deploy init --object-lock "+test.to.Text()) {
					t.Errorf("%v, want %q", err, test.refused)
				}
				for name := range before {
					if after[name] != before[name] {
						t.Errorf("%s has changed", name)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			locks := test.to != store.Unlocked
			if got := strings.Contains(after["reader@paris/bctl.yaml"], "object_lock: "+test.to.Text()); got != locks {
				t.Errorf("the reader locks objects: %t, want %t", got, locks)
			}
			if got := strings.Contains(after["s3/apply.sh"], "ObjectLockEnabled=Enabled"); test.kind == AWS && got != locks {
				t.Errorf("apply.sh enables object lock: %t, want %t", got, locks)
			}
			if got := strings.Contains(after["s3/pruner.json"], bypass); test.kind == AWS && got {
				t.Error("the pruner may bypass locks")
			}
		})
	}
}

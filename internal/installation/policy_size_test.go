package installation

import (
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/store"
)

// versitygw keeps the bucket's policy in an extended attribute, for which ext4 has less than 4 KiB,
// also while two generations of each account are accepted.
func TestPolicyFitsIntoAnAttribute(t *testing.T) {
	for _, mode := range []store.LockMode{store.Unlocked, store.Governance} {
		testPolicySize(t, mode)
	}
}

func testPolicySize(t *testing.T, mode store.LockMode) {
	t.Helper()
	p := testPlan(t.TempDir())
	p.Store.Kind, p.Store.ObjectLock = VersityGW, mode
	p.Generations = map[string][]int{}
	for _, folder := range []string{"admin", "committer", "reader@paris", "reader@oslo", "operator", "pruner", "scrubber", "restorer", "mirror"} {
		p.Generations[folder] = []int{1, 2}
	}
	keys := map[Identity]StoreKey{}
	for _, i := range p.Identities() {
		keys[i] = StoreKey{Access: p.accessKey(i)}
	}
	accounts, err := p.storeAccounts(keys)
	if err != nil {
		t.Fatal(err)
	}
	files, err := p.versityFiles(accounts)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasSuffix(f.Path, "bucket-policy.json") && len(f.Data) > 3500 {
			t.Errorf("%d bytes: %s", len(f.Data), f.Data)
		}
	}
}

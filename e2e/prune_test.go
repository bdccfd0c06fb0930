package e2e_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// Once nothing can use content any more, the pruner deletes it: with its default settings, within a
// minute, in a fleet in which backups run all the time.
func TestSpaceIsBackSoon(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f := fleet.New(t, fleet.Options{Pruners: 1, DefaultSettings: true})
	tree, other := filepath.Join(t.TempDir(), "tree"), filepath.Join(t.TempDir(), "other")
	generate(t, other, 7, spread)
	content := make([]byte, 20<<20)
	_, _ = rand.Read(content) // never fails
	if err := os.Mkdir(tree, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"large": content, "small": []byte("stays")} {
		if err := os.WriteFile(filepath.Join(tree, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settle(t)
	back := func(tree string) fleet.Summary {
		running, _ := f.StartBackup(tree, "--allow-shrink")
		out := running.Wait()
		if out.Status != 0 {
			t.Fatalf("%s", out)
		}
		return out.Summary(t)
	}
	first := back(tree)
	if err := os.Remove(filepath.Join(tree, "large")); err != nil {
		t.Fatal(err)
	}
	settle(t)
	second := back(tree)
	back(other)
	stored := func() int64 { return fleet.StoredBytes(t, f.StoreDir(), "packs/") }
	before := stored()
	f.Must("forget", first.Snapshot)
	forgotten := time.Now()
	beside, _ := f.StartBackup(other)
	fleet.Await(t, "the space of the large file", func() bool { return before-stored() >= int64(len(content)) })
	t.Logf("%d B are free after %.1f s", before-stored(), time.Since(forgotten).Seconds())
	out := beside.Wait()
	if out.Status != 0 {
		t.Fatalf("%s", out)
	}
	treetest.Equal(t, other, f.Restore(out.Summary(t).Snapshot))
	treetest.Equal(t, tree, f.Restore(second.Snapshot))
}

package e2e_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
)

// The administrator of a locked fleet gets the worker key and the committer key back from the
// store, with the identity: docs/operations.md, When a key is lost.
func TestLostKeysAreWrittenAgain(t *testing.T) {
	t.Parallel()
	f := fleet.NewLocked(t, fleet.Options{Walkers: -1, Readers: -1, Committers: -1})
	for _, name := range []string{"worker.key", "committer.key"} {
		file := filepath.Join(f.Machines, "admin", name)
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		f.As("admin").Must("init", "--if-missing")
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not written again as it was (%v)", name, err)
		}
	}
}

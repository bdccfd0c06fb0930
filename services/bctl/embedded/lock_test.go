package embedded

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// IsBackingUp does not take the shard's lock.
func TestIsBackingUp(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "locks")
	shard, other := backup.Shard{ID: 1, Name: "/tree"}, backup.Shard{ID: 2, Name: "/other"}
	want := func(when string, want bool) {
		t.Helper()
		for range 3 { // the query changes nothing
			if got, err := IsBackingUp(dir, shard); err != nil || got != want {
				t.Errorf("%s: %v, error %v", when, got, err)
			}
			if got, err := isBackingUpAny(dir); err != nil || got != want {
				t.Errorf("%s: any shard: %v, error %v", when, got, err)
			}
		}
	}
	want("without locks", false)
	for range 2 {
		unlock, err := lockShard(dir, shard)
		if err != nil {
			t.Fatal(err)
		}
		want("held", true)
		if _, err := lockShard(dir, shard); !errors.Is(err, backup.ErrRunning) {
			t.Errorf("held twice: %v", err)
		}
		want("held, and asked for by another", true)
		if got, err := IsBackingUp(dir, other); err != nil || got {
			t.Errorf("another shard: %v, error %v", got, err)
		}
		unlock()
		want("given back", false)
	}
}

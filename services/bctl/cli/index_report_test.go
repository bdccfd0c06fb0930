package cli

import (
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A repository without a catalog has lost it, unless it is too young to have one.
func TestRepositoriesThatMustHaveACatalog(t *testing.T) {
	at := func(minutes ...int) (list []backup.Snapshot) {
		for _, m := range minutes {
			list = append(list, backup.Snapshot{Started: time.Unix(int64(m)*60, 0)})
		}
		return list
	}
	for _, test := range []struct {
		snapshots []backup.Snapshot
		want      bool
	}{{nil, false}, {at(5), false}, {at(5, 15), false}, {at(16, 5, 7), true}} {
		if got := isOlderThan(test.snapshots, catalogWithin); got != test.want {
			t.Errorf("%v: %t", test.snapshots, got)
		}
	}
}

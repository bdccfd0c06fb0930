package restore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/store"
)

// A refusing store refuses some objects.
type refusing struct {
	store.Store
	refuses func(name string) bool
}

func (s refusing) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	if s.refuses(name) {
		return dst, fmt.Errorf("object %s: access denied: %w", name, fs.ErrPermission)
	}
	return s.Store.GetRange(ctx, dst, name, offset, length)
}

// A store that begins to refuse everything ends the restore with one error. One that refuses an
// object, as some do for one that is missing, costs the files that need it.
func TestRefusedReads(t *testing.T) {
	for what, some := range map[string]bool{"a pack": true, "everything": false} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t)
			check(t, f.store.Put(t.Context(), store.ConfigName, []byte("configuration")))
			refused := store.PackName(f.snapshot, f.id)
			f.directory("", f.file("a", strings.Repeat("a", 1000)), subdirectory("d"))
			f.newPack()
			f.directory("d", f.file("b", "b"))
			f.newPack()
			f.store = refusing{f.store, func(name string) bool { return !some || name == refused }}
			s, obs, err := f.tryRestore(t.Context(), Options{Target: t.TempDir()})
			if some {
				check(t, err)
				obs.wantProblems(t, "a")
				if s.Files != 1 {
					t.Errorf("%+v", s)
				}
			} else if !errors.Is(err, fs.ErrPermission) || len(obs.problems) > 0 {
				t.Errorf("%v, %v", err, obs.problems)
			}
		})
	}
}

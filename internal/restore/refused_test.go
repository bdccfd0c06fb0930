package restore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// A refusing store fails some requests.
type refusing struct {
	store.Store
	refuses func(name string) error
}

func (s refusing) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	if err := s.refuses(name); err != nil {
		return dst, fmt.Errorf("object %s: %w", name, err)
	}
	return s.Store.GetRange(ctx, dst, name, offset, length)
}

// A store that begins to refuse everything ends the restore with one error, and so does one that is
// away when that is to be found out. One that refuses an object, as some do for one that is
// missing, costs the files that need it. A refusal that is over costs nothing.
func TestRefusedReads(t *testing.T) {
	for what, is := range map[string]struct {
		pack, configuration error
		once                bool
		ends                error
		files               int64
	}{
		"a pack":                        {fs.ErrPermission, nil, false, nil, 1},
		"everything":                    {fs.ErrPermission, fs.ErrPermission, false, fs.ErrPermission, 0},
		"a pack, and then it is away":   {fs.ErrPermission, backup.ErrUnavailable, false, backup.ErrUnavailable, 0},
		"a pack, once":                  {fs.ErrPermission, nil, true, nil, 2},
		"a pack, and has lost the rest": {fs.ErrPermission, backup.ErrNotFound, false, nil, 1},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t)
			check(t, f.store.Put(t.Context(), store.ConfigName, []byte("configuration")))
			refused := store.PackName(f.snapshot, f.id)
			f.directory("", f.file("a", strings.Repeat("a", 1000)), subdirectory("d"))
			f.newPack()
			f.directory("d", f.file("b", "b"))
			f.newPack()
			var times atomic.Int64
			f.store = refusing{f.store, func(name string) error {
				switch {
				case name == store.ConfigName:
					return is.configuration
				case name == refused && (times.Add(1) == 1 || !is.once):
					return is.pack
				}
				return nil
			}}
			s, obs, err := f.tryRestore(t.Context(), Options{Target: t.TempDir()})
			if is.ends != nil {
				if !errors.Is(err, is.ends) || len(obs.problems) > 0 {
					t.Errorf("%v, %v", err, obs.problems)
				}
				return
			}
			check(t, err)
			if is.files == 1 {
				obs.wantProblems(t, "a")
			} else {
				obs.wantProblems(t)
			}
			if s.Files != is.files {
				t.Errorf("%+v", s)
			}
		})
	}
}

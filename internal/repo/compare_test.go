package repo

import (
	"context"
	"iter"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
)

// A shuffled store lists its objects in the given order, as a store may.
type shuffled struct {
	store.Store
	names []string
}

func (s shuffled) List(context.Context, string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		for _, name := range s.names {
			if !yield(store.Object{Name: name}, nil) {
				return
			}
		}
	}
}

// The newest catalog is found in whatever order the store lists them.
func TestNewestCatalogInAnyOrder(t *testing.T) {
	base, err := dirstore.Create(filepath.Join(t.TempDir(), "store"))
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOfDistinct(rapid.Int64Range(1, maxCatalog-1), rapid.ID[int64]).Draw(t, "numbers")
		s := shuffled{Store: base, names: []string{store.CatalogName(maxCatalog), store.CatalogPrefix + "other"}}
		want := int64(0)
		for _, n := range numbers {
			s.names = append(s.names, store.CatalogName(n))
			want = max(want, n)
		}
		all, err := Catalogs(t.Context(), s)
		if err != nil || len(all) != len(numbers)+1 || !slices.IsSorted(all) {
			t.Fatalf("catalogs %v, %v", all, err)
		}
		if newest, err := NewestCatalog(t.Context(), s, nil); err != nil || newest != want {
			t.Fatalf("the newest catalog is %d, %v; want %d", newest, err, want)
		}
	})
}

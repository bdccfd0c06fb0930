package mirror

import (
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// A damaged catalog that a newer one has replaced is no problem, wherever it is damaged. The newest
// is one.
func TestReplacedCatalogs(t *testing.T) {
	type side = func(w *world) *memory
	from, to := func(w *world) *memory { return w.from }, func(w *world) *memory { return w.to }
	for _, damaged := range [][]side{{from}, {to}, {from, to}} {
		for _, when := range []string{"before the first pass", "after it", "after it, locked"} {
			for _, newest := range []bool{false, true} {
				w := newWorld(t)
				old := w.signed(pack.KindCatalog, store.CatalogName(1))
				if when != "before the first pass" {
					w.run(w.options())
				} else if len(damaged) != 1 || damaged[0](w) != w.from {
					continue
				}
				if !newest {
					w.signed(pack.KindCatalog, store.CatalogName(2))
				}
				for _, of := range damaged {
					w.flip(of(w), old, 200)
				}
				if strings.HasSuffix(when, "locked") {
					w.must(w.to.Lock(t.Context(), old, time.Now().Add(time.Hour)))
				}
				o := w.options()
				o.Reread = 1
				s := w.run(o)
				c, err := Compare(t.Context(), o)
				w.must(err)
				heals := len(damaged) == 1 && damaged[0](w) == w.to && !strings.HasSuffix(when, "locked")
				if want := newest && !heals; len(s.Problems) > 0 != want || c.Differs() != want {
					t.Errorf("%d sides %s, newest: %t: %+v, %+v", len(damaged), when, newest, s.Problems, c.Problems)
				}
			}
		}
	}
}

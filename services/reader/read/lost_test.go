package read

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/telemetry"
)

// losses are the ways in which an object can be lost without notice.
var losses = map[string]func(f *fixture, name string){
	"deleted": func(f *fixture, name string) {},
	"emptied": func(f *fixture, name string) { f.must(f.store.Store.Put(f.ctx, name, nil)) },
	"cut off": func(f *fixture, name string) {
		data := must(f.store.GetRange(f.ctx, nil, name, 0, 1000))(f)
		f.must(f.store.Delete(f.ctx, name))
		f.must(f.store.Store.Put(f.ctx, name, data))
	},
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// packNames returns the packs in the store.
func (f *fixture) packNames() (names []string) {
	f.Helper()
	for o, err := range f.store.List(f.ctx, store.PacksPrefix) {
		f.must(err)
		names = append(names, o.Name)
	}
	return names
}

// lose applies a loss to all packs in the store.
func (f *fixture) lose(loss string) {
	f.Helper()
	for _, name := range f.packNames() {
		if loss != "cut off" {
			f.must(f.store.Delete(f.ctx, name))
		}
		losses[loss](f, name)
	}
}

func lossTree() treetest.Tree {
	return treetest.Tree{
		"a": treetest.File("content"), "b": treetest.File(random(1, 9<<20)), "c": treetest.File(text(2 << 20)),
		"d": treetest.File("x").WithXattr("user.long", random(2, 3000)),
	}
}

// All content that was read is in the store when the batch is answered. Content that the store had
// lost is stored again, once, and found at its new location.
func TestLostPackIsNotReliedOn(t *testing.T) {
	for loss := range losses {
		t.Run(loss, func(t *testing.T) {
			f := newFixture(t, lossTree())
			f.read(f.batchOf(""))
			f.commit()
			f.lose(loss)
			lost := len(f.packNames())
			before := f.store.putsSoFar()

			var log bytes.Buffer
			metrics := telemetry.NewMetrics("reader", "test")
			f.reader = f.newReader(Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: metrics.Reader()})
			f.read(f.batchOf(""))
			f.commit()
			f.wantTree()
			if f.store.putsSoFar() == before || f.reader.LostPacks() != 1 {
				t.Errorf("%d packs stored, %d known to be lost", f.store.putsSoFar()-before, f.reader.LostPacks())
			}
			if said := strings.Count(log.String(), "a pack is missing or damaged"); said != 1 {
				t.Errorf("the loss of 1 pack was reported %d times:\n%s", said, log.String())
			}
			scrape := httptest.NewRecorder()
			metrics.Handler().ServeHTTP(scrape, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
			if !strings.Contains(scrape.Body.String(), "\nbctl_packs_lost_total 1\n") {
				t.Errorf("the loss of 1 pack is not counted:\n%s", scrape.Body.String())
			}
			if loss != "deleted" && lost != 1 {
				t.Fatalf("%d packs", lost)
			}

			before = f.store.putsSoFar()
			f.reader = f.newReader(Options{}) // knows nothing of earlier reads
			f.read(f.batchOf(""))
			f.commit()
			f.wantTree()
			if puts := f.store.putsSoFar() - before; puts != 0 {
				t.Errorf("%d packs for content that is stored again already", puts)
			}
		})
	}
}

// A store that does not answer has lost nothing: the batch is retried.
func TestStoreThatDoesNotAnswerHasLostNothing(t *testing.T) {
	f := newFixture(t, lossTree())
	f.read(f.batchOf(""))
	f.commit()
	before := f.store.putsSoFar()
	f.reader = f.newReader(Options{})
	batch := f.batchOf("")
	f.store.setBlind(func(string) error { return fmt.Errorf("no route to it: %w", backup.ErrUnavailable) })
	if err := f.reader.try(f.ctx, batch); !errors.Is(err, backup.ErrUnavailable) {
		t.Fatalf("while the store is away: %v", err)
	}
	f.store.setBlind(nil)
	f.read(batch)
	f.commit()
	f.wantTree()
	if puts := f.store.putsSoFar() - before; puts != 0 || f.reader.LostPacks() != 0 {
		t.Errorf("%d packs stored, %d known to be lost", puts, f.reader.LostPacks())
	}
}

// A reader that may not see packs trusts the index. For a reader that has seen a pack, "access
// denied" means that the pack is missing: some stores answer that instead of "not found".
func TestPacksThatMayNotBeSeen(t *testing.T) {
	for _, seen := range []bool{false, true} {
		f := newFixtureWithPacks(t, seen)
		before := f.store.putsSoFar()
		f.store.setBlind(forPacks(fs.ErrPermission))
		f.read(f.batchOf("sub"))
		f.commit()
		if puts := f.store.putsSoFar() - before; (puts != 0) != seen {
			t.Errorf("a pack was seen before: %t; %d packs stored", seen, puts)
		}
		f.wantTree()
	}
}

// newFixtureWithPacks returns a fixture with two packs, and a new reader, which has seen the first
// of them if seen is set.
func newFixtureWithPacks(t *testing.T, seen bool) *fixture {
	t.Helper()
	f := newFixture(t, treetest.Tree{"a": treetest.File("content"), "sub": treetest.Dir(), "sub/b": treetest.File("more")})
	f.read(f.batchOf(""))
	f.commit()
	f.read(f.batchOf("sub"))
	f.commit()
	f.reader = f.newReader(Options{})
	if seen {
		f.read(f.batchOf(""))
		f.commit()
	}
	return f
}

func forPacks(err error) func(name string) error {
	return func(name string) error {
		if strings.HasPrefix(name, store.PacksPrefix) {
			return err
		}
		return nil
	}
}

// A store that refuses the credentials, or is not mounted, has lost nothing, whether the reader has
// seen a pack before or not. What it says then is not remembered.
func TestStoreWithoutItsConfigurationHasLostNothing(t *testing.T) {
	for what, why := range map[string]error{"refuses everything": fs.ErrPermission, "has nothing": backup.ErrNotFound} {
		for _, seen := range []bool{false, true} {
			t.Run(fmt.Sprint(what, ", seen before: ", seen), func(t *testing.T) {
				f := newFixtureWithPacks(t, seen)
				before := f.store.putsSoFar()
				batch := f.batchOf("sub")
				f.store.setBlind(func(string) error { return fmt.Errorf("stat: %w", why) })
				if err := f.reader.try(f.ctx, batch); err == nil || isRefused(err) != errors.Is(why, fs.ErrPermission) {
					t.Fatalf("while the store %s: %v", what, err)
				}
				f.store.setBlind(nil)
				f.read(batch)
				f.commit()
				f.wantTree()
				if puts := f.store.putsSoFar() - before; puts != 0 || f.reader.LostPacks() != 0 {
					t.Errorf("%d packs stored, %d known to be lost", puts, f.reader.LostPacks())
				}
			})
		}
	}
}

// While the credentials are refused, no pack counts as complete either: one that is lost is found
// to be lost afterwards.
func TestRefusalHidesNoLoss(t *testing.T) {
	f := newFixture(t, treetest.Tree{"a": treetest.File("content")})
	f.read(f.batchOf(""))
	f.commit()
	f.lose("deleted")
	f.reader = f.newReader(Options{})
	batch := f.batchOf("")
	f.store.setBlind(func(string) error { return fs.ErrPermission })
	if err := f.reader.try(f.ctx, batch); !isRefused(err) {
		t.Fatalf("while the credentials are refused: %v", err)
	}
	f.store.setBlind(nil)
	f.read(batch)
	f.commit()
	f.wantTree()
	if n := f.reader.LostPacks(); n != 1 {
		t.Errorf("%d packs are known to be lost", n)
	}
}

// The credentials are accepted again after the request for the pack, and before the one for the
// configuration.
func TestRefusalThatEndsHasLostNothing(t *testing.T) {
	f := newFixture(t, treetest.Tree{"a": treetest.File("content"), "sub": treetest.Dir(), "sub/b": treetest.File("more")})
	f.read(f.batchOf(""))
	f.commit()
	f.read(f.batchOf("sub"))
	f.commit()
	f.reader = f.newReader(Options{})
	f.read(f.batchOf("")) // it has seen a pack
	f.commit()
	before := f.store.putsSoFar()
	var once sync.Once
	f.store.setBlind(func(string) (err error) {
		once.Do(func() { err = fs.ErrPermission })
		return err
	})
	f.read(f.batchOf("sub"))
	f.commit()
	f.wantTree()
	if puts := f.store.putsSoFar() - before; puts != 0 || f.reader.LostPacks() != 0 {
		t.Errorf("%d packs stored, %d known to be lost", puts, f.reader.LostPacks())
	}
}

// The store is asked once per pack, however many chunks are in it.
func TestPacksAreLookedAtOnce(t *testing.T) {
	tree := treetest.Tree{}
	for i := range 200 {
		tree[fmt.Sprint(i)] = treetest.File(random(uint64(i), 100_000))
	}
	f := newFixture(t, tree)
	f.read(f.batchOf(""))
	f.commit()
	f.store.stats = nil
	f.reader = f.newReader(Options{})
	for range 2 {
		f.read(f.batchOf(""))
		f.commit()
	}
	if want := len(f.packNames()); len(f.store.stats) != want {
		t.Errorf("%d of %d packs were looked at", len(f.store.stats), want)
	}
	for name, n := range f.store.stats {
		if n != 1 {
			t.Errorf("%s was looked at %d times", name, n)
		}
	}
}

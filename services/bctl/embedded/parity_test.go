package embedded_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/mirror"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/repair"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/embedded"
)

var testLayout = parity.Layout{Members: 5, Parity: 2}

// newParityWorld returns a repository with snapshots of some files each, and one that the next
// snapshots do not have. Each snapshot has a pack of its own, and all packs have parity.
func newParityWorld(t *testing.T, snapshots int) *damageWorld {
	t.Helper()
	w := &damageWorld{purgeWorld: &purgeWorld{machine: newMachine(t)}}
	w.must(w.index.CreateRepository(t.Context(), w.Repository))
	w.must(w.index.SetBrake(t.Context(), index.Brake{Snapshots: 100, MinSnapshots: 1 << 30, Bytes: 100, MinBytes: 1 << 60, Operators: 1}, "tester"))
	calm := faultsource.New(posix.New(posix.Options{}))
	calm.SetClock(func() (time.Time, time.Duration) { return time.Now().Add(time.Hour), 0 }) // nothing is racy
	w.Source = calm
	random := rand.NewChaCha8([32]byte{8})
	noise := make([]byte, 2000)
	for n := range snapshots {
		tree := treetest.Tree{}
		for i := range 10 {
			_, _ = random.Read(noise)
			tree[fmt.Sprint(n, "/", i)] = treetest.File(string(noise))
		}
		tree[fmt.Sprint("old", n)] = treetest.File(fmt.Sprint("only in snapshot ", n))
		treetest.Make(t, w.tree, tree)
		if n > 0 {
			w.must(os.Remove(filepath.Join(w.tree, fmt.Sprint("old", n-1))))
		}
		s, err := w.backup(t.Context())
		w.must(err)
		w.snapshots = append(w.snapshots, s)
		want := filepath.Join(t.TempDir(), "want")
		w.must(exec.CommandContext(t.Context(), "cp", "-a", w.tree, want).Run())
		w.want = append(w.want, want)
	}
	if made := w.protect(prune.Options{Parity: testLayout, MaxUnused: 1}); made.Groups == 0 || made.Waiting > 0 {
		t.Fatalf("%+v", made)
	}
	w.must(embedded.CopyIndex(t.Context(), w.index, w.Store, w.Keys, time.Now(), time.Now()))
	return w
}

// protect prunes.
func (w *damageWorld) protect(o prune.Options) prune.ParityMade {
	w.Helper()
	o.Store, o.Holder, o.Log = w.Store, backup.NewPackID().String(), slog.New(slog.DiscardHandler)
	r, err := embedded.Prune(w.Context(), w.index, w.Keys, w.LockDir, o)
	w.must(err)
	return r.Parity
}

func (w *damageWorld) groups() (groups []parity.Group) {
	w.Helper()
	for row, err := range w.index.ParityGroups(w.Context()) {
		w.must(err)
		g, _, err := parity.Parse(row.Description)
		w.must(err)
		if row.State != index.ParityValid || g.ID != row.ID {
			w.Fatalf("%+v", row)
		}
		groups = append(groups, g)
	}
	return groups
}

// objects returns the packs and the parity objects in the store.
func (w *damageWorld) objects() map[string]string {
	w.Helper()
	objects := map[string]string{}
	for _, prefix := range []string{store.PacksPrefix, store.ParityPrefix} {
		for _, name := range w.names(prefix) {
			data, err := os.ReadFile(w.path(name))
			w.must(err)
			objects[name] = string(data)
		}
	}
	return objects
}

// wantObjects compares with what objects has returned.
func (w *damageWorld) wantObjects(what string, want map[string]string) {
	w.Helper()
	if got := w.objects(); !maps.Equal(got, want) {
		w.Errorf("%s: %d objects are not the %d that there were", what, len(got), len(want))
	}
}

// damages are ways to damage an object.
var damages = []struct {
	name string
	do   func(w *damageWorld, name string)
}{
	{"deleted", func(w *damageWorld, name string) { w.must(os.Remove(w.path(name))) }},
	{"truncated", func(w *damageWorld, name string) { w.change(name, truncated) }},
	{"one bit flipped", func(w *damageWorld, name string) { w.flip(name, func(n int) int { return n / 2 }) }},
}

func (w *damageWorld) repair(report *check.Report) repair.Summary {
	w.Helper()
	o := repair.Options{Store: w.Store, Check: w.checkOptions(check.Content), By: "tester", Prune: prune.Options{Holder: backup.NewPackID().String(), Log: slog.New(slog.DiscardHandler)}}
	s, err := embedded.Repair(w.Context(), w.index, w.Keys, w.LockDir, o, report)
	w.must(err)
	return s
}

// Any two objects of a group, damaged in any way, are put back byte for byte, by a repair that
// opens packs, and by one without keys. Nothing else changes.
func TestAnyTwoArePutBack(t *testing.T) {
	w := newParityWorld(t, 6)
	want := w.objects()
	groups := w.groups()
	if len(groups) != 1 || len(groups[0].Members) != 6 {
		t.Fatalf("%+v", groups)
	}
	names := groups[0].Names()
	for i, one := range names {
		for j := range i {
			for n := range damages {
				first, second := damages[n], damages[(n+i+j)%len(damages)]
				what := fmt.Sprintf("object %d is %s, and object %d is %s", i, first.name, j, second.name)
				first.do(w, one)
				second.do(w, names[j])
				if (i+j+n)%2 == 0 {
					o := prune.Options{Store: w.Store, Index: w.index, Holder: "putter", Log: slog.New(slog.DiscardHandler)}
					damaged, err := prune.FindInGroups(t.Context(), o, true)
					w.must(err)
					var back prune.PutBackObjects
					err = embedded.WithPruneLock(t.Context(), w.index, w.LockDir, func() (err error) {
						back, err = prune.PutBack(t.Context(), o, damaged)
						return err
					})
					if err != nil || len(damaged) != 2 || len(back.Names) != 2 || len(back.Left) > 0 {
						t.Fatalf("%s: damaged are %q, put back %v, left %v, %v", what, damaged, back.Names, back.Left, err)
					}
				} else {
					report, err := check.Run(t.Context(), w.checkOptions(check.Content))
					w.must(err)
					for _, f := range report.Findings {
						if !f.FromParity {
							t.Errorf("%s: parity does not have %s", what, f.Object)
						}
					}
					if s := w.repair(&report); len(report.Findings) != 2 || s.FromParity != 2 || s.Packs+s.Partial+s.Left > 0 {
						t.Fatalf("%s: %d findings, %+v", what, len(report.Findings), s)
					}
				}
				w.wantObjects(what, want)
			}
		}
	}
	if found := w.repository.check(check.Content); len(found) > 0 {
		t.Errorf("%q", found)
	}
}

// More objects of a group are damaged than it can restore. What another copy has of them comes
// first, and what is too long is cut. So all are put back, whichever they are.
func TestParityTogetherWithAMirror(t *testing.T) {
	w := newParityWorld(t, 6)
	w.describe()
	second := w.directory("second-")
	_, err := mirror.Run(t.Context(), mirror.Options{From: w.Store, To: second, Now: time.Now})
	w.must(err)
	want, names := w.objects(), w.groups()[0].Names()
	signer := w.Keys.Signing.Signer()
	for i := range names {
		one, two, three, four := names[i], names[(i+1)%len(names)], names[(i+2)%len(names)], names[(i+3)%len(names)]
		for _, name := range []string{one, two, three} {
			w.must(os.Remove(w.path(name)))
		}
		longer := 0
		if strings.HasPrefix(four, store.PacksPrefix) {
			longer = 1
			w.change(four, func(data []byte) []byte { return append(data, "xx"...) })
		}
		kept := map[string][]byte{}
		for _, name := range []string{two, three, four} {
			kept[name], err = second.Get(t.Context(), name, 1<<30)
			w.must(err)
			w.must(second.Delete(t.Context(), name))
		}
		source, err := mirror.NewSource(t.Context(), second, w.Repository.ID, signer)
		w.must(err)
		report, err := check.Run(t.Context(), w.checkOptions(check.Objects))
		w.must(err)
		o := repair.Options{Store: w.Store, Check: w.checkOptions(check.Objects), By: "tester", Mirror: source, Prune: prune.Options{Holder: backup.NewPackID().String(), Log: slog.New(slog.DiscardHandler)}}
		s, err := embedded.Repair(t.Context(), w.index, w.Keys, w.LockDir, o, &report)
		w.must(err)
		what := fmt.Sprintf("objects %d and the next ones", i)
		if len(report.Findings) != 3+longer || s.FromMirror != 1 || s.FromParity != 2 || s.Cut != longer || s.Packs+s.Partial+s.Left+s.EndedGroups > 0 {
			t.Fatalf("%s: %d findings, %+v", what, len(report.Findings), s)
		}
		w.wantObjects(what, want)
		for name, data := range kept {
			w.must(second.Put(t.Context(), name, data))
		}
	}
}

// A bit of a parity object was flipped, and the mirror has put a pack back. The check that follows
// reads the parity object again, and so it is put back, too.
func TestDamagedParityIsNotForgotten(t *testing.T) {
	w := newParityWorld(t, 6)
	w.describe()
	want, g := w.objects(), w.groups()[0]
	second := w.directory("second-")
	_, err := mirror.Run(t.Context(), mirror.Options{From: w.Store, To: second, Now: time.Now})
	w.must(err)
	w.must(second.Delete(t.Context(), g.Name(0)))
	source, err := mirror.NewSource(t.Context(), second, w.Repository.ID, w.Keys.Signing.Signer())
	w.must(err)
	w.must(os.Remove(w.path(g.Members[0].Name())))
	w.flip(g.Name(0), func(n int) int { return n - 100 })
	report, err := check.Run(t.Context(), w.checkOptions(check.Content))
	w.must(err)
	s, err := embedded.Repair(t.Context(), w.index, w.Keys, w.LockDir, repair.Options{
		Store: w.Store, Check: w.checkOptions(check.Content), By: "tester", Mirror: source,
		Prune: prune.Options{Holder: backup.NewPackID().String(), Log: slog.New(slog.DiscardHandler)},
	}, &report)
	w.must(err)
	if len(report.Findings) != 2 || s.FromMirror != 1 || s.FromParity != 1 {
		t.Errorf("%d findings, %+v", len(report.Findings), s)
	}
	w.wantObjects("after the repair", want)
}

// Three damaged objects of a group do not come back. The check says so, the repair drops what is
// lost, and the next prune makes parity for what is left.
func TestThreeAreLost(t *testing.T) {
	for n, damage := range damages {
		w := newParityWorld(t, 6)
		g := w.groups()[0]
		lost := []int{0, 2, 4 + n}
		for _, i := range lost {
			damage.do(w, g.Names()[i])
		}
		report, err := check.Run(t.Context(), w.checkOptions(check.Content))
		w.must(err)
		packs := 0
		for _, f := range report.Findings {
			if f.FromParity {
				t.Errorf("%s: parity has %s", damage.name, f.Object)
			}
			packs += b2i(f.Kind == check.Pack)
		}
		s := w.repair(&report)
		if s.FromParity > 0 || s.Packs+s.Partial != packs || len(report.Findings) != 3 {
			t.Fatalf("%s: %+v", damage.name, s)
		}
		w.protect(prune.Options{MaxUnused: 1, Sweep: true})
		again, err := check.Run(t.Context(), w.checkOptions(check.Content))
		w.must(err)
		for _, f := range again.Findings {
			if f.Kind != check.Chunks {
				t.Errorf("%s: after the repair and a prune: %s", damage.name, describe(f))
			}
		}
	}
}

// A repair that is killed at any write leaves nothing that the next one does not put back.
func TestInterruptedPutBack(t *testing.T) {
	world := newParityWorld(t, 6)
	want := world.objects()
	for at := 1; ; at++ {
		w := world.copied(t)
		g := w.groups()[0]
		w.must(os.Remove(w.path(g.Names()[0])))
		w.flip(g.Names()[3], func(n int) int { return n / 3 })
		killed := &killedStore{Store: w.Store, at: at, applied: at%2 == 0}
		o := prune.Options{Store: killed, Index: w.index, Holder: "killed", Log: slog.New(slog.DiscardHandler)}
		_, err := prune.PutBack(t.Context(), o, []string{g.Names()[0], g.Names()[3]})
		if killed.writes < at {
			w.must(err)
			break
		}
		if !errors.Is(err, errKilled) {
			t.Fatalf("write %d: %v", at, err)
		}
		o.Store, o.Holder = w.Store, "again"
		damaged, err := prune.FindInGroups(t.Context(), o, true)
		w.must(err)
		_, err = prune.PutBack(t.Context(), o, damaged)
		w.must(err)
		w.wantObjects(fmt.Sprint("write ", at), want)
	}
}

// A group of which a member is damaged loses no member: the prune leaves what nothing needs, until
// a repair has put the damaged one back.
func TestDamagedGroupsHoldTheirMembers(t *testing.T) {
	w := newParityWorld(t, 6)
	g := w.groups()[0]
	first := w.packsOf(&w.snapshots[0])[0]
	damaged := w.packsOf(&w.snapshots[3])[0]
	w.flip(damaged, func(n int) int { return n / 2 })
	w.must(w.index.Forget(t.Context(), w.snapshots[0].ID, "tester", ""))
	w.must(os.RemoveAll(filepath.Join(w.tree, "0")))
	if got := w.nextBackup(); got != "succeeds" {
		t.Fatal(got)
	}
	for i := range w.snapshots[1:6] { // so that nothing needs the first pack
		w.must(w.index.Forget(t.Context(), w.snapshots[1+i].ID, "tester", ""))
	}
	made := w.protect(prune.Options{MaxUnused: 1})
	if _, err := w.Store.Stat(t.Context(), first); made.Held == 0 || err != nil {
		t.Fatalf("%+v, %v", made, err)
	}
	report, err := check.Run(t.Context(), w.checkOptions(check.Content))
	w.must(err)
	if s := w.repair(&report); s.FromParity != 1 {
		t.Fatalf("%+v", s)
	}
	made = w.protect(prune.Options{MaxUnused: 1})
	if _, err := w.Store.Stat(t.Context(), first); made.Held > 0 || made.Ended != 1 || made.Groups != 1 || !errors.Is(err, backup.ErrNotFound) {
		t.Fatalf("%+v, %v", made, err)
	}
	if now := w.groups(); len(now) != 1 || now[0].ID == g.ID {
		t.Errorf("%+v", now)
	}
	if found := w.repository.check(check.Content); len(found) > 0 {
		t.Errorf("%q", found)
	}
}

// No parity is made of a pack that is not what was sealed, until it is put back.
func TestNoParityOfDamagedPacks(t *testing.T) {
	w := newParityWorld(t, 6)
	want := w.objects()
	w.protect(prune.Options{MaxUnused: 1, NoParity: true})
	damaged := w.packsOf(&w.snapshots[3])[0]
	w.flip(damaged, func(n int) int { return n / 2 })
	if made := w.protect(prune.Options{Parity: testLayout, MaxUnused: 1}); made.Late != 1 {
		t.Errorf("%+v", made)
	}
	for _, g := range w.groups() {
		if slices.Contains(g.Names(), damaged) {
			t.Fatalf("%s is damaged, and has parity", damaged)
		}
	}
	w.must(os.WriteFile(w.path(damaged), []byte(want[damaged]), 0o600))
	w.protect(prune.Options{MaxUnused: 1, NoParity: true})
	if made := w.protect(prune.Options{Parity: testLayout, MaxUnused: 1}); made.Late != 0 {
		t.Errorf("%+v", made)
	}
	report, err := prune.ReadParity(t.Context(), w.index)
	w.must(err)
	if report.Without > 0 {
		t.Errorf("%+v", report)
	}
}

// A store that takes no parity leaves the objects late that a group could have, and no others.
func TestRefusedParityIsLate(t *testing.T) {
	w := newParityWorld(t, 6)
	w.protect(prune.Options{MaxUnused: 1, NoParity: true})
	objects := len(w.objects())
	o := prune.Options{Parity: testLayout, MaxUnused: 1, Store: noParity{w.Store}, Holder: "refused", Log: slog.New(slog.DiscardHandler)}
	r, err := embedded.Prune(t.Context(), w.index, w.Keys, w.LockDir, o)
	w.must(err)
	if r.Parity.Late == 0 || r.Parity.Late != r.Parity.Waiting || r.Parity.Late > objects || r.Parity.Groups > 0 {
		t.Errorf("%+v, of %d objects", r.Parity, objects)
	}
	o.Parity = parity.Layout{Members: 100, Parity: 1} // there are too few for a group
	if r, err = embedded.Prune(t.Context(), w.index, w.Keys, w.LockDir, o); err != nil || r.Parity.Late > 0 || r.Parity.Waiting == 0 {
		t.Errorf("%+v, %v", r.Parity, err)
	}
}

// A noParity is a store that refuses parity objects.
type noParity struct{ store.Store }

func (s noParity) Put(ctx context.Context, name string, data []byte) error {
	if strings.HasPrefix(name, store.ParityPrefix) {
		return fs.ErrPermission
	}
	return s.Store.Put(ctx, name, data)
}

// newStaleGroup returns a repository with a group that was made when one of its packs was damaged,
// and the index did not have the checksums. The pack is sound again.
func newStaleGroup(t *testing.T) (w *damageWorld, pack string) {
	t.Helper()
	w = newParityWorld(t, 6)
	w.protect(prune.Options{MaxUnused: 1, NoParity: true})
	pack = w.packsOf(&w.snapshots[3])[0]
	sound, err := os.ReadFile(w.path(pack))
	w.must(err)
	w.flip(pack, func(n int) int { return n / 2 })
	w.sql("UPDATE packs SET damage = hex(sums), sums = x''")
	w.protect(prune.Options{Parity: testLayout, MaxUnused: 1})
	w.sql("UPDATE packs SET sums = unhex(damage), damage = ''")
	w.must(os.WriteFile(w.path(pack), sound, 0o600))
	if g := w.groups(); len(g) != 1 || !slices.Contains(g[0].Names(), pack) {
		t.Fatalf("%+v", g)
	}
	return w, pack
}

// A sound pack is not replaced by the damaged bytes of which its parity was made: neither if it is
// believed to be damaged, nor if others of its group are. That group ends, and the next one is made
// of sound bytes.
func TestSoundPacksAreNotReplaced(t *testing.T) {
	w, pack := newStaleGroup(t)
	want := map[string]string{}
	for name, data := range w.objects() {
		if strings.HasPrefix(name, store.PacksPrefix) {
			want[name] = data
		}
	}
	other := w.packsOf(&w.snapshots[1])[0]
	w.must(os.Remove(w.path(other)))
	o := prune.Options{Index: w.index, Store: w.Store, Log: slog.New(slog.DiscardHandler), Holder: "again"}
	damaged, err := prune.FindInGroups(t.Context(), o, true)
	w.must(err)
	back, err := prune.PutBack(t.Context(), o, damaged)
	w.must(err)
	if !back.Names[other] || back.Names[pack] || !back.Sound[pack] || len(back.Misled) != 1 || len(w.groups()) > 0 {
		t.Errorf("%+v", back)
	}
	w.wantObjects("packs", want)
	w.protect(prune.Options{Parity: testLayout, MaxUnused: 1})
	damaged, err = prune.FindInGroups(t.Context(), o, true)
	if w.must(err); len(damaged) > 0 || len(w.groups()) != 1 {
		t.Errorf("%q", damaged)
	}
}

// A group that was made of damaged bytes does not hold its members for ever.
func TestStaleGroupsEnd(t *testing.T) {
	w, pack := newStaleGroup(t)
	first := w.packsOf(&w.snapshots[0])[0]
	w.must(os.RemoveAll(filepath.Join(w.tree, "0")))
	if got := w.nextBackup(); got != "succeeds" {
		t.Fatal(got)
	}
	for i := range w.snapshots[:6] { // so that nothing needs the first pack
		w.must(w.index.Forget(t.Context(), w.snapshots[i].ID, "tester", ""))
	}
	made := w.protect(prune.Options{MaxUnused: 1})
	if _, err := w.Store.Stat(t.Context(), first); made.Held > 0 || made.Ended != 1 || made.Groups != 1 || !errors.Is(err, backup.ErrNotFound) {
		t.Fatalf("%+v, %v", made, err)
	}
	g := w.groups()[0]
	w.must(g.Check(t.Context(), w.Store, pack))
}

// A rebuilt index has the groups of the store, and packs that are missing are put back before.
func TestRebuildFindsParity(t *testing.T) {
	w := newParityWorld(t, 6)
	want := w.objects()
	g := w.groups()[0]
	for n, lost := range [][]int{nil, {1}, {0, 5}, {2, 6}, {6, 7}} {
		for _, i := range lost {
			w.must(os.Remove(w.path(g.Names()[i])))
		}
		x := w.emptySQLite()
		result := w.rebuildInto(x)
		members := 0
		for _, i := range lost {
			members += b2i(i < len(g.Members))
		}
		if result.PutBack != members || result.Packs != 6 || len(result.Damaged) > 0 {
			t.Errorf("%v: %+v", lost, result)
		}
		r := *w
		r.purgeWorld = &purgeWorld{machine: &machine{repository: &repository{T: t, Options: w.Options, opener: w.opener, memory: w.memory, index: x}, shard: w.shard, tree: w.tree}, snapshots: w.snapshots}
		if len(lost) < 2 || n < 4 { // with both parity objects lost, nothing describes the group
			if got := r.groups(); fmt.Sprint(got) != fmt.Sprint([]parity.Group{g}) {
				t.Errorf("%v: %+v", lost, got)
			}
		}
		report, err := check.Run(t.Context(), w.checkOptions(check.Content))
		w.must(err)
		w.repair(&report)
		w.wantObjects(fmt.Sprint(lost), want)
	}
}

// With compaction, copies of objects with parity have parity when the pass ends. --parity off
// deletes all of it.
func TestParityOfCopies(t *testing.T) {
	w := newParityWorld(t, 6)
	for i := range w.snapshots[:5] {
		w.must(w.index.Forget(t.Context(), w.snapshots[i].ID, "tester", ""))
	}
	made := w.protect(prune.Options{MaxUnused: 0})
	if made.Groups == 0 || made.Ended == 0 || made.Held > 0 {
		t.Fatalf("%+v", made)
	}
	report, err := prune.ReadParity(t.Context(), w.index)
	w.must(err)
	if report.Without > 0 || report.Objects == 0 {
		t.Errorf("%+v", report)
	}
	if found := w.repository.check(check.Content); len(found) > 0 {
		t.Errorf("%q", found)
	}
	if made := w.protect(prune.Options{MaxUnused: 1, NoParity: true}); made.Ended == 0 || len(w.groups()) > 0 || len(w.names(store.ParityPrefix)) > 0 {
		t.Errorf("%+v", made)
	}
}

// parityHead begins the second table of docs/damage.md.
const parityHead = `
## With parity

The same in a repository with six snapshots, of which each has a pack. All of these are in one parity group with two parity objects
([parity.md](parity.md)). Each snapshot has a file that the next ones do not have.

| object | damage | check | lost | next backup | repair | lost in the end |
| --- | --- | --- | --- | --- | --- | --- |
`

// parityCases are the rows of the second table.
func parityCases() (cases []damageCase) {
	names := func(w *damageWorld) (names []string) { // packs in the order of their snapshots
		for i := range w.snapshots {
			names = append(names, w.packsOf(&w.snapshots[i])[0])
		}
		return append(names, w.groups()[0].Names()[len(names):]...)
	}
	cases = append(cases, objectCases("pack with parity", store.PacksPrefix, func(w *damageWorld) (string, string) { return names(w)[1], names(w)[0] })...)
	cases = append(cases, objectCases("parity object", store.ParityPrefix, func(w *damageWorld) (string, string) { return names(w)[7], names(w)[6] })...)
	for _, several := range []struct {
		object string
		which  []int
	}{{"two packs with parity", []int{0, 3}}, {"a pack and a parity object", []int{2, 6}}, {"both parity objects", []int{6, 7}}, {"three packs with parity", []int{0, 2, 4}}} {
		for _, damage := range damages {
			cases = append(cases, damageCase{several.object, damage.name, func(w *damageWorld) {
				all := names(w)
				for _, i := range several.which {
					damage.do(w, all[i])
				}
			}})
		}
	}
	return cases
}

// writeParityDamage writes the second table.
func writeParityDamage(t *testing.T, b *strings.Builder) {
	world := newParityWorld(t, 6)
	b.WriteString(parityHead)
	for _, c := range parityCases() {
		t.Run(strings.ReplaceAll(c.object+" "+c.damage, " ", "_"), func(t *testing.T) {
			o := c.run(t, world)
			found := "nothing"
			if o.level != "" {
				found = o.level + ": " + o.found
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s |\n", c.object, c.damage, found, o.lost, o.backup, cmp.Or(o.repaired, "nothing to do"), o.lostAfter)
		})
	}
}

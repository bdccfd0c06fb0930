package embedded_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/mirror"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/repair"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// A oneLocked is a store that has locked one object.
type oneLocked struct {
	store.Store
	name string
}

func (s *oneLocked) Delete(ctx context.Context, names ...string) error {
	rest := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == s.name })
	if err := s.Store.Delete(ctx, rest...); err != nil || len(rest) == len(names) {
		return err
	}
	return &store.Error{Store: s.String(), Op: "delete", Err: &store.LockedError{Names: []string{s.name}}}
}

// A lockWorld is a repository with an object of each kind.
type lockWorld struct {
	*damageWorld
	keys map[string][]byte // what is below keys/
}

func newLockWorld(t *testing.T) *lockWorld {
	t.Helper()
	w := &lockWorld{damageWorld: newParityWorld(t, 6), keys: map[string][]byte{}}
	w.describe()
	failed, err := w.index.BeginSnapshot(t.Context(), w.shard.ID, backup.Snapshot{ID: backup.NewSnapshotID()}, time.Now())
	w.must(err)
	w.must(w.index.Fail(t.Context(), failed.ID, "killed", time.Now()))
	w.must(embedded.WriteRecords(t.Context(), w.index, w.Store, w.Keys))
	w.must(embedded.CopyIndex(t.Context(), w.index, w.Store, w.Keys, time.Now(), time.Now()))
	for _, name := range []string{store.RecipientsName(1), store.WrapsName(1, [16]byte{1})} {
		w.keys[name] = []byte("signed " + name)
		w.must(w.Store.Put(t.Context(), name, w.keys[name]))
	}
	return w
}

func (w *lockWorld) options() check.Options {
	o := w.checkOptions(check.Content)
	o.ProveKeys = func(name string, data []byte) error {
		if !bytes.Equal(data, w.keys[name]) {
			return backup.ErrCorrupt
		}
		return nil
	}
	o.KeyObjects = func(context.Context) ([]string, error) {
		return []string{store.RecipientsName(1), store.WrapsName(1, [16]byte{1})}, nil
	}
	o.Recipients = func(context.Context) ([]string, error) { return w.Repository.Recipients, nil }
	return o
}

// targets are the objects that check reads, the oldest and the newest of each kind.
func (w *lockWorld) targets() (names []string) {
	w.Helper()
	for _, prefix := range []string{store.PacksPrefix, store.ParityPrefix, store.SegmentsPrefix, store.CommitsPrefix, store.RecipientsPrefix, store.WrapsPrefix} {
		all := w.names(prefix)
		names = append(names, all[0], all[len(all)-1])
	}
	for _, s := range w.allSnapshots() {
		if s.State == backup.Failed {
			names = append(names, store.CommitName(s.ID))
		}
	}
	for _, prefix := range []string{store.CatalogPrefix, store.IndexPrefix} {
		all := w.names(prefix)
		names = append(names, all[len(all)-1])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (w *lockWorld) allSnapshots() []backup.Snapshot {
	w.Helper()
	all, err := w.index.Snapshots(w.Context(), index.SnapshotFilter{})
	w.must(err)
	return all
}

// A damaged object that is locked keeps nothing else from being repaired, of whatever kind it is. A
// pack that the mirror or parity has stays in the index, and is named; the journal is written again
// under other names, and the index is rebuilt from it.
func TestRepairOfLocked(t *testing.T) {
	world := newLockWorld(t)
	second := world.directory("second-")
	_, err := mirror.Run(t.Context(), mirror.Options{From: world.Store, To: second, Workers: 4})
	world.must(err)
	for _, name := range world.targets() {
		for _, mirrored := range []bool{false, true} {
			t.Run(strings.ReplaceAll(name, "/", "_")+map[bool]string{true: " mirrored"}[mirrored], func(t *testing.T) {
				w := &lockWorld{world.copied(t), world.keys}
				var from repair.Mirror
				if mirrored {
					from, err = mirror.NewSource(t.Context(), second, w.Repository.ID, w.Keys.Signing.Signer())
					w.must(err)
				}
				w.repairLocked(name, from)
			})
		}
	}
}

// repairLocked damages the target that is locked, a record, and all other targets unless it is in a
// parity group, and repairs.
func (w *lockWorld) repairLocked(name string, from repair.Mirror) {
	w.Helper()
	inner := w.Store
	w.Store = &oneLocked{inner, name}
	// The rest of a parity group stays whole, so that parity has what is locked.
	inGroup := strings.HasPrefix(name, store.PacksPrefix) || strings.HasPrefix(name, store.ParityPrefix)
	for _, target := range w.targets() {
		if target == name || !inGroup {
			w.flip(target, func(n int) int { return n / 2 })
		}
	}
	record := w.names(store.CommitsPrefix)[1]
	if record != name {
		w.flip(record, func(n int) int { return n / 2 })
	}
	report, err := check.Run(w.Context(), w.options())
	w.must(err)
	s, err := embedded.Repair(w.Context(), w.index, w.Keys, w.LockDir, repair.Options{
		Store: w.Store, Check: w.options(), By: "tester", Mirror: from,
		Prune: prune.Options{Holder: backup.NewPackID().String(), Log: slog.New(slog.DiscardHandler)},
	}, &report)
	w.must(err)
	kept := map[string]repair.Reason{}
	if strings.HasPrefix(name, store.PacksPrefix) {
		kept[name] = repair.LockedInParity
		if from != nil {
			kept[name] = repair.LockedInMirror
		}
	}
	if len(s.Kept) != len(kept) || s.Kept[name] != kept[name] {
		w.Errorf("kept: %v, want %v", s.Kept, kept)
	}
	again, err := check.Run(w.Context(), w.options())
	w.must(err)
	for _, f := range again.Findings {
		isKey := strings.HasPrefix(f.Object, store.KeysPrefix) // only a command with an identity writes them again
		if kept[f.Object] == "" && !isKey && f.Kind != check.Chunks {
			w.Errorf("after the repair: %s", describe(f))
		}
	}
	if s.Left == 0 && len(kept) > 0 {
		w.Error("what is kept does not count as left")
	}
	x := w.emptySQLite()
	if got := w.rebuildWith(x, 1<<30); len(got.Lost) > 0 {
		w.Errorf("rebuilt without %v", got.Lost)
	}
	// Once the lock has ended, all is well.
	w.Store = inner
	report, err = check.Run(w.Context(), w.options())
	w.must(err)
	s, err = embedded.Repair(w.Context(), w.index, w.Keys, w.LockDir, repair.Options{
		Store: w.Store, Check: w.options(), By: "tester", Mirror: from,
		Prune: prune.Options{Holder: backup.NewPackID().String(), Log: slog.New(slog.DiscardHandler)},
	}, &report)
	w.must(err)
	if len(s.Kept) > 0 {
		w.Errorf("after the lock: kept %v", s.Kept)
	}
}

// An awayMirror is a mirror that does not answer.
type awayMirror struct{}

func (awayMirror) PutBack(context.Context, store.Store, string) (bool, error) {
	return false, backup.ErrUnavailable
}
func (awayMirror) Bytes(string) int64    { return 0 }
func (awayMirror) IsAway(err error) bool { return errors.Is(err, backup.ErrUnavailable) }

// While the mirror is away, parity is put back, and the journal is written again. What the mirror
// may have is not dropped.
func TestRepairWhileTheMirrorIsAway(t *testing.T) {
	world := newParityWorld(t, 6)
	for _, c := range []struct {
		from           repair.Mirror
		lost, restored int
	}{{nil, 1, 1}, {nil, 3, 0}, {awayMirror{}, 1, 1}, {awayMirror{}, 3, 0}} {
		w := world.copied(t)
		lost := w.groups()[0].Names()[:c.lost]
		for _, name := range append([]string{w.names(store.CommitsPrefix)[0]}, lost...) {
			w.must(os.Remove(w.path(name)))
		}
		report, err := check.Run(t.Context(), w.checkOptions(check.Objects))
		w.must(err)
		o := repair.Options{Store: w.Store, Check: w.checkOptions(check.Objects), By: "tester", Mirror: c.from, Prune: prune.Options{Holder: backup.NewPackID().String(), Log: slog.New(slog.DiscardHandler)}}
		if c.from == nil {
			o.MirrorAway = backup.ErrUnavailable
		}
		s, err := embedded.Repair(t.Context(), w.index, w.Keys, w.LockDir, o, &report)
		w.must(err)
		left := c.lost - c.restored
		if s.MirrorAway == nil || s.FromParity != c.restored || s.Packs+s.Partial > 0 || s.Journal != 1 || s.Left != left || len(s.Kept) != left {
			t.Errorf("%d lost: %+v", c.lost, s)
		}
	}
}

package sweep_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/telemetry"
	"github.com/bctl/bctl/services/pruner/sweep"
)

// packs stores so many packs of a running snapshot, and returns their objects.
func (f *fixture) packs(number int) (members []parity.Member) {
	f.Helper()
	ctx := f.Context()
	snap, err := f.BeginSnapshot(ctx, f.shard.ID, backup.Snapshot{ID: backup.NewSnapshotID()}, time.Time{})
	f.must(err)
	for n := range number {
		m := parity.Member{Snapshot: snap.ID, Object: backup.NewPackID(), Bytes: int64(100 + n)}
		f.must(f.store.Put(ctx, m.Name(), make([]byte, m.Bytes)))
		_, err := f.Apply(ctx, []index.Result{{Pack: &backup.PackStored{
			Snapshot: snap.ID, Pack: m.Object, StoredBytes: m.Bytes, FrameBytes: []uint32{uint32(m.Bytes)}, Chunks: []backup.ChunkPlace{{ID: backup.ChunkID{byte(n + 1)}, Length: 1}},
		}}})
		f.must(err)
		members = append(members, m)
	}
	return members
}

// group makes a parity group.
func (f *fixture) group(members []parity.Member) index.ParityGroup {
	f.Helper()
	g, objects, err := parity.Make(f.Context(), f.store, backup.RepositoryID{1}, members, 2)
	f.must(err)
	row := index.ParityGroup{ID: g.ID, State: index.ParityValid, Description: g.Describe(0)}
	for n, data := range objects {
		f.must(f.store.Put(f.Context(), g.Name(n), data))
		row.Bytes += int64(len(data))
	}
	f.must(f.RecoverParity(f.Context(), []index.ParityGroup{row}))
	return row
}

// damage has a scrub note that a pack is damaged.
func (f *fixture) damage(object backup.PackID) {
	f.Helper()
	ctx := f.Context()
	for k, err := range f.Index.Packs(ctx) {
		f.must(err)
		if k.Object != object {
			continue
		}
		term, led, err := f.Lead(ctx, "scrubber", "s", time.Minute)
		f.must(err)
		if !led {
			f.Fatal("another scrubber leads")
		}
		f.must(f.NoteProofs(ctx, term, []index.Proof{{Row: k.Row, Damage: "it is missing"}}, index.ScrubCost{}))
		return
	}
	f.Fatalf("there is no pack %s", object)
}

// How much has parity is measured after a pass, and once when a pruner starts. While there is no
// group and none is wanted, no packs are read for it.
func TestMetricsOfParity(t *testing.T) {
	f := newFixture(t)
	members := f.packs(3)
	m := telemetry.NewMetrics("pruner", "test")
	f.look(f.pruner(sweep.Options{Metrics: m.Pruner()}), 1)
	wantMetrics(t, m, "bctl_parity_wanted 0", "bctl_parity_groups 0", "bctl_parity_unprotected_objects 0")

	row := f.group(members[:2])
	f.damage(members[1].Object)
	m = telemetry.NewMetrics("pruner", "test")
	f.look(f.pruner(sweep.Options{Metrics: m.Pruner()}), 1) // it reads the packs for parity, and makes no pass
	state := []string{"bctl_parity_groups 1", fmt.Sprint("bctl_parity_bytes ", row.Bytes), "bctl_parity_protected_objects 2", "bctl_parity_protected_bytes 201",
		"bctl_parity_unprotected_objects 1", "bctl_parity_unprotected_bytes 102", "bctl_parity_damaged_groups 1", "bctl_parity_late_objects 0", "bctl_parity_held_packs 0"}
	wantMetrics(t, m, append(state, "bctl_parity_wanted 0", "bctl_parity_ended_groups_total 0")...)

	m = telemetry.NewMetrics("pruner", "test")
	pruner := f.pruner(sweep.Options{Metrics: m.Pruner(), Parity: parity.Layout{Members: 20, Parity: 2}})
	f.look(pruner, 2) // a pass, because the setting is new
	f.look(pruner, 0)
	wantMetrics(t, m, append(state, "bctl_parity_wanted 1")...)

	m = telemetry.NewMetrics("pruner", "test")
	f.look(f.pruner(sweep.Options{Metrics: m.Pruner(), NoParity: true}), 1)
	wantMetrics(t, m, "bctl_parity_wanted 0", "bctl_parity_ended_groups_total 1", "bctl_parity_groups 0", "bctl_parity_bytes 0", "bctl_parity_damaged_groups 0")
	if found, err := prune.FindInGroups(t.Context(), prune.Options{Index: f, Store: f.store, Log: slog.New(slog.DiscardHandler)}, true); err != nil || len(found) > 0 {
		t.Errorf("%q, %v", found, err)
	}
}

package embedded_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// A step is something that happens to a repository.
type step struct {
	name string
	do   func(m *machine, random *rand.Rand)
}

func steps() []step {
	newest := func(m *machine, random *rand.Rand) (backup.Snapshot, bool) {
		found, err := m.index.Snapshots(m.Context(), index.SnapshotFilter{States: []backup.State{backup.Committed}})
		m.must(err)
		if len(found) == 0 {
			return backup.Snapshot{}, false
		}
		return found[random.IntN(len(found))], true
	}
	run := func(m *machine) {
		_, err := m.backup(m.Context())
		m.must(err)
	}
	return []step{
		{"backup of an unchanged tree", func(m *machine, _ *rand.Rand) { run(m) }},
		{"backup of new files", func(m *machine, random *rand.Rand) {
			m.grow(random.IntN(8))
			run(m)
		}},
		{"backup of changed files", func(m *machine, random *rand.Rand) {
			for range 3 {
				path := filepath.Join(m.tree, fmt.Sprint("d", random.IntN(5)), "changed")
				m.must(os.MkdirAll(filepath.Dir(path), 0o700))
				m.must(os.WriteFile(path, []byte(fmt.Sprint(random.Int())), 0o600))
			}
			run(m)
		}},
		{"backup after a removal", func(m *machine, random *rand.Rand) {
			m.must(os.RemoveAll(filepath.Join(m.tree, fmt.Sprint("d", random.IntN(5)))))
			_, err := embedded.Backup(m.Context(), m.Options, m.shard, backup.Snapshot{AllowShrink: true, Tags: []string{"removal"}}, nil)
			m.must(err)
		}},
		{"backup of a file with lists", func(m *machine, random *rand.Rand) {
			large := make([]byte, 9<<20)
			_, _ = rand.NewChaCha8([32]byte{byte(random.IntN(3))}).Read(large)
			m.must(os.WriteFile(filepath.Join(m.tree, "lists"), large, 0o600))
			run(m)
		}},
		{"backup with problems", func(m *machine, random *rand.Rand) {
			failed := m.Options
			faults := faultsource.New(m.Source)
			faults.Inject(faultsource.Fault{Call: faultsource.OpenDirectory, Path: fmt.Sprint("d", random.IntN(5)), Err: syscall.EACCES})
			failed.Source = faults
			_, err := embedded.Backup(m.Context(), failed, m.shard, backup.Snapshot{AllowShrink: true}, nil)
			m.must(err)
		}},
		{"forget", func(m *machine, random *rand.Rand) {
			if s, ok := newest(m, random); ok {
				_ = m.index.Forget(m.Context(), s.ID, "tester", "no longer wanted") // unless it is kept
			}
		}},
		{"mark as bad", func(m *machine, random *rand.Rand) {
			if s, ok := newest(m, random); ok {
				m.must(m.index.SetBad(m.Context(), s.ID, "tester", "half of it is missing"))
			}
		}},
		{"hold", func(m *machine, random *rand.Rand) {
			if s, ok := newest(m, random); ok {
				_, err := m.index.AddHold(m.Context(), index.Hold{Snapshot: s.ID, By: "tester", Reason: "case 7"})
				m.must(err)
			}
		}},
		{"hold on a path", func(m *machine, random *rand.Rand) {
			_, err := m.index.AddHold(m.Context(), index.Hold{Shard: m.shard.ID, Path: fmt.Sprint("d", random.IntN(5)), By: "tester", Reason: "case 8"})
			if err != nil && !errors.Is(err, backup.ErrNotFound) {
				m.must(err)
			}
		}},
		{"purge", func(m *machine, random *rand.Rand) {
			_, err := m.index.BeginPurge(m.Context(), index.Purge{ID: backup.NewPackID(), Shard: m.shard.ID, Path: fmt.Sprint("d", random.IntN(5), "/changed"), By: "tester"}, false)
			if errors.Is(err, backup.ErrNotFound) || errors.Is(err, index.ErrKept) {
				return
			}
			m.must(err)
			w := &purgeWorld{machine: m}
			_, err = w.purge(m.Store)
			m.must(err)
		}},
		{"purge of the unneeded", func(m *machine, _ *rand.Rand) {
			w := &purgeWorld{machine: m}
			proof, err := w.purgeUnneeded(m.Store)
			m.must(err)
			if !proof.Complete {
				m.Errorf("%+v", proof)
			}
		}},
		{"settings", func(m *machine, random *rand.Rand) {
			_, err := m.index.SetPolicy(m.Context(), backup.Policy{
				Name: fmt.Sprint("policy ", random.IntN(2)), Schedule: "@daily", Jitter: time.Minute, Retention: backup.Retention{Last: 3, Within: backup.Period{Days: 2, Hours: 3}},
			}, "tester")
			m.must(err)
			m.must(m.index.SetFiler(m.Context(), backup.Filer{
				ID: m.shard.Filer, Name: "here", Limits: backup.Limits{WalkTasks: 3, ReadBytesPerSecond: 1<<40 + random.Int64N(9)}, Labels: map[string]string{"a": "b"},
			}))
			m.must(m.index.SetBrake(m.Context(), index.Brake{Snapshots: 40, MinSnapshots: 5, Bytes: 60, MinBytes: 1 << 40, Operators: 1}, "tester"))
			m.must(m.index.SetScrub(m.Context(), index.ScrubSettings{
				Within: time.Duration(1+random.IntN(99)) * time.Hour, PerDay: index.ScrubCost{Requests: random.Int64N(9), Bytes: 1 << 40},
				Prices: index.ScrubPrices{Requests: 400_000, Bytes: 9_000_000}, Spend: index.Money(1_000_000 + random.Int64N(9)),
			}, "tester"))
		}},
		{"prune", func(m *machine, random *rand.Rand) {
			o := prune.Options{Store: m.Store, Log: slog.New(slog.DiscardHandler), Holder: backup.NewPackID().String(), MaxUnused: []float64{0, 0.1, 1}[random.IntN(3)]}
			_, err := embedded.Prune(m.Context(), m.index, m.Keys, m.LockDir, o)
			m.must(err)
		}},
	}
}

package sweep_test

import (
	"context"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/process/clock"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/internal/telemetry"
	"github.com/bctl/bctl/services/pruner/sweep"
)

// A fixture is an index with one shard, which counts what pruners ask of it.
type fixture struct {
	*testing.T
	*sqliteindex.Index
	store *dirstore.Store
	shard backup.Shard
	marks int // how often a pruner has read what is referred to
	looks int // how often one has asked whether there is work
}

func newFixture(t *testing.T) *fixture {
	ctx := t.Context()
	x, err := sqliteindex.Open(ctx, filepath.Join(t.TempDir(), "index.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	f := &fixture{T: t, Index: x}
	if _, _, err := x.Migrate(ctx); err != nil {
		t.Fatal(err)
	}
	if f.store, err = dirstore.Create(filepath.Join(t.TempDir(), "store")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.store.Close() })
	filer, err := x.EnsureFiler(ctx, "filer")
	f.must(err)
	f.shard, err = x.EnsureShard(ctx, filer.ID, "/srv", "posix:///srv")
	f.must(err)
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// PruneWork is the cheap question.
func (f *fixture) PruneWork(ctx context.Context) (index.PruneWork, error) {
	f.looks++
	return f.Index.PruneWork(ctx)
}

// Packs is the first thing that each pass reads.
func (f *fixture) Packs(ctx context.Context) iter.Seq2[index.Pack, error] {
	f.marks++
	return f.Index.Packs(ctx)
}

func (f *fixture) pruner(o sweep.Options) *sweep.Sweeper {
	o.Worker = "p"
	return sweep.New(f, f.store, o)
}

// look lets a pruner look, which makes so many passes.
func (f *fixture) look(s *sweep.Sweeper, passes int) {
	f.Helper()
	before := f.marks
	f.must(s.Look(f.Context()))
	if n := f.marks - before; n != passes {
		f.Fatalf("%d passes, want %d", n, passes)
	}
}

// failed makes a snapshot with a pack of so many bytes, which fails.
func (f *fixture) failed(bytes int64) {
	f.Helper()
	ctx := f.Context()
	snap, err := f.BeginSnapshot(ctx, f.shard.ID, backup.Snapshot{ID: backup.NewSnapshotID()}, time.Time{})
	f.must(err)
	_, err = f.Apply(ctx, []index.Result{{Pack: &backup.PackStored{
		Snapshot: snap.ID, Pack: backup.NewPackID(), StoredBytes: bytes, FrameBytes: []uint32{uint32(bytes)}, Chunks: []backup.ChunkPlace{{ID: backup.ChunkID{byte(f.marks)}, Length: 1}},
	}}})
	f.must(err)
	f.must(f.Index.Fail(ctx, snap.ID, "the test says so", time.Time{}))
}

// A pruner makes a pass first. When there is nothing to prune, it sweeps a section of the store,
// and then none until it is time to.
func TestSectionsBetweenPasses(t *testing.T) {
	f := newFixture(t)
	pruner := f.pruner(sweep.Options{})
	for look, want := range []int{0, 1, 1} {
		f.must(pruner.Look(t.Context()))
		if section, err := f.NextSection(t.Context()); err != nil || section != want {
			t.Errorf("after look %d, section %d is next, %v; want %d", look, section, err, want)
		}
	}
}

// While nothing can have become free, a pruner asks the index one question per look. So does a
// pruner that is started again, and so does another one. Space that becomes free is deleted at
// once.
func TestIdlePrunersMakeNoPass(t *testing.T) {
	f := newFixture(t)
	// After an incomplete pass, a pass would follow at each look.
	first, other := f.pruner(sweep.Options{Interval: time.Nanosecond}), f.pruner(sweep.Options{Interval: time.Nanosecond})
	f.look(first, 1)
	for range 3 {
		f.look(first, 0)
		f.look(other, 0)
		f.look(f.pruner(sweep.Options{}), 0)
	}
	if f.looks != 11 { // the pass asks, too
		t.Errorf("%d looks, want 11", f.looks)
	}
	f.look(f.pruner(sweep.Options{MaxUnused: 20}), 1) // it would leave more
	f.look(first, 1)

	f.failed(100)
	f.look(other, 1)
	if work, err := f.PruneWork(t.Context()); err != nil || work.Condemned+work.Rows != 0 || work.Kept != 0 {
		t.Fatalf("%+v, %v", work, err)
	}
	f.look(other, 0)
	f.look(first, 0)

	// By retiring, too, something may become free.
	f.must(f.RetireShard(t.Context(), f.shard.ID, "me"))
	f.look(first, 1)
	f.look(other, 0)
}

// While its clock differs from that of the index, a pruner makes no pass and sweeps nothing. It
// goes on when the clock is right.
func TestNoPassWhileTheClockIsOff(t *testing.T) {
	f := newFixture(t)
	ahead := 358 * 24 * time.Hour
	watch := clock.New(f.Index, func() time.Time { return time.Now().Add(ahead) }, slog.New(slog.DiscardHandler), nil)
	m := telemetry.NewMetrics("pruner", "test")
	pruner := f.pruner(sweep.Options{Clock: watch, Metrics: m.Pruner(), Interval: time.Nanosecond})
	for range 2 {
		f.look(pruner, 0)
	}
	if section, err := f.NextSection(t.Context()); err != nil || section != 0 || f.looks != 0 {
		t.Errorf("section %d is next, %v, after %d looks: the pruner has worked", section, err, f.looks)
	}
	if text := gathered(t, m); !strings.Contains(text, "bctl_prune_pass_timestamp_seconds 0\n") {
		t.Errorf("the metrics say that a pass was complete:\n%s", text)
	}
	ahead = clock.MaxDifference / 2
	f.look(pruner, 1)
	ahead = -time.Hour
	f.failed(100)
	f.look(pruner, 0)
	ahead = 0
	f.look(pruner, 1)
}

// The data that waits for operators, and the data that is kept and unused, is measured also while
// the brake has stopped the passes.
func TestMetricsOfStoppedPasses(t *testing.T) {
	f := newFixture(t)
	f.must(f.SetBrake(t.Context(), index.Brake{Snapshots: 100, MinSnapshots: 1, Bytes: 1, MinBytes: 1, Operators: 1}, "me"))
	f.failed(1000)
	m := telemetry.NewMetrics("pruner", "test")
	pruner := f.pruner(sweep.Options{Metrics: m.Pruner(), Interval: time.Hour})
	f.look(pruner, 1)
	f.look(pruner, 0)
	wantMetrics(t, m, "bctl_prune_kept_bytes 1000", "bctl_prune_unused_bytes 1000", "bctl_prune_deletable_bytes 1000", "bctl_prune_stopped_forgetting_bytes 0", "bctl_prune_condemned_age_seconds 0")
	stops, err := f.Stops(t.Context())
	f.must(err)
	_, err = f.Confirm(t.Context(), stops[0].ID, "me", "")
	f.must(err)
	f.look(pruner, 1)
	wantMetrics(t, m, "bctl_prune_kept_bytes 0", "bctl_prune_unused_bytes 0", "bctl_prune_deletable_bytes 0", "bctl_prune_rows_age_seconds 0", "bctl_prune_max_unused_ratio 0.1")
}

// wantMetrics checks samples of metrics.
func wantMetrics(t *testing.T, m *telemetry.Metrics, samples ...string) {
	t.Helper()
	text := gathered(t, m)
	for _, sample := range samples {
		if !strings.Contains(text, "\n"+sample+"\n") {
			t.Errorf("no %s in\n%s", sample, text)
		}
	}
}

// gathered returns the metrics as Prometheus reads them.
func gathered(t *testing.T, m *telemetry.Metrics) string {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	return answer.Body.String()
}

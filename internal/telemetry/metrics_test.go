package telemetry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func wants(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("%s is missing", line)
		}
	}
}

// Measuring allocates no memory, whether it is off or on.
func TestMeasuringAllocatesNothing(t *testing.T) {
	part := &backup.SliceWalked{Counts: backup.Counts{Files: 3, StatCalls: 3}, Problems: []backup.Problem{{Op: "stat"}}}
	stored := &backup.BatchStored{Counts: backup.Counts{ReadBytes: 1}}
	report := &backup.Progress{Filer: 1, Stats: 1}
	for _, metrics := range []func() *Metrics{func() *Metrics { return nil }, func() *Metrics { return NewMetrics("test", "v1") }} {
		w, r, c := metrics().Walker(), metrics().Reader(), metrics().Committer()
		c.Heard(report) // the first report of a filer makes its totals
		if n := testing.AllocsPerRun(100, func() {
			w.Part(part, time.Second)
			w.Slice(time.Second)
			w.InHand(2, 1)
			r.Batch(stored, time.Second)
			r.Pack(1, time.Second)
			r.InHand(2, 1)
			c.Applied(time.Second)
			c.Result("slice", "accepted")
			c.Heard(report)
		}); n > 0 {
			t.Errorf("%v allocations, with metrics: %v", n, metrics() != nil)
		}
	}
}

// Reports of workers are not trusted: decreasing a counter would end the process.
func TestAbsurdCounts(t *testing.T) {
	m := NewMetrics("reader", "v1")
	r := m.Reader()
	r.Batch(&backup.BatchStored{Counts: backup.Counts{ReadBytes: -1, NewBytes: -5, HashSeconds: math.NaN(), SealSeconds: -1}, Problems: []backup.Problem{{Op: "own"}}}, time.Second)
	wants(t, scrape(t, m), "bctl_read_bytes_total 0", `bctl_stage_seconds_total{stage="hash"} 0`, `bctl_problems_total{op="other"} 1`)
}

func TestRetriesByKind(t *testing.T) {
	m := NewMetrics("walker", "v1")
	w := m.Walker()
	for _, err := range []error{
		fmt.Errorf("nats: %w", backup.ErrUnavailable), fmt.Errorf("x: %w", context.DeadlineExceeded), errors.New("own"),
	} {
		w.Retry(err)
	}
	wants(t, scrape(t, m), `bctl_retries_total{kind="unavailable",work="task"} 1`, `bctl_retries_total{kind="timeout",work="task"} 1`,
		`bctl_retries_total{kind="other",work="task"} 1`, `bctl_retries_total{kind="corrupt",work="task"} 0`)
}

// Only the leader exports the fleet. It queries at most every five seconds, and a failure is
// visible.
func TestOnlyTheKeeperTellsOfTheFleet(t *testing.T) {
	m := NewMetrics("committer", "v1")
	c := m.Committer()
	if text := scrape(t, m); strings.Contains(text, "bctl_fleet_") {
		t.Error("tells of the fleet before it leads")
	}
	asked, fail := 0, error(nil)
	ask := func() (*Fleet, error) {
		asked++
		return &Fleet{
			Filers: []index.FilerStatus{{Filer: backup.Filer{ID: 1, Name: "nas1", Site: "berlin"}, Tasks: 3, Batches: 1, Load: backup.Load{WalkSlots: 7}}},
			Shards: []index.ShardStatus{{Shard: backup.Shard{Name: "home"}, Filer: backup.Filer{Name: "nas1"}, Time: time.Unix(1000, 0), Plan: index.Plan{Deadline: time.Unix(2000, 0)},
				Drills: index.ShardDrills{Every: time.Hour, Passed: time.Unix(500, 0), Newest: time.Unix(600, 0)}}, {Shard: backup.Shard{Name: "new"}, Filer: backup.Filer{Name: "nas1"}}},
			Running: []backup.Snapshot{{
				Filer: backup.Filer{Site: "berlin"}, TasksAnnounced: 10, TasksSettled: 2, BatchesAnnounced: 1, BatchesSettled: 1,
			}},
			Stops: []index.Stop{
				{Operators: 1}, {Operators: 2, Confirmed: []string{"alice"}}, {Operators: 1, Confirmed: []string{"alice"}},
				{Operators: 1, Rejected: "bob", Deletion: index.Deletion{Shard: 7}},
			},
			Held: map[backup.FilerID]Held{1: {Tasks: 2, StalledTasks: 1, Batches: 6, StalledBatches: 5}},
		}, fail
	}
	c.Leads(ask)
	c.Heard(&backup.Progress{Filer: 1, FilesFound: 4, Stats: 5, StatSeconds: 0.5})
	c.Heard(&backup.Progress{Filer: 9, Stats: 5})
	text := scrape(t, m)
	wants(t, text,
		`bctl_fleet_up 1`, `bctl_keeper 1`,
		`bctl_fleet_work{site="berlin",state="open",work="task"} 5`, `bctl_fleet_work{site="berlin",state="leased",work="task"} 2`,
		`bctl_fleet_work{site="berlin",state="stalled",work="task"} 1`,
		`bctl_fleet_held{site="berlin",work="task"} 2`, `bctl_fleet_held{site="berlin",work="batch"} 6`,
		`bctl_fleet_work{site="berlin",state="open",work="batch"} 0`, `bctl_fleet_work{site="berlin",state="stalled",work="batch"} 1`,
		`bctl_filer_slots{filer="nas1",work="task"} 7`, `bctl_filer_slots{filer="nas1",work="batch"} 64`,
		`bctl_filer_stat_seconds_total{filer="nas1"} 0.5`, `bctl_shard_last_good_timestamp_seconds{filer="nas1",shard="home"} 1000`,
		`bctl_shard_drilled_timestamp_seconds{filer="nas1",shard="home"} 500`, `bctl_shard_drill_failed{filer="nas1",shard="home"} 1`,
		`bctl_shard_drill_interval_seconds{filer="nas1",shard="home"} 3600`,
		`bctl_deletions_stopped{of="repository"} 2`, `bctl_deletions_stopped{of="shard"} 0`,
	)
	if strings.Contains(text, `bctl_shard_drill_failed{filer="nas1",shard="new"}`) {
		t.Error("a shard without a snapshot has drills")
	}
	if scrape(t, m); asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	fail = backup.ErrUnavailable
	// In an outage the last state of shards stays, with its age, so that alerts about them do not
	// end: while this committer leads, and while none can lead.
	for _, ask := range []func() (*Fleet, error){ask, nil} {
		c.Leads(ask)
		if text = scrape(t, m); strings.Contains(text, "bctl_filer_") || strings.Contains(text, "bctl_fleet_work") {
			t.Errorf("tells what it does not know:\n%s", text)
		}
		wants(t, text, `bctl_fleet_up 0`, `bctl_shard_last_good_timestamp_seconds{filer="nas1",shard="home"} 1000`,
			`bctl_shard_deadline_timestamp_seconds{filer="nas1",shard="home"} 2000`)
		if !strings.Contains(text, "\nbctl_fleet_known_timestamp_seconds 1") {
			t.Error("how old it is does not show")
		}
	}
	c.Follows()
	if text = scrape(t, m); strings.Contains(text, "bctl_fleet_") || !strings.Contains(text, "\nbctl_keeper 0\n") {
		t.Error("tells of the fleet although another leads")
	}
}

func TestWrongTraceSettings(t *testing.T) {
	for _, url := range []string{"collector:4318", "ftp://collector", "http://user:hush@collector", "http://%zz"} {
		_, err := NewTracer(t.Context(), TraceOptions{URL: url})
		if !errors.Is(err, backup.ErrInvalid) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if tracer, err := NewTracer(t.Context(), TraceOptions{}); tracer != nil || err != nil {
		t.Errorf("%v, %v", tracer, err)
	}
	var none *Tracer
	ctx, span := none.Start(t.Context(), "x", backup.SnapshotID{})
	span.End(nil)
	if ctx != t.Context() || none.Close() != nil {
		t.Error("a nil tracer does something")
	}
}

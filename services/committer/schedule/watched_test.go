package schedule

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/policy"
	"github.com/bctl/bctl/internal/process/health"
	"github.com/bctl/bctl/internal/telemetry"
)

// measured fails the test unless the metrics have these lines.
func (f *fixture) measured(what string, lines ...string) {
	f.Helper()
	w := httptest.NewRecorder()
	f.metrics.Handler().ServeHTTP(w, httptest.NewRequestWithContext(f.ctx, "GET", "/metrics", nil))
	for _, line := range lines {
		if !strings.Contains(w.Body.String(), "\n"+line+"\n") {
			f.Errorf("%s: no line %q in\n%s", what, line, w.Body)
		}
	}
}

func TestMetrics(t *testing.T) {
	f := newFixture(t)
	f.metrics = telemetry.NewMetrics("committer", "test")
	f.filer("nas", nil, "a", "b")
	f.policy(backup.Policy{Name: "daily", Schedule: "@daily"})
	x := &faultIndex{Index: f.idx}
	s := f.scheduler(x, policy.Limits{Running: 1})
	f.measured("before the first tick", "bctl_scheduler 0", "bctl_schedule_pass_timestamp_seconds 0")

	f.tick(s, "a")
	passed := fmt.Sprintf("bctl_schedule_pass_timestamp_seconds %v", float64(f.now.Unix()))
	f.measured("one begun, one waits", "bctl_scheduler 1", passed, "bctl_schedule_begun_total 1", "bctl_schedule_waiting 1",
		`bctl_schedule_policies{state="followed"} 1`, `bctl_schedule_policies{state="refused"} 0`, "bctl_schedule_missed_total 0")
	f.finish("a")
	f.tick(s, "b")
	f.finish("b")
	f.tick(s)
	f.measured("none is due", "bctl_schedule_waiting 0", "bctl_schedule_begun_total 2", "bctl_schedule_late_seconds_count 2", "bctl_schedule_late_seconds_sum 0")

	// Due at midnight of the 3rd, begun in the evening of the 5th: two more due times have passed.
	f.now = time.Date(2026, 3, 5, 20, 0, 0, 0, time.UTC)
	f.tick(s, "a")
	f.measured("late", "bctl_schedule_missed_total 2", "bctl_schedule_late_seconds_sum 244800", `bctl_schedule_late_seconds_bucket{le="86400"} 2`,
		`bctl_schedule_late_seconds_bucket{le="259200"} 3`)
	f.finish("a")

	// A failed tick is counted, and does not count as passed.
	before := f.now
	f.now = f.now.Add(time.Minute)
	x.shard, x.err = f.shard("b").ID, backup.ErrInvalid
	f.tick(s)
	f.measured("a shard cannot be begun", `bctl_retries_total{kind="invalid",work="schedule"} 1`)
	x.err = backup.ErrUnavailable
	f.now = f.now.Add(time.Minute)
	if err := s.Tick(f.ctx); err == nil {
		t.Fatal("the tick has not failed")
	}
	f.measured("the tick failed", fmt.Sprintf("bctl_schedule_pass_timestamp_seconds %v", float64(before.Add(time.Minute).Unix())))

	// A scheduler that does not lead exports nothing.
	x.err = nil
	f.must(f.idx.Resign(f.ctx, s.led.Load().Term))
	_, _, err := f.idx.Lead(f.ctx, Role, "another", time.Hour)
	f.must(err)
	f.tick(s)
	f.measured("another leads", "bctl_scheduler 0", "bctl_schedule_waiting 0", `bctl_schedule_policies{state="followed"} 0`)
}

// A schedule that this binary does not understand is logged, and does not keep others from being
// followed.
func TestPolicyThatIsNotUnderstood(t *testing.T) {
	f := newFixture(t)
	f.metrics = telemetry.NewMetrics("committer", "test")
	f.filer("nas", nil, "a")
	f.policy(backup.Policy{Name: "daily", Schedule: "@daily"})
	s := f.scheduler(newerPolicy{f.idx}, policy.Limits{})
	f.tick(s, "a")
	f.measured("one is refused", `bctl_schedule_policies{state="followed"} 1`, `bctl_schedule_policies{state="refused"} 1`)
}

// A newerPolicy is an index with a policy of a newer binary.
type newerPolicy struct{ index.Index }

func (x newerPolicy) ListPolicies(ctx context.Context) ([]backup.Policy, error) {
	list, err := x.Index.ListPolicies(ctx)
	return append(list, backup.Policy{ID: 99, Revision: 1, Name: "newer", Labels: map[string]string{"no": "filer"}, Schedule: "at dawn"}), err
}

// Missed due times are counted, up to a bound.
func TestMissedIsBounded(t *testing.T) {
	times, err := policy.Parse(backup.Policy{Schedule: "@every 1m"})
	if err != nil {
		t.Fatal(err)
	}
	due := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	for after, want := range map[time.Duration]int{0: 0, 59 * time.Second: 0, time.Minute: 1, time.Hour: 60, 365 * 24 * time.Hour: maxMissed} {
		if n := (timetable{Schedule: times}).missed(1, due, due.Add(after)); n != want {
			t.Errorf("%d have passed in %v, want %d", n, after, want)
		}
	}
}

// A hangingIndex does not answer until it is released.
type hangingIndex struct {
	Index
	hang chan struct{}
}

func (x hangingIndex) Lead(context.Context, string, string, time.Duration) (index.Term, bool, error) {
	<-x.hang
	return index.Term{}, false, nil
}

// A stuckIndex gives the term to every caller, and does not answer the queries of a tick.
type stuckIndex struct{ Index }

func (stuckIndex) Lead(context.Context, string, string, time.Duration) (index.Term, bool, error) {
	return index.Term{Role: Role, Epoch: 1}, true, nil
}

func (stuckIndex) Resign(context.Context, index.Term) error { return nil }

func (stuckIndex) ListPolicies(ctx context.Context) ([]backup.Policy, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A scheduler whose tick hangs renews its term for a while, and then no longer leads.
func TestStuckTickLosesItsTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		s, ended := New(stuckIndex{}, Options{}), make(chan struct{})
		go func() { defer close(ended); s.Run(ctx) }()
		time.Sleep(tickWithin) //nolint:forbidigo // the bubble's clock
		if !s.Leads() {
			t.Error("it does not lead while its tick takes long")
		}
		time.Sleep(DefaultTerm + DefaultRenew) //nolint:forbidigo // the bubble's clock
		if s.Leads() {
			t.Error("it leads although its tick hangs")
		}
		stop()
		<-ended
	})
}

// /healthz reports a scheduler that hangs; one that only ticks is healthy.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, x := health.New(), hangingIndex{hang: make(chan struct{})}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); New(x, Options{Health: h}).Run(ctx) }()
		time.Sleep(moveWithin + time.Second) //nolint:forbidigo // the bubble's clock
		if err := h.Alive(); err == nil || !strings.Contains(err.Error(), "loop schedule has not moved") {
			t.Errorf("the scheduler hangs: %v", err)
		}
		close(x.hang)
		synctest.Wait()
		time.Sleep(time.Hour) //nolint:forbidigo // the bubble's clock
		if err := h.Alive(); err != nil {
			t.Errorf("the scheduler ticks: %v", err)
		}
		stop()
		<-ended
		time.Sleep(time.Hour) //nolint:forbidigo // the bubble's clock
		if err := h.Alive(); err != nil {
			t.Errorf("the scheduler has ended: %v", err)
		}
	})
}

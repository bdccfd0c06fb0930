package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Scheduler measures the scheduler of a committer. All methods of a nil Scheduler do nothing.
type Scheduler struct {
	leads, passed, waiting, followed, refused prometheus.Gauge

	begun, missed prometheus.Counter
	late          prometheus.Histogram
	retries       *Retries
}

// lateBuckets range from one tick of the scheduler to three days, in seconds.
var lateBuckets = []float64{10, 60, 300, 1800, 7200, 28_800, 86_400, 259_200}

// Scheduler returns the metrics of a scheduler; a process has one.
func (m *Metrics) Scheduler() *Scheduler {
	if m == nil {
		return nil
	}
	s := &Scheduler{
		leads:   m.gauge("bctl_scheduler", "1 if this committer begins the snapshots that policies request, else 0.").WithLabelValues(),
		passed:  m.gauge("bctl_schedule_pass_timestamp_seconds", "When this committer last completed a pass over the policies, in seconds since 1970; 0: never.").WithLabelValues(),
		waiting: m.gauge("bctl_schedule_waiting", "Due shards that wait because the maximum number of snapshots is running.").WithLabelValues(),
		begun:   m.total("bctl_schedule_begun_total", "Snapshots that were begun for policies."),
		missed:  m.total("bctl_schedule_missed_total", "Scheduled times that passed while the shard still waited for an earlier one. One snapshot is begun for all of them."),
		late:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bctl_schedule_late_seconds", Help: "Time from when a shard was due until its snapshot was begun.", Buckets: lateBuckets}),
		retries: m.Retries("schedule"),
	}
	m.registry.MustRegister(s.late)
	policies := m.gauge("bctl_schedule_policies", "Policies, by whether the scheduler follows them or refuses them because it does not understand them.", "state")
	s.followed, s.refused = policies.WithLabelValues("followed"), policies.WithLabelValues("refused")
	return s
}

// Leads records whether this scheduler leads. One that does not lead exports nothing about policies
// and shards.
func (s *Scheduler) Leads(leads bool) {
	if s == nil {
		return
	}
	if leads {
		s.leads.Set(1)
		return
	}
	for _, gauge := range []prometheus.Gauge{s.leads, s.waiting, s.followed, s.refused} {
		gauge.Set(0)
	}
}

// Policies records how many policies are followed, and how many cannot be.
func (s *Scheduler) Policies(followed, refused int) {
	if s != nil {
		s.followed.Set(float64(followed))
		s.refused.Set(float64(refused))
	}
}

// Begun counts a snapshot that was begun this long after it was due, and the further due times that
// have passed since.
func (s *Scheduler) Begun(late time.Duration, missed int) {
	if s != nil {
		s.begun.Inc()
		observe(s.late, late)
		s.missed.Add(float64(missed))
	}
}

// Waiting records how many due shards may not be begun yet.
func (s *Scheduler) Waiting(shards int) {
	if s != nil {
		s.waiting.Set(float64(shards))
	}
}

// Passed records that a tick at now completed all its work.
func (s *Scheduler) Passed(now time.Time) {
	if s != nil {
		s.passed.Set(float64(now.UnixMilli()) / 1000)
	}
}

// Retry counts a retry at the next tick because of err.
func (s *Scheduler) Retry(err error) {
	if s != nil {
		s.retries.Add(err)
	}
}

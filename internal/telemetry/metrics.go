package telemetry

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/bctl/bctl/internal/backup"
)

// Metrics are those of one process. A nil *Metrics measures nothing, and neither do the narrow
// types that it returns to the services, so callers need no checks.
//
// Values are added once per slice, batch, pack or result, to counters that were looked up before.
// No label has more values than there are filers, shards or sites. docs/observability.md lists all
// metrics.
type Metrics struct {
	registry *prometheus.Registry
	retries  *prometheus.CounterVec
}

// NewMetrics returns the metrics of a service ("walker"), including those of the Go runtime and of
// the process.
func NewMetrics(service, version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	info := m.gauge("bctl_build_info", "Service and version of this process; always 1.", "service", "version", "go_version")
	info.WithLabelValues(service, version, runtime.Version()).Set(1)
	m.retries = m.counter("bctl_retries_total", "Retries, by work and kind of error.", "work", "kind")
	return m
}

// Dropped returns a function that counts messages that cannot be decoded; a process has one.
func (m *Metrics) Dropped() func() {
	if m == nil {
		return func() {}
	}
	return m.total("bctl_messages_dropped_total", "Messages that were dropped because they could not be decoded.").Inc
}

// Handler serves the metrics; that of nil serves none.
func (m *Metrics) Handler() http.Handler {
	if m == nil {
		return http.NotFoundHandler()
	}
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// The kinds of errors by which retries are counted.
var kinds = []string{"unavailable", "timeout", "corrupt", "invalid", "other"}

// kindOf returns the kind of an error.
func kindOf(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, backup.ErrUnavailable):
		return "unavailable"
	case errors.Is(err, backup.ErrCorrupt):
		return "corrupt"
	case errors.Is(err, backup.ErrInvalid):
		return "invalid"
	}
	return "other"
}

// Retries counts the retries of one kind of work.
type Retries struct{ byKind map[string]prometheus.Counter }

// Retries returns the counters of a kind of work: "task", "batch", "result" …
func (m *Metrics) Retries(work string) *Retries {
	if m == nil {
		return nil
	}
	r := &Retries{byKind: map[string]prometheus.Counter{}}
	for _, kind := range kinds {
		r.byKind[kind] = m.retries.WithLabelValues(work, kind)
	}
	return r
}

// Add counts a retry caused by err.
func (r *Retries) Add(err error) {
	if r != nil {
		r.byKind[kindOf(err)].Inc()
	}
}

// problemOps are the operations by which problems are counted; any other counts as "other".
var problemOps = []string{"open", "read", "stat", "list", "xattr", "other"}

// problems counts files and directories that could not be backed up, by the operation that failed.
type problems map[string]prometheus.Counter

func (m *Metrics) problems() problems {
	counter := m.counter("bctl_problems_total", "Files and directories that could not be backed up, by what failed.", "op")
	p := problems{}
	for _, op := range problemOps {
		p[op] = counter.WithLabelValues(op)
	}
	return p
}

func (p problems) add(list []backup.Problem) {
	for i := range list {
		counter, ok := p[list[i].Op]
		if !ok {
			counter = p["other"]
		}
		counter.Inc()
	}
}

// vanished counts files that were gone before they could be backed up.
func (m *Metrics) vanished() prometheus.Counter {
	return m.total("bctl_vanished_total", "Files and directories that a walk found but that were gone before they were read.")
}

// stages counts the seconds of work in each of the service's stages.
type stages struct {
	names    []string
	counters []prometheus.Counter
}

func (m *Metrics) stages(names ...string) stages {
	counter := m.counter("bctl_stage_seconds_total", "Seconds of work by stage, summed over concurrent work.", "stage")
	s := stages{names: names}
	for _, name := range names {
		s.counters = append(s.counters, counter.WithLabelValues(name))
	}
	return s
}

// add adds seconds in the order of the names.
func (s stages) add(seconds ...float64) {
	for i, v := range seconds {
		addTo(s.counters[i], v)
	}
}

// addTo adds positive values only: the library panics if a counter decreases.
func addTo(counter prometheus.Counter, v float64) {
	if v > 0 {
		counter.Add(v)
	}
}

// inHand are the gauges of one worker process's work in progress.
type inHand struct{ working, stalled prometheus.Gauge }

func (m *Metrics) inHand(work string) inHand {
	gauge := m.gauge("bctl_worker_in_hand", "Tasks or batches that this process works on, by whether their filer answers.", "work", "state")
	return inHand{gauge.WithLabelValues(work, "working"), gauge.WithLabelValues(work, "stalled")}
}

// secondsBuckets range from a millisecond to four minutes.
var secondsBuckets = prometheus.ExponentialBuckets(0.001, 4, 10)

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(v)
	return v
}

func (m *Metrics) total(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) seconds(name, help string) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: secondsBuckets})
	m.registry.MustRegister(h)
	return h
}

func observe(h prometheus.Histogram, d time.Duration) { h.Observe(d.Seconds()) }

package telemetry

import "github.com/prometheus/client_golang/prometheus"

// A Draining measures whether a worker is drained. All methods of a nil Draining do nothing.
type Draining struct{ wanted prometheus.Gauge }

// Draining returns the metrics of a drain; a process has one.
func (m *Metrics) Draining() *Draining {
	if m == nil {
		return nil
	}
	return &Draining{m.gauge("bctl_worker_draining", "1 while this worker takes no new work because an operator has drained it, else 0.").WithLabelValues()}
}

// Set records whether an operator wants the worker to take no new work.
func (d *Draining) Set(wanted bool) {
	switch {
	case d == nil:
	case wanted:
		d.wanted.Set(1)
	default:
		d.wanted.Set(0)
	}
}

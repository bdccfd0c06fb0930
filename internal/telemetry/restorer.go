package telemetry

import "github.com/prometheus/client_golang/prometheus"

// A Restorer measures a restorer. All methods of a nil Restorer do nothing.
type Restorer struct {
	tasks   prometheus.Counter
	retries *Retries
}

// Restorer returns the metrics of a restorer; a process has one.
func (m *Metrics) Restorer() *Restorer {
	if m == nil {
		return nil
	}
	return &Restorer{
		tasks:   m.total("bctl_restore_tasks_total", "Tasks of restores that this restorer has finished."),
		retries: m.Retries("restore"),
	}
}

// Settled counts a finished task.
func (r *Restorer) Settled() {
	if r != nil {
		r.tasks.Inc()
	}
}

// Retry counts an attempt that failed.
func (r *Restorer) Retry(err error) {
	if r != nil {
		r.retries.Add(err)
	}
}

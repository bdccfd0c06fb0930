package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Clock measures the clock of a service that may lead. All methods of a nil Clock do nothing.
type Clock struct{ ahead prometheus.Gauge }

// Clock returns the metrics of a clock; a process has one.
func (m *Metrics) Clock() *Clock {
	if m == nil {
		return nil
	}
	return &Clock{m.gauge("bctl_clock_ahead_seconds", "How far this service's clock is ahead of the index's, in seconds; below 0: it is behind.").WithLabelValues()}
}

// Ahead records by how much the clock is ahead of the index's.
func (c *Clock) Ahead(by time.Duration) {
	if c != nil {
		c.ahead.Set(by.Seconds())
	}
}

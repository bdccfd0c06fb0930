package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Mirror measures a mirror. All methods of a nil Mirror do nothing.
type Mirror struct {
	objects, bytes, deleted, problems        prometheus.Counter
	mirrored, retained, retainedBytes        prometheus.Gauge
	mirroredBytes, lastProblems, brake, last prometheus.Gauge
	passes                                   prometheus.Histogram
}

// Mirror returns the metrics of a mirror; a process has one.
func (m *Metrics) Mirror() *Mirror {
	if m == nil {
		return nil
	}
	p := &Mirror{
		objects:       m.total("bctl_mirror_copied_objects_total", "Objects copied to the mirror."),
		bytes:         m.total("bctl_mirror_copied_bytes_total", "Bytes of the objects copied to the mirror."),
		deleted:       m.total("bctl_mirror_deleted_objects_total", "Objects deleted from the mirror, which the store has no longer."),
		problems:      m.total("bctl_mirror_failed_passes_total", "Passes that ended with an error."),
		mirrored:      m.gauge("bctl_mirror_objects", "Objects of the store that the mirror has, after the last pass.").WithLabelValues(),
		mirroredBytes: m.gauge("bctl_mirror_bytes", "Bytes of the objects of the store that the mirror has, after the last pass.").WithLabelValues(),
		retained:      m.gauge("bctl_mirror_retained_objects", "Objects that the store has no longer, and that the mirror keeps.").WithLabelValues(),
		retainedBytes: m.gauge("bctl_mirror_retained_bytes", "Bytes of the objects that the store has no longer, and that the mirror keeps.").WithLabelValues(),
		lastProblems:  m.gauge("bctl_mirror_damaged_objects", "Objects that the last pass found damaged, in the store or in the mirror.").WithLabelValues(),
		brake:         m.gauge("bctl_mirror_brake_bytes", "Bytes that the last pass would have deleted from the mirror if the brake had not stopped it.").WithLabelValues(),
		last:          m.gauge("bctl_mirror_pass_timestamp_seconds", "When the last complete pass began, in seconds since 1970; 0: none has completed. The mirror has what the store had then.").WithLabelValues(),
		passes:        prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bctl_mirror_pass_seconds", Help: "Time of one pass.", Buckets: passBuckets}),
	}
	m.registry.MustRegister(p.passes)
	return p
}

// Copied counts what a pass has copied and deleted, also one that failed later.
func (p *Mirror) Copied(objects, bytes, deleted int64) {
	if p != nil {
		p.objects.Add(float64(objects))
		p.bytes.Add(float64(bytes))
		p.deleted.Add(float64(deleted))
	}
}

// Holds records what the mirror has after a pass.
func (p *Mirror) Holds(objects, bytes, retained, retainedBytes int64, damaged int) {
	if p != nil {
		p.mirrored.Set(float64(objects))
		p.mirroredBytes.Set(float64(bytes))
		p.retained.Set(float64(retained))
		p.retainedBytes.Set(float64(retainedBytes))
		p.lastProblems.Set(float64(damaged))
	}
}

// Stopped records the bytes whose deletion the brake has stopped; 0: none.
func (p *Mirror) Stopped(bytes int64) {
	if p != nil {
		p.brake.Set(float64(bytes))
	}
}

// Failed counts a pass that ended with an error.
func (p *Mirror) Failed() {
	if p != nil {
		p.problems.Inc()
	}
}

// Passed records a complete pass.
func (p *Mirror) Passed(began time.Time, took time.Duration) {
	if p != nil {
		p.last.Set(float64(began.Unix()))
		observe(p.passes, took)
	}
}

package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Pruner measures a pruner. All methods of a nil Pruner do nothing.
type Pruner struct {
	packs, bytes, versions, snapshots prometheus.Counter
	thinned, freed, copied            prometheus.Counter
	swept, orphans, orphanBytes       prometheus.Counter
	unknown, unidentified             prometheus.Counter
	extended                          prometheus.Counter
	locked, lockedBytes               prometheus.Gauge
	kept, unused, maxUnused           prometheus.Gauge
	deletable, stopped                prometheus.Gauge
	condemned, rows, passed           prometheus.Gauge
	passes                            prometheus.Histogram
	retries                           *Retries
	parity                            *Parity
}

// passBuckets range from a second to nine hours.
var passBuckets = prometheus.ExponentialBuckets(1, 2, 16)

// Pruner returns the metrics of a pruner; a process has one.
func (m *Metrics) Pruner() *Pruner {
	if m == nil {
		return nil
	}
	p := &Pruner{
		packs:        m.total("bctl_prune_packs_total", "Packs deleted."),
		bytes:        m.total("bctl_prune_deleted_bytes_total", "Stored bytes of the deleted packs."),
		versions:     m.total("bctl_prune_versions_total", "Versions of pages deleted from the index."),
		snapshots:    m.total("bctl_prune_snapshots_total", "Forgotten snapshots that were removed with their journals."),
		thinned:      m.total("bctl_prune_thinned_packs_total", "Packs that were replaced by copies of their needed parts."),
		freed:        m.total("bctl_prune_freed_bytes_total", "Stored bytes by which thinned packs became smaller."),
		copied:       m.total("bctl_prune_copied_bytes_total", "Stored bytes of the copies of thinned packs."),
		swept:        m.total("bctl_sweep_objects_total", "Objects that the sweep for orphans has seen in the store."),
		orphans:      m.total("bctl_sweep_orphans_total", "Orphans deleted: objects of lost attempts, which the index does not know."),
		orphanBytes:  m.total("bctl_sweep_orphan_bytes_total", "Stored bytes of the deleted orphans."),
		unknown:      m.total("bctl_sweep_unknown_total", "Objects that the sweep left in the store because the index does not know their snapshots. The index may be older than the store."),
		unidentified: m.total("bctl_sweep_unidentified_total", "Objects that the sweep left in the store because it could not identify them."),
		extended:     m.total("bctl_prune_extended_locks_total", "Objects whose locks were extended, because kept snapshots need them for longer."),
		locked:       m.gauge("bctl_prune_locked_objects", "Packs and journals that no snapshot needs, and that stay until their locks end.").WithLabelValues(),
		lockedBytes:  m.gauge("bctl_prune_locked_bytes", "Stored bytes of the packs that no snapshot needs, and that stay until their locks end.").WithLabelValues(),
		kept:         m.gauge("bctl_prune_kept_bytes", "Stored bytes of all packs. A pass sets it when it has found what is needed, and again when it ends.").WithLabelValues(),
		unused:       m.gauge("bctl_prune_unused_bytes", "Bytes in stored packs that no snapshot needs. Their packs are needed in part, or wait for their deletion.").WithLabelValues(),
		maxUnused:    m.gauge("bctl_prune_max_unused_ratio", "Share of the stored bytes that may stay unused (pruner.max_unused).").WithLabelValues(),
		deletable:    m.gauge("bctl_prune_deletable_bytes", "Bytes that the last pass found to delete, and has not deleted: it is running, has failed, or the brake has stopped it.").WithLabelValues(),
		stopped:      m.gauge("bctl_prune_stopped_forgetting_bytes", "Bytes that the next pass would free in addition if operators confirmed the forgetting that the brake has stopped.").WithLabelValues(),
		condemned:    m.gauge("bctl_prune_condemned_age_seconds", "How long the oldest condemned pack has waited for the deletion of its object; 0: none waits.").WithLabelValues(),
		rows:         m.gauge("bctl_prune_rows_age_seconds", "How long the oldest row of a deleted pack has waited for the snapshots that were running when the pack was deleted; 0: none waits.").WithLabelValues(),
		passed:       m.gauge("bctl_prune_pass_timestamp_seconds", "When this pruner last completed a pass, or saw that another pruner leads, in seconds since 1970; 0: never.").WithLabelValues(),
		passes:       prometheus.NewHistogram(prometheus.HistogramOpts{Name: "bctl_prune_pass_seconds", Help: "Time of one pass.", Buckets: passBuckets}),
		retries:      m.Retries("prune"),
		parity:       m.parity(),
	}
	m.registry.MustRegister(p.passes)
	return p
}

// Parity returns the metrics of parity groups.
func (p *Pruner) Parity() *Parity {
	if p == nil {
		return nil
	}
	return p.parity
}

// Deleted counts what a pass has deleted, also one that failed later.
func (p *Pruner) Deleted(packs int, bytes, versions int64, snapshots int) {
	if p != nil {
		p.packs.Add(float64(packs))
		p.bytes.Add(float64(bytes))
		p.versions.Add(float64(versions))
		p.snapshots.Add(float64(snapshots))
	}
}

// Thinned counts the packs that a pass has thinned, also one that failed later.
func (p *Pruner) Thinned(packs int, freed, copied int64) {
	if p != nil {
		p.thinned.Add(float64(packs))
		p.freed.Add(float64(freed))
		p.copied.Add(float64(copied))
	}
}

// Locked records the locks that a pass has extended, and what it left because of locks.
func (p *Pruner) Locked(extended, objects int, bytes int64) {
	if p != nil {
		p.extended.Add(float64(extended))
		p.locked.Set(float64(objects))
		p.lockedBytes.Set(float64(bytes))
	}
}

// Swept counts what the sweep for orphans has seen and deleted, also if it failed later.
func (p *Pruner) Swept(objects, orphans, bytes, unknown, unidentified int64) {
	if p != nil {
		p.swept.Add(float64(objects))
		p.orphans.Add(float64(orphans))
		p.orphanBytes.Add(float64(bytes))
		p.unknown.Add(float64(unknown))
		p.unidentified.Add(float64(unidentified))
	}
}

// Passed records the duration of a complete pass.
func (p *Pruner) Passed(took time.Duration) {
	if p != nil {
		observe(p.passes, took)
	}
}

// Space records the stored bytes, the bytes that nothing needs, and the bytes that the next pass
// deletes.
func (p *Pruner) Space(kept, unused, deletable int64) {
	if p != nil {
		p.kept.Set(float64(kept))
		p.unused.Set(float64(unused))
		p.deletable.Set(float64(deletable))
	}
}

// MayStayUnused records the share of the stored bytes that may stay unused.
func (p *Pruner) MayStayUnused(share float64) {
	if p != nil {
		p.maxUnused.Set(share)
	}
}

// Stopped records the additional bytes that would become free if stopped deletions were confirmed.
func (p *Pruner) Stopped(bytes int64) {
	if p != nil {
		p.stopped.Set(float64(bytes))
	}
}

// Well records that nothing is left to delete at now, or that another pruner does it.
func (p *Pruner) Well(now time.Time) {
	if p != nil {
		p.passed.Set(float64(now.UnixMilli()) / 1000)
	}
}

// Waiting records how long the oldest condemned pack has waited for the deletion of its object, and
// how long the oldest row of a deleted pack has waited for its deletion.
func (p *Pruner) Waiting(condemned, rows time.Duration) {
	if p != nil {
		p.condemned.Set(condemned.Seconds())
		p.rows.Set(rows.Seconds())
	}
}

// Retry counts a pass that failed with err.
func (p *Pruner) Retry(err error) {
	if p != nil {
		p.retries.Add(err)
	}
}

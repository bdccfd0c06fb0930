package telemetry

import "github.com/prometheus/client_golang/prometheus"

// A Parity measures the parity groups that a pruner makes and keeps. All methods of a nil Parity do
// nothing.
type Parity struct {
	made, madeBytes, ended         prometheus.Counter
	wanted, groups, bytes, damaged prometheus.Gauge
	protected, protectedBytes      prometheus.Gauge
	unprotected, unprotectedBytes  prometheus.Gauge
	late, held                     prometheus.Gauge
}

// A ParityState is how much of a repository has parity.
type ParityState struct {
	Groups, Damaged, Protected, Unprotected int
	Bytes, ProtectedBytes, UnprotectedBytes int64
}

func (m *Metrics) parity() *Parity {
	gauge := func(name, help string) prometheus.Gauge { return m.gauge(name, help).WithLabelValues() }
	return &Parity{
		made:             m.total("bctl_parity_made_groups_total", "Parity groups made."),
		madeBytes:        m.total("bctl_parity_made_bytes_total", "Stored bytes of the parity objects that were made."),
		ended:            m.total("bctl_parity_ended_groups_total", "Parity groups that others have replaced, or that are not wanted any more."),
		wanted:           gauge("bctl_parity_wanted", "1 if this pruner makes parity for all packs (pruner.parity), else 0."),
		groups:           gauge("bctl_parity_groups", "Parity groups."),
		bytes:            gauge("bctl_parity_bytes", "Stored bytes of the parity objects."),
		damaged:          gauge("bctl_parity_damaged_groups", "Parity groups that have an object of packs whose last proof has failed."),
		protected:        gauge("bctl_parity_protected_objects", "Objects of packs that have parity."),
		protectedBytes:   gauge("bctl_parity_protected_bytes", "Stored bytes of the objects of packs that have parity."),
		unprotected:      gauge("bctl_parity_unprotected_objects", "Objects of packs that have no parity. Not measured, and 0, while there is no parity group and none is wanted."),
		unprotectedBytes: gauge("bctl_parity_unprotected_bytes", "Stored bytes of the packs that have no parity. Not measured, and 0, while there is no parity group and none is wanted."),
		late:             gauge("bctl_parity_late_objects", "Objects of packs for which the last pass has made no parity, because they are damaged or the store has refused it."),
		held:             gauge("bctl_parity_held_packs", "Packs that no snapshot needs, and that stay because damaged objects of their parity groups can only be restored with them."),
	}
}

// Wanted records whether the setting asks for parity.
func (p *Parity) Wanted(wanted bool) {
	if p == nil {
		return
	}
	p.wanted.Set(0)
	if wanted {
		p.wanted.Set(1)
	}
}

// Made counts the groups that a pass has made and ended, also one that failed later.
func (p *Parity) Made(groups int, bytes int64, ended int) {
	if p != nil {
		p.made.Add(float64(groups))
		p.madeBytes.Add(float64(bytes))
		p.ended.Add(float64(ended))
	}
}

// Left records the objects for which a complete pass could make no parity, and the packs that it
// has left to damaged groups.
func (p *Parity) Left(late, held int) {
	if p != nil {
		p.late.Set(float64(late))
		p.held.Set(float64(held))
	}
}

// State records how much has parity now.
func (p *Parity) State(s ParityState) {
	if p != nil {
		p.groups.Set(float64(s.Groups))
		p.bytes.Set(float64(s.Bytes))
		p.damaged.Set(float64(s.Damaged))
		p.protected.Set(float64(s.Protected))
		p.protectedBytes.Set(float64(s.ProtectedBytes))
		p.unprotected.Set(float64(s.Unprotected))
		p.unprotectedBytes.Set(float64(s.UnprotectedBytes))
	}
}

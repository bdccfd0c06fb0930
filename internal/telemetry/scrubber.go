package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Scrubber measures a scrubber. All methods of a nil Scrubber do nothing.
type Scrubber struct {
	requests, bytes, failures prometheus.Counter
	oldest, within            prometheus.Gauge
	unproven, undated         prometheus.Gauge
	late, damaged, looked     prometheus.Gauge

	journal, parity       scrubParts
	putBack, putBackBytes *prometheus.GaugeVec

	retries *Retries
}

// scrubParts measure the proofs of the journal, or of parity.
type scrubParts struct {
	objects, failures     prometheus.Counter
	oldest, late, damaged prometheus.Gauge
}

// A ScrubState is what is proven of the packs.
type ScrubState struct {
	OldestSeconds                    float64 // infinite: some are undated
	Within                           time.Duration
	Unproven, Undated, Late, Damaged int64
}

// A ScrubPartsState is what is proven of the journal, or of parity.
type ScrubPartsState struct {
	OldestSeconds float64 // infinite: some are undated
	Late, Damaged int64
}

// Scrubber returns the metrics of a scrubber; a process has one.
func (m *Metrics) Scrubber() *Scrubber {
	if m == nil {
		return nil
	}
	gauge := func(name, help string) prometheus.Gauge { return m.gauge(name, help).WithLabelValues() }
	return &Scrubber{
		requests: m.total("bctl_scrub_packs_total", "Packs that this scrubber has read, and compared with their checksums."),
		bytes:    m.total("bctl_scrub_bytes_total", "Bytes that this scrubber has read from the store."),
		failures: m.total("bctl_scrub_failures_total", "Proofs that have failed: the pack was missing or damaged."),
		oldest:   gauge("bctl_scrub_oldest_seconds", "Time since the oldest proof: each pack that is not damaged was proven or stored since then. +Inf: there are undated packs."),
		within:   gauge("bctl_scrub_within_seconds", "Time within which all packs are to be proven (bctl scrub set)."),
		unproven: gauge("bctl_scrub_unproven_packs", "Packs that were never proven: new ones, and undated ones."),
		undated:  gauge("bctl_scrub_undated_packs", "Packs that were never proven, and were stored at a time that is not known: before the index was rebuilt, or by former versions."),
		late:     gauge("bctl_scrub_late_packs", "Packs that were not proven within the time that is set."),
		damaged:  gauge("bctl_scrub_damaged_packs", "Packs whose last proof has failed."),
		looked:   gauge("bctl_scrub_look_timestamp_seconds", "When this scrubber last read what is proven from the index, in seconds since 1970; 0: never."),
		retries:  m.Retries("scrub"),

		journal: scrubParts{
			objects:  m.total("bctl_scrub_journal_objects_total", "Segments, commit records, catalogs and parts of index copies that this scrubber has read, and whose signatures it has verified."),
			failures: m.total("bctl_scrub_journal_failures_total", "Objects of the journal that this scrubber has found to be damaged."),
			oldest:   gauge("bctl_scrub_journal_oldest_seconds", "Time since the oldest proof of the journal: each of its objects that is not damaged was proven or stored since then. +Inf: some were never proven since the index was rebuilt or upgraded."),
			late:     gauge("bctl_scrub_journal_late_slices", "Slices of the journal, of 257, that were not proven within the time that is set."),
			damaged:  gauge("bctl_scrub_journal_damaged_objects", "Objects of the journal that were damaged at their last proof."),
		},
		parity: scrubParts{
			objects:  m.total("bctl_scrub_parity_objects_total", "Parity objects that this scrubber has read, and compared with their digests."),
			failures: m.total("bctl_scrub_parity_failures_total", "Parity objects that this scrubber has found to be missing or damaged."),
			oldest:   gauge("bctl_scrub_parity_oldest_seconds", "Time since the oldest proof of parity: each parity object that is not damaged was proven or stored since then. +Inf: some were never proven since the index was rebuilt or upgraded."),
			late:     gauge("bctl_scrub_parity_late_groups", "Parity groups whose parity objects were not proven within the time that is set."),
			damaged:  gauge("bctl_scrub_parity_damaged_objects", "Parity objects that were missing or damaged at their last proof."),
		},
		putBack:      m.gauge("bctl_repair_put_back_objects", "Objects that repairs have put back into the store since the index was made, by where they took them.", "from"),
		putBackBytes: m.gauge("bctl_repair_put_back_bytes", "Bytes of the objects that repairs have put back into the store since the index was made.", "from"),
	}
}

// Read counts packs that were read, and of these the ones that are damaged.
func (s *Scrubber) Read(packs, bytes, damaged int64) {
	if s != nil {
		s.requests.Add(float64(packs))
		s.bytes.Add(float64(bytes))
		s.failures.Add(float64(damaged))
	}
}

// State records what is proven of the packs now.
func (s *Scrubber) State(now ScrubState) {
	if s != nil {
		s.oldest.Set(now.OldestSeconds)
		s.within.Set(now.Within.Seconds())
		s.unproven.Set(float64(now.Unproven))
		s.undated.Set(float64(now.Undated))
		s.late.Set(float64(now.Late))
		s.damaged.Set(float64(now.Damaged))
		s.looked.Set(float64(time.Now().UnixMilli()) / 1000)
	}
}

// ReadJournal counts objects of the journal that were read, and of these the ones that are damaged.
func (s *Scrubber) ReadJournal(objects, damaged int64) {
	if s != nil {
		s.journal.read(objects, damaged)
	}
}

// Journal records what is proven of the journal now.
func (s *Scrubber) Journal(now ScrubPartsState) {
	if s != nil {
		s.journal.state(now)
	}
}

// ReadParity counts parity objects that were read, and of these the ones that are damaged.
func (s *Scrubber) ReadParity(objects, damaged int64) {
	if s != nil {
		s.parity.read(objects, damaged)
	}
}

// Parity records what is proven of the parity objects now.
func (s *Scrubber) Parity(now ScrubPartsState) {
	if s != nil {
		s.parity.state(now)
	}
}

// PutBack records what repairs have put back from one source in all.
func (s *Scrubber) PutBack(from string, objects, bytes int64) {
	if s != nil {
		s.putBack.WithLabelValues(from).Set(float64(objects))
		s.putBackBytes.WithLabelValues(from).Set(float64(bytes))
	}
}

func (p *scrubParts) read(objects, damaged int64) {
	p.objects.Add(float64(objects))
	p.failures.Add(float64(damaged))
}

func (p *scrubParts) state(now ScrubPartsState) {
	p.oldest.Set(now.OldestSeconds)
	p.late.Set(float64(now.Late))
	p.damaged.Set(float64(now.Damaged))
}

// Retry counts a look that failed with err.
func (s *Scrubber) Retry(err error) {
	if s != nil {
		s.retries.Add(err)
	}
}

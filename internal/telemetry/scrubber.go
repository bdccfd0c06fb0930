package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Scrubber measures a scrubber. All methods of a nil Scrubber do nothing.
type Scrubber struct {
	requests, bytes, failures       prometheus.Counter
	oldest, within                  prometheus.Gauge
	unproven, late, damaged, looked prometheus.Gauge

	journal, journalFailures                  prometheus.Counter
	journalOldest, journalLate, journalDamage prometheus.Gauge

	retries *Retries
}

// Scrubber returns the metrics of a scrubber; a process has one.
func (m *Metrics) Scrubber() *Scrubber {
	if m == nil {
		return nil
	}
	return &Scrubber{
		requests: m.total("bctl_scrub_packs_total", "Packs that this scrubber has read, and compared with their checksums."),
		bytes:    m.total("bctl_scrub_bytes_total", "Bytes that this scrubber has read from the store."),
		failures: m.total("bctl_scrub_failures_total", "Proofs that have failed: the pack was missing or damaged."),
		oldest:   m.gauge("bctl_scrub_oldest_seconds", "Time since the oldest proof: each pack that is not damaged was proven or stored since then.").WithLabelValues(),
		within:   m.gauge("bctl_scrub_within_seconds", "Time within which all packs are to be proven (bctl scrub set).").WithLabelValues(),
		unproven: m.gauge("bctl_scrub_unproven_packs", "Packs that were never proven: new ones, and those that were stored by former versions.").WithLabelValues(),
		late:     m.gauge("bctl_scrub_late_packs", "Packs that were not proven within the time that is set.").WithLabelValues(),
		damaged:  m.gauge("bctl_scrub_damaged_packs", "Packs whose last proof has failed.").WithLabelValues(),
		looked:   m.gauge("bctl_scrub_look_timestamp_seconds", "When this scrubber last read what is proven from the index, in seconds since 1970; 0: never.").WithLabelValues(),
		retries:  m.Retries("scrub"),

		journal:         m.total("bctl_scrub_journal_objects_total", "Segments, commit records, catalogs and parts of index copies that this scrubber has read, and whose signatures it has verified."),
		journalFailures: m.total("bctl_scrub_journal_failures_total", "Objects of the journal that this scrubber has found to be damaged."),
		journalOldest:   m.gauge("bctl_scrub_journal_oldest_seconds", "Time since the oldest proof of the journal: each of its objects that is not damaged was proven or stored since then.").WithLabelValues(),
		journalLate:     m.gauge("bctl_scrub_journal_late_slices", "Slices of the journal, of 257, that were not proven within the time that is set.").WithLabelValues(),
		journalDamage:   m.gauge("bctl_scrub_journal_damaged_objects", "Objects of the journal that were damaged at their last proof.").WithLabelValues(),
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

// State records what is proven now.
func (s *Scrubber) State(oldest, within time.Duration, unproven, late, damaged int64) {
	if s != nil {
		s.oldest.Set(oldest.Seconds())
		s.within.Set(within.Seconds())
		s.unproven.Set(float64(unproven))
		s.late.Set(float64(late))
		s.damaged.Set(float64(damaged))
		s.looked.Set(float64(time.Now().UnixMilli()) / 1000)
	}
}

// ReadJournal counts objects of the journal that were read, and of these the ones that are damaged.
func (s *Scrubber) ReadJournal(objects, damaged int64) {
	if s != nil {
		s.journal.Add(float64(objects))
		s.journalFailures.Add(float64(damaged))
	}
}

// Journal records what is proven of the journal now.
func (s *Scrubber) Journal(oldest time.Duration, late, damaged int64) {
	if s != nil {
		s.journalOldest.Set(oldest.Seconds())
		s.journalLate.Set(float64(late))
		s.journalDamage.Set(float64(damaged))
	}
}

// Retry counts a look that failed with err.
func (s *Scrubber) Retry(err error) {
	if s != nil {
		s.retries.Add(err)
	}
}

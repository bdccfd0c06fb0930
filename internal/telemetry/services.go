package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/bctl/bctl/internal/backup"
)

// A Walker measures a walker. All methods of a nil Walker do nothing.
type Walker struct {
	entries, directories, stats, statSeconds, vanished prometheus.Counter

	slices   prometheus.Histogram
	hand     inHand
	stages   stages
	problems problems
	retries  *Retries
}

// Walker returns the metrics of a walker; a process has one.
func (m *Metrics) Walker() *Walker {
	if m == nil {
		return nil
	}
	return &Walker{
		entries:     m.total("bctl_walk_entries_total", "Entries walked: files and directories."),
		directories: m.total("bctl_walk_directories_total", "Directories walked."),
		stats:       m.total("bctl_walk_stats_total", "Stats requested from filers."),
		statSeconds: m.total("bctl_walk_stat_seconds_total", "Seconds that filers took for stats."),
		vanished:    m.vanished(),
		slices:      m.seconds("bctl_walk_slice_seconds", "Time of one walk task, until its result was sent."),
		hand:        m.inHand("task"), stages: m.stages("walk"), problems: m.problems(), retries: m.Retries("task"),
	}
}

// Part adds the counts of one message of a result, and the time that the filer took for its stats.
func (w *Walker) Part(part *backup.SliceWalked, answers time.Duration) {
	if w == nil {
		return
	}
	c := &part.Counts
	addTo(w.entries, float64(c.Files+c.Directories))
	addTo(w.directories, float64(c.Directories))
	addTo(w.stats, float64(c.StatCalls))
	addTo(w.statSeconds, answers.Seconds())
	addTo(w.vanished, float64(c.Vanished))
	w.stages.add(c.WalkSeconds)
	w.problems.add(part.Problems)
}

// Slice records that a task's result was sent.
func (w *Walker) Slice(took time.Duration) {
	if w != nil {
		observe(w.slices, took)
	}
}

// Retry counts a task that is handed back because of err.
func (w *Walker) Retry(err error) {
	if w != nil {
		w.retries.Add(err)
	}
}

// InHand records how many tasks are in progress, and how many of them are stalled.
func (w *Walker) InHand(all, stalled int) {
	if w != nil {
		w.hand.set(all, stalled)
	}
}

func (h inHand) set(all, stalled int) {
	h.working.Set(float64(all - stalled))
	h.stalled.Set(float64(stalled))
}

// A Reader measures a reader. All methods of a nil Reader do nothing.
type Reader struct {
	readBytes, newBytes, storedBytes, packBytes, vanished, lost prometheus.Counter

	batches, puts prometheus.Histogram
	hand          inHand
	stages        stages
	problems      problems
	retries       *Retries
}

// Reader returns the metrics of a reader; a process has one.
func (m *Metrics) Reader() *Reader {
	if m == nil {
		return nil
	}
	return &Reader{
		readBytes:   m.total("bctl_read_bytes_total", "Bytes read from filers."),
		newBytes:    m.total("bctl_new_bytes_total", "Bytes read from filers that were not stored before."),
		storedBytes: m.total("bctl_stored_bytes_total", "Bytes that new content added to packs, after compression and encryption."),
		vanished:    m.vanished(),
		lost:        m.total("bctl_packs_lost_total", "Packs that this reader needed and that the store lacks or has only in part, and whose content has no other copy."),
		packBytes:   m.total("bctl_pack_put_bytes_total", "Bytes of packs that were uploaded to the store."),
		batches:     m.seconds("bctl_read_batch_seconds", "Time of one read batch, until its result was sent."),
		puts:        m.seconds("bctl_pack_put_seconds", "Time of the upload of one pack."),
		hand:        m.inHand("batch"), stages: m.stages("read", "hash", "compress", "seal", "upload"),
		problems: m.problems(), retries: m.Retries("batch"),
	}
}

// Batch adds the counts of an attempt at a batch whose result was sent.
func (r *Reader) Batch(m *backup.BatchStored, took time.Duration) {
	if r == nil {
		return
	}
	c := &m.Counts
	addTo(r.readBytes, float64(c.ReadBytes))
	addTo(r.newBytes, float64(c.NewBytes))
	addTo(r.storedBytes, float64(c.StoredBytes))
	addTo(r.vanished, float64(c.Vanished))
	r.stages.add(c.ReadSeconds, c.HashSeconds, c.CompressSeconds, c.SealSeconds, c.UploadSeconds)
	r.problems.add(m.Problems)
	observe(r.batches, took)
}

// LostPack counts a pack that the store no longer has as it was stored.
func (r *Reader) LostPack() {
	if r != nil {
		r.lost.Inc()
	}
}

// Pack counts a pack that was stored.
func (r *Reader) Pack(sizeBytes int, took time.Duration) {
	if r != nil {
		addTo(r.packBytes, float64(sizeBytes))
		observe(r.puts, took)
	}
}

// Retry counts a batch that is handed back because of err.
func (r *Reader) Retry(err error) {
	if r != nil {
		r.retries.Add(err)
	}
}

// InHand records how many batches are in progress, and how many of them are stalled.
func (r *Reader) InHand(all, stalled int) {
	if r != nil {
		r.hand.set(all, stalled)
	}
}

// A Committer measures a committer. All methods of a nil Committer do nothing.
type Committer struct {
	applies   prometheus.Histogram
	results   map[string]map[string]prometheus.Counter
	handedOut map[string]prometheus.Counter
	ended     map[string]prometheus.Counter
	died      map[string]prometheus.Counter
	keeper    prometheus.Gauge
	stages    stages
	retries   *Retries
	fleet     *fleet
}

// The kinds of results, and their outcomes.
var (
	results  = []string{"slice", "pack", "lists", "batch"}
	outcomes = []string{"accepted", "late", "early", "condemned", "refused", "failed"}
)

// Committer returns the metrics of a committer; a process has one.
func (m *Metrics) Committer() *Committer {
	if m == nil {
		return nil
	}
	c := &Committer{
		applies: m.seconds("bctl_apply_seconds", "Time of one transaction that applies results."),
		results: map[string]map[string]prometheus.Counter{}, handedOut: map[string]prometheus.Counter{}, ended: map[string]prometheus.Counter{}, died: map[string]prometheus.Counter{},
		stages: m.stages("commit"), retries: m.Retries("commit"),
	}
	counter := m.counter("bctl_results_total", "Results of workers, by outcome.", "result", "outcome")
	for _, result := range results {
		c.results[result] = map[string]prometheus.Counter{}
		for _, outcome := range outcomes {
			c.results[result][outcome] = counter.WithLabelValues(result, outcome)
		}
	}
	out := m.counter("bctl_handed_out_total", "Attempts at tasks and batches that were assigned.", "work")
	for _, work := range []string{"task", "batch"} {
		c.handedOut[work] = out.WithLabelValues(work)
	}
	died := m.counter("bctl_workers_died_total", "Workers that died with work in progress, by kind of work, as this committer found while it led.", "work")
	for _, work := range []string{"task", "batch"} {
		c.died[work] = died.WithLabelValues(work)
	}
	ended := m.counter("bctl_snapshots_ended_total", "Snapshots that this committer has ended, by final state.", "state")
	for _, state := range []string{string(backup.Committed), string(backup.Failed), Cancelled} {
		c.ended[state] = ended.WithLabelValues(state)
	}
	c.keeper = m.gauge("bctl_keeper", "1 if this committer leads, else 0.").WithLabelValues()
	c.fleet = newFleet()
	m.registry.MustRegister(c.fleet)
	return c
}

// Applied counts a transaction.
func (c *Committer) Applied(took time.Duration) {
	if c != nil {
		observe(c.applies, took)
		c.stages.add(took.Seconds())
	}
}

// Result counts a result ("slice", "pack", "lists", "batch") by its outcome: accepted, late, early,
// condemned, refused or failed.
func (c *Committer) Result(result, outcome string) {
	if c == nil {
		return
	}
	if counter := c.results[result][outcome]; counter != nil { // no metric may end a process
		counter.Inc()
	}
}

// HandedOut counts attempts at tasks or batches.
func (c *Committer) HandedOut(work string, n int) {
	if c != nil {
		c.handedOut[work].Add(float64(n))
	}
}

// Died counts a worker that died with tasks or batches in progress.
func (c *Committer) Died(work string) {
	if c != nil {
		c.died[work].Inc()
	}
}

// Cancelled is the outcome of a snapshot that an operator has cancelled. Its state is
// backup.Failed, but it does not count as a failure.
const Cancelled = "cancelled"

// Ended counts a snapshot; state is backup.Committed, backup.Failed or Cancelled.
func (c *Committer) Ended(state string) {
	if c != nil {
		c.ended[state].Inc()
	}
}

// Retry counts a retry because of err.
func (c *Committer) Retry(err error) {
	if c != nil {
		c.retries.Add(err)
	}
}

// Leads makes this committer export the metrics of the fleet, which only the leader does, so that
// nothing is exported twice. ask is called by scrapes, at most every five seconds; nil: this
// committer no longer leads.
func (c *Committer) Leads(ask func() (*Fleet, error)) {
	if c == nil {
		return
	}
	c.fleet.lead(ask)
	if ask == nil {
		c.keeper.Set(0)
	} else {
		c.keeper.Set(1)
	}
}

// Follows records that another committer leads and exports the fleet.
func (c *Committer) Follows() {
	if c != nil {
		c.fleet.follow()
	}
}

// Heard adds a worker's report on a filer, if this committer leads.
func (c *Committer) Heard(p *backup.Progress) {
	if c != nil {
		c.fleet.heard(p)
	}
}

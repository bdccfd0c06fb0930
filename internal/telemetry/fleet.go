package telemetry

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// A Fleet is the leading committer's view of all filers, shards and queues.
type Fleet struct {
	Filers  []index.FilerStatus
	Shards  []index.ShardStatus
	Running []backup.Snapshot
	Queues  []Queue
	Held    map[backup.FilerID]Held
	Stops   []index.Stop
	Holds   []index.Hold
}

// A Queue is one consumer of the message system.
type Queue struct {
	Name                    string // walk, read or commit
	Site                    string // "" for the committers' queue
	Waiting, Unacknowledged uint64
	// Last is the sequence of the last message of the queue's stream, which other sites share. All
	// messages of the queue with a sequence up to Floor are acknowledged, and those up to Delivered
	// were delivered to a worker.
	Last, Floor, Delivered uint64
}

// Held counts a filer's work in progress as reported by workers, and the part of it that waits for
// the filer.
type Held struct{ Tasks, Batches, StalledTasks, StalledBatches int }

// fleetAge is how long an answer of the index is reused.
const fleetAge = 5 * time.Second

// fleet collects the state of the index and the queues when it is scraped. Its only labels are the
// names of sites, filers and shards.
type fleet struct {
	descs struct {
		work, held, running, queue                        *prometheus.Desc
		limit, slots, inHand, latency, idle               *prometheus.Desc
		files, stats, statSeconds, opens, openSeconds, up *prometheus.Desc
		lastGood, deadline, known, stopped                *prometheus.Desc
		drilled, drillEvery, drillFailed, alarm           *prometheus.Desc
	}

	mu     sync.Mutex
	totals map[backup.FilerID]*filerTotals

	asking sync.Mutex // one scrape queries at a time
	ask    func() (*Fleet, error)
	asked  time.Time
	last   *Fleet    // the last answer; nil: none, or another committer exports it
	at     time.Time // of the last answer
	failed bool      // the last query failed
}

// filerTotals are the sums of the workers' reports on a filer.
type filerTotals struct {
	files, stats, opens      int64
	statSeconds, openSeconds float64
}

func newFleet() *fleet {
	f := &fleet{totals: map[backup.FilerID]*filerTotals{}}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	d := &f.descs
	d.up = desc("bctl_fleet_up", "1 if the index and the queues answered the keeper's last query, else 0.")
	d.known = desc("bctl_fleet_known_timestamp_seconds", "When the index and the queues last answered the keeper, in seconds since 1970. The metrics of shards are from this time.")
	d.work = desc("bctl_fleet_work", "Tasks and batches of running snapshots: open, leased (assigned) or stalled.", "work", "site", "state")
	d.held = desc("bctl_fleet_held", "Tasks and batches that workers report as in progress. The other leased ones wait for a worker to take them.", "work", "site")
	d.running = desc("bctl_fleet_snapshots_running", "Running snapshots.", "site")
	d.queue = desc("bctl_queue_messages", "Messages in a queue: waiting, or delivered and not yet acknowledged.", "queue", "site", "state")
	d.limit = desc("bctl_filer_limit", "Maximum number of leases of the filer's work.", "filer", "work")
	d.slots = desc("bctl_filer_slots", "Number of leases of the filer's work that the governor allows now.", "filer", "work")
	d.inHand = desc("bctl_filer_in_hand", "Unexpired leases of the filer's work.", "filer", "work")
	d.latency = desc("bctl_filer_latency_seconds", "Average time that the filer took for a stat (work task) or for an open and first read (work batch), as the governor last measured it.", "filer", "work")
	d.idle = desc("bctl_filer_idle_latency_seconds", "Lowest recent latency of the filer.", "filer", "work")
	d.files = desc("bctl_filer_files_total", "Files that walkers found on the filer, as they reported.", "filer")
	d.stats = desc("bctl_filer_stats_total", "Stats that walkers requested from the filer, as they reported: one per entry walked.", "filer")
	d.statSeconds = desc("bctl_filer_stat_seconds_total", "Seconds that the filer took for stats.", "filer")
	d.opens = desc("bctl_filer_opens_total", "Timed opens, each with a first read, as readers reported.", "filer")
	d.openSeconds = desc("bctl_filer_open_seconds_total", "Seconds that the filer took for the opens that were timed.", "filer")
	d.lastGood = desc("bctl_shard_last_good_timestamp_seconds", "When the shard's last good snapshot was begun, in seconds since 1970; 0: there is none.", "filer", "shard")
	d.deadline = desc("bctl_shard_deadline_timestamp_seconds", "Deadline of the shard's policy for the next good snapshot, in seconds since 1970; 0: there is no good snapshot, or no policy.", "filer", "shard")
	d.drilled = desc("bctl_shard_drilled_timestamp_seconds", "When the shard's last drill that passed was begun, in seconds since 1970; 0: none has. Only shards with a good snapshot.", "filer", "shard")
	d.drillEvery = desc("bctl_shard_drill_interval_seconds", "How often the shard's policy wants a drill; 0: never. Only shards with a good snapshot.", "filer", "shard")
	d.drillFailed = desc("bctl_shard_drill_failed", "1 if the shard's last drill has found differences, else 0. Only shards with a good snapshot.", "filer", "shard")
	d.alarm = desc("bctl_shard_alarm", "1 if the shard has an alarm that nobody has acknowledged, because its files look encrypted, else 0.", "filer", "shard")
	d.stopped = desc("bctl_deletions_stopped", "Deletions that the brake has stopped, and that wait for operators: of shards by policies and bctl forget, or of the repository by pruning.", "of")
	return f
}

// lead makes ask the query from now on; nil: no more queries are made. The last answer is kept
// until another committer leads.
func (f *fleet) lead(ask func() (*Fleet, error)) {
	f.asking.Lock()
	defer f.asking.Unlock()
	f.ask, f.asked, f.failed = ask, time.Time{}, false
}

// follow leaves the fleet's metrics to another committer.
func (f *fleet) follow() {
	f.asking.Lock()
	defer f.asking.Unlock()
	if f.ask == nil {
		f.last = nil
	}
}

func (f *fleet) heard(p *backup.Progress) {
	if p.Filer == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.totals[p.Filer]
	if t == nil {
		t = &filerTotals{}
		f.totals[p.Filer] = t
	}
	t.files += max(p.FilesFound, 0)
	t.stats += p.Stats // the decoder has refused negative values
	t.statSeconds += p.StatSeconds
	t.opens += p.Opens
	t.openSeconds += p.OpenSeconds
}

// Describe implements prometheus.Collector.
func (f *fleet) Describe(to chan<- *prometheus.Desc) {
	d := &f.descs
	for _, desc := range []*prometheus.Desc{
		d.up, d.work, d.held, d.running, d.queue, d.limit, d.slots, d.inHand, d.latency, d.idle,
		d.files, d.stats, d.statSeconds, d.opens, d.openSeconds, d.lastGood, d.deadline, d.known, d.stopped, d.drilled, d.drillEvery, d.drillFailed, d.alarm,
	} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (f *fleet) Collect(to chan<- prometheus.Metric) {
	now, at, up, exports := f.now()
	if !exports {
		return
	}
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	gauge(f.descs.up, up)
	if now == nil {
		return
	}
	gauge(f.descs.known, unixSeconds(at))
	if up == 1 {
		f.collectWork(gauge, now)
		for i := range now.Filers {
			f.collectFiler(gauge, &now.Filers[i])
		}
		f.collectTotals(to, now.Filers)
	}
	stopped := map[string]int{}
	for i := range now.Stops {
		switch s := &now.Stops[i]; {
		case !s.Waits():
		case s.Shard == 0:
			stopped["repository"]++
		default:
			stopped["shard"]++
		}
	}
	for _, of := range []string{"repository", "shard"} {
		gauge(f.descs.stopped, float64(stopped[of]), of)
	}
	// In an outage the shards' times stay as they are: an alert about a shard must not end because
	// the index cannot be queried.
	alarms := map[backup.ShardID]float64{}
	for i := range now.Holds {
		if now.Holds[i].Alarm != (backup.SnapshotID{}) {
			alarms[now.Holds[i].Shard] = 1
		}
	}
	for i := range now.Shards {
		s := &now.Shards[i]
		gauge(f.descs.alarm, alarms[s.ID], s.Filer.Name, s.Name)
		gauge(f.descs.lastGood, unixSeconds(s.Time), s.Filer.Name, s.Name)
		gauge(f.descs.deadline, unixSeconds(s.Plan.Deadline), s.Filer.Name, s.Name)
		f.collectDrills(gauge, s)
	}
}

// collectDrills exports the drills of a shard that has something to restore.
func (f *fleet) collectDrills(gauge gauger, s *index.ShardStatus) {
	if s.Time.IsZero() {
		return
	}
	gauge(f.descs.drilled, unixSeconds(s.Drills.Passed), s.Filer.Name, s.Name)
	failed := 0.0
	if s.Drills.Failed() {
		failed = 1
	}
	gauge(f.descs.drillFailed, failed, s.Filer.Name, s.Name)
	gauge(f.descs.drillEvery, s.Drills.Every.Seconds(), s.Filer.Name, s.Name)
}

// unixSeconds returns 0 for the zero time.
func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.Unix())
}

// now returns the last answer and its time; nil if there is none. up is 0 if the fleet does not
// answer. exports is false if another committer exports the fleet.
func (f *fleet) now() (now *Fleet, at time.Time, up float64, exports bool) {
	f.asking.Lock()
	defer f.asking.Unlock()
	if f.ask == nil {
		return f.last, f.at, 0, f.last != nil
	}
	if time.Since(f.asked) >= fleetAge {
		answer, err := f.ask()
		f.asked, f.failed = time.Now(), err != nil
		if err == nil {
			f.last, f.at = answer, f.asked
		}
	}
	if f.failed {
		return f.last, f.at, 0, true
	}
	return f.last, f.at, 1, true
}

type gauger func(desc *prometheus.Desc, v float64, labels ...string)

// siteWork is the work of one site: tasks, then batches.
type siteWork struct {
	all, leased, stalled, held [2]int64
	running                    int
}

var works = [2]string{"task", "batch"}

func (f *fleet) collectWork(gauge gauger, now *Fleet) {
	sites := map[string]*siteWork{}
	site := func(filer *backup.Filer) *siteWork {
		name := backup.SiteName(filer.Site)
		if sites[name] == nil {
			sites[name] = &siteWork{}
		}
		return sites[name]
	}
	for i := range now.Filers {
		filer := &now.Filers[i]
		s, held := site(&filer.Filer), now.Held[filer.ID]
		for w, n := range [2]struct{ leased, held, stalled int }{
			{filer.Tasks, held.Tasks, held.StalledTasks}, {filer.Batches, held.Batches, held.StalledBatches},
		} {
			waiting := min(n.leased, n.stalled)
			s.leased[w] += int64(n.leased - waiting)
			s.stalled[w] += int64(waiting)
			s.held[w] += int64(n.held)
		}
	}
	for i := range now.Running {
		r := &now.Running[i]
		s := site(&r.Filer)
		s.running++
		s.all[0] += r.TasksAnnounced - r.TasksSettled
		s.all[1] += r.BatchesAnnounced - r.BatchesSettled
	}
	for name, s := range sites {
		gauge(f.descs.running, float64(s.running), name)
		for w, work := range works {
			// The three values come from separate queries: work may have been settled in between.
			gauge(f.descs.work, float64(max(s.all[w]-s.leased[w]-s.stalled[w], 0)), work, name, "open")
			gauge(f.descs.work, float64(s.leased[w]), work, name, "leased")
			gauge(f.descs.work, float64(s.stalled[w]), work, name, "stalled")
			gauge(f.descs.held, float64(s.held[w]), work, name)
		}
	}
	for _, q := range now.Queues {
		gauge(f.descs.queue, float64(q.Waiting), q.Name, q.Site, "waiting")
		gauge(f.descs.queue, float64(q.Unacknowledged), q.Name, q.Site, "unacknowledged")
	}
}

func (f *fleet) collectFiler(gauge gauger, s *index.FilerStatus) {
	limits, load := s.Limits.WithDefaults(), &s.Load
	for _, w := range []struct {
		work                 string
		limit, slots, inHand int
		latency, idle        time.Duration
	}{
		{"task", limits.WalkTasks, load.WalkSlots, s.Tasks, load.WalkLatency, load.WalkIdle},
		{"batch", limits.ReadBatches, load.ReadSlots, s.Batches, load.ReadLatency, load.ReadIdle},
	} {
		if w.slots == 0 {
			w.slots = w.limit // 0 stands for the limit
		}
		gauge(f.descs.limit, float64(w.limit), s.Name, w.work)
		gauge(f.descs.slots, float64(w.slots), s.Name, w.work)
		gauge(f.descs.inHand, float64(w.inHand), s.Name, w.work)
		gauge(f.descs.latency, w.latency.Seconds(), s.Name, w.work)
		gauge(f.descs.idle, w.idle.Seconds(), s.Name, w.work)
	}
}

// collectTotals exports the sums of reports, and forgets filers that are gone.
func (f *fleet) collectTotals(to chan<- prometheus.Metric, filers []index.FilerStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := map[backup.FilerID]bool{}
	for i := range filers {
		s := &filers[i]
		known[s.ID] = true
		t := f.totals[s.ID]
		if t == nil {
			t = &filerTotals{}
		}
		for _, c := range []struct {
			desc  *prometheus.Desc
			value float64
		}{
			{f.descs.files, float64(t.files)}, {f.descs.stats, float64(t.stats)}, {f.descs.statSeconds, t.statSeconds},
			{f.descs.opens, float64(t.opens)}, {f.descs.openSeconds, t.openSeconds},
		} {
			to <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, c.value, s.Name)
		}
	}
	for id := range f.totals {
		if !known[id] {
			delete(f.totals, id)
		}
	}
}

package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
)

// Why work waits. All work that waits for the same cause is one wait: a filer that hangs is one
// line, however much of its work is affected.

// A cause is what work waits for, the worst first.
type cause int

const (
	causeStalled    cause = iota // its filer does not respond
	causeSilent                  // its worker does not respond
	causeWorkers                 // no worker takes the work of its site
	causeUnknown                 // NATS does not report which services run
	causeCommitter               // no committer assigns work
	causeCommit                  // complete snapshots: no committer can commit them
	causeSlots                   // stalled work occupies the filer's slots
	causeGoverned                // the governor limits the filer
	causeLimit                   // the filer's limits
	causeReadLimit               // with readers: the filer's read limit slows it
	causeHandedBack              // all workers of its site have handed it back
	causeDelivery                // a worker is free: NATS has not delivered it, or to one that has died
	causeTurn                    // other work comes first
	causeSlot                    // shards: the limit of running snapshots
	causeScheduler               // shards: the scheduler has not looked yet
	causeWindow                  // shards: a window
	causePaused                  // shards: their policy is paused
)

// causeNames are the causes in JSON. They are fixed.
var causeNames = map[cause]string{
	causeStalled: "stalled", causeSilent: "silent_worker", causeWorkers: "workers", causeUnknown: "unknown", causeCommitter: "committer", causeCommit: "commit", causeSlots: "stalled_slots", causeGoverned: "governor",
	causeLimit: "limit", causeReadLimit: "read_limit", causeHandedBack: "handed_back", causeDelivery: "delivery", causeTurn: "turn", causeSlot: "slot", causeScheduler: "scheduler", causeWindow: "window", causePaused: "paused",
}

// A reason is why some work waits.
type reason struct {
	cause
	text  string
	apart string // the filer or site, if only its work waits for this; "": all work waits for the same
}

// A wait is all work that waits for the same reason.
type wait struct {
	reason
	filers                 []string
	tasks, batches, shards int
	snapshots              int            // complete
	since                  time.Time      // of the longest stalled work
	until                  time.Time      // of a silent worker's work: the end of the last lease
	workers                map[string]int // amount of stalled work per worker
}

// A filerWork identifies the work of one role on one filer.
type filerWork struct {
	filer string
	role  flow.Role
}

// waits returns all waits, the worst first.
func (s *overview) waits() []*wait {
	w := waiting{overview: s, found: map[reason]*wait{}}
	for _, p := range s.running {
		if p.State != interrupted && p.Cancel == "" {
			w.snapshot(p)
		}
	}
	for n := range s.due {
		w.shard(&s.due[n])
	}
	list := make([]*wait, 0, len(w.found))
	for _, found := range w.found {
		if found.cause == causeTurn && !s.fleet { // a single process works sequentially
			continue
		}
		slices.Sort(found.filers)
		list = append(list, found)
	}
	slices.SortFunc(list, func(a, b *wait) int {
		return cmp.Or(cmp.Compare(a.cause, b.cause), cmp.Compare(b.pieces(), a.pieces()), cmp.Compare(a.apart, b.apart), cmp.Compare(a.text, b.text))
	})
	return list
}

func (w *wait) pieces() int { return w.tasks + w.batches + w.shards + w.snapshots }

// waiting collects waits.
type waiting struct {
	*overview
	found map[reason]*wait
}

// at returns the wait for a reason, and adds filer to it.
func (w *waiting) at(r reason, filer string) *wait {
	found := w.found[r]
	if found == nil {
		found = &wait{reason: r, workers: map[string]int{}}
		w.found[r] = found
	}
	if !slices.Contains(found.filers, filer) {
		found.filers = append(found.filers, filer)
	}
	return found
}

// snapshot adds the work of a snapshot that waits.
func (w *waiting) snapshot(p *inProgress) {
	if p.Complete() {
		w.complete(p)
		return
	}
	for n := range p.work {
		held := &p.work[n]
		if !held.Stalled.IsZero() {
			w.at(stalledReason(p.Filer.Name), p.Filer.Name).stalled(held)
		} else if worker := w.isSilent(held); worker != nil {
			w.at(w.silentReason(worker), p.Filer.Name).silent(held)
		}
	}
	if limit := w.readLimit(&p.Filer); limit > 0 && p.isHeld() {
		w.at(reason{causeReadLimit, fmt.Sprintf("its read limit of %s/s", size(limit)), p.Filer.Name}, p.Filer.Name).batches += p.read.working
	}
	for _, kind := range []struct {
		role flow.Role
		open int64
		held inHand
		add  func(*wait) *int
	}{
		{flow.RoleWalker, p.TasksAnnounced - p.TasksSettled, p.tasks, func(to *wait) *int { return &to.tasks }},
		{flow.RoleReader, p.BatchesAnnounced - p.BatchesSettled, p.read, func(to *wait) *int { return &to.batches }},
	} {
		if n := kind.held.queued; n > 0 {
			*kind.add(w.at(w.whyQueued(p, kind.role), p.Filer.Name)) += n
		}
		if n := int(kind.open) - kind.held.working - kind.held.queued; n > 0 {
			*kind.add(w.at(w.whyOpen(&p.Filer, kind.role), p.Filer.Name)) += n
		}
	}
}

// complete adds a snapshot whose work is done, if no committer is ready to commit it.
func (w *waiting) complete(p *inProgress) {
	if w.crew.ready(flow.RoleCommitter) {
		return
	}
	for n := range w.lacks {
		if l := &w.lacks[n]; l.What == string(flow.RoleCommitter) {
			w.at(reason{causeCommit, l.Text, ""}, p.Filer.Name).snapshots++
			return
		}
	}
}

func stalledReason(filer string) reason {
	return reason{causeStalled, "no answer from filer " + display(filer), filer}
}

func (w *wait) count(held *index.Work) {
	if held.Task != 0 {
		w.tasks++
	} else {
		w.batches++
	}
}

func (w *wait) silent(held *index.Work) {
	w.count(held)
	if held.Until.After(w.until) {
		w.until = held.Until
	}
}

func (w *wait) stalled(held *index.Work) {
	w.count(held)
	if w.since.IsZero() || held.Stalled.Before(w.since) {
		w.since = held.Stalled
	}
	if held.Worker != "" {
		w.workers[held.Worker]++
	}
}

// whyQueued returns the reason why work of a snapshot waits in the queue of its site.
func (s *overview) whyQueued(p *inProgress, role flow.Role) reason {
	site := backup.SiteName(p.Filer.Site)
	if l := lacking(s.lacks, role, site); l != nil {
		return reason{causeWorkers, l.Text, site}
	}
	if r, blind := s.blind(); blind {
		return r
	}
	if !s.fleet {
		return reason{causeTurn, fmt.Sprintf("a free %s", role), ""}
	}
	if s.allHandBack(p.ID, role, site) {
		return reason{causeHandedBack, fmt.Sprintf("another try: each %s at site %s has handed work back", role, display(site)), site}
	}
	if l := lacking(s.lacks, flow.RoleCommitter, ""); l != nil {
		return reason{causeCommitter, l.Text, ""}
	}
	if s.anyFree(role, site) {
		return reason{causeDelivery, fmt.Sprintf("delivery to a free %s at site %s: at once, or within 20 s if one that took it has died", role, display(site)), site}
	}
	return reason{causeTurn, fmt.Sprintf("a free %s at site %s", role, display(site)), site}
}

// anyFree reports whether a worker of a role at a site takes work and has none.
func (s *overview) anyFree(role flow.Role, site string) bool {
	return slices.ContainsFunc(s.crew.of(role, site), func(i *flow.Instance) bool {
		return takesWork(i) && i.Tasks+i.Batches == 0 && !slices.ContainsFunc(s.running, func(p *inProgress) bool {
			return slices.ContainsFunc(p.work, func(w index.Work) bool { return w.Worker == i.Name })
		})
	})
}

// allHandBack reports whether all workers of a role at a site that take work have handed back work
// of a snapshot lately.
func (s *overview) allHandBack(snapshot backup.SnapshotID, role flow.Role, site string) bool {
	workers := slices.DeleteFunc(s.crew.of(role, site), func(i *flow.Instance) bool { return !takesWork(i) })
	return len(workers) > 0 && !slices.ContainsFunc(workers, func(i *flow.Instance) bool {
		return !slices.ContainsFunc(i.HandBacks, func(h flow.HandBack) bool { return h.Has(snapshot) })
	})
}

// whyOpen returns the reason why work that is not assigned waits.
func (s *overview) whyOpen(f *backup.Filer, role flow.Role) reason {
	site := backup.SiteName(f.Site)
	if l := lacking(s.lacks, role, site); l != nil {
		return reason{causeWorkers, l.Text, site}
	}
	if l := lacking(s.lacks, flow.RoleCommitter, ""); l != nil {
		return reason{causeCommitter, l.Text, ""}
	}
	if r, full := s.filled(f, role); full {
		return r
	}
	if r, blind := s.blind(); blind {
		return r
	}
	return reason{causeTurn, fmt.Sprintf("a turn in the queue of site %s", display(site)), site}
}

// blind returns a reason if NATS does not report the services, so that the cause of a wait is
// unknown.
func (s *overview) blind() (reason, bool) {
	for n := range s.lacks {
		if s.lacks[n].What == "nats" {
			return reason{causeUnknown, s.lacks[n].Text, ""}, true
		}
	}
	return reason{}, false
}

// standsStill reports whether a snapshot cannot end because a necessary service is missing: no
// worker works for it, or no committer accepts results.
func (s *overview) standsStill(p *inProgress) bool {
	switch {
	case p.State == interrupted:
		return false
	case lacking(s.lacks, flow.RoleCommitter, "") != nil:
		return true
	case p.tasks.working+p.read.working > p.lost:
		return false
	}
	site := backup.SiteName(p.Filer.Site)
	return p.TasksSettled < p.TasksAnnounced && lacking(s.lacks, flow.RoleWalker, site) != nil ||
		p.BatchesSettled < p.BatchesAnnounced && lacking(s.lacks, flow.RoleReader, site) != nil
}

// filled returns the reason why all slots of a filer are in use, and whether they are.
func (s *overview) filled(f *backup.Filer, role flow.Role) (reason, bool) {
	status := s.filers[f.Name]
	if status == nil {
		return reason{}, false
	}
	limits := status.Limits.WithDefaults()
	walk, read := status.Limits.Slots(status.Load)
	held, slots, limit, governed := status.Tasks, walk, limits.WalkTasks, status.Load.WalkSlots
	stalled := s.stalled[filerWork{f.Name, role}]
	if role == flow.RoleReader {
		held, slots, limit, governed = status.Batches, read, limits.ReadBatches, status.Load.ReadSlots
	}
	c, text := causeLimit, fmt.Sprintf("the filer's limit: %d at a time", limit)
	switch {
	case held < slots:
		return reason{}, false
	case 2*stalled >= slots:
		c, text = causeSlots, fmt.Sprintf("a slot: stalled work has %d of %d", stalled, slots)
	case governed > 0 && slots == governed && governed < limit:
		c, text = causeGoverned, fmt.Sprintf("the filer, which has become slow: %d of %d at a time", slots, limit)
	case slots < limit:
		text = fmt.Sprintf("the filer's limit of %s/s: %d at a time", size(limits.ReadBytesPerSecond), slots)
	}
	if c == causeLimit { // most filers have the same limit
		return reason{c, text, ""}, true
	}
	return reason{c, text, f.Name}, true
}

// readLimit returns a filer's read limit in bytes per second, or 0 if it has none or is unknown.
func (s *overview) readLimit(f *backup.Filer) int64 {
	if status := s.filers[f.Name]; status != nil {
		return status.Limits.ReadBytesPerSecond
	}
	return 0
}

// shard adds a shard that is due but whose backup has not started.
func (w *waiting) shard(r *nextRun) {
	var found reason
	switch {
	case r.state == "window" && !r.opens.IsZero():
		found = reason{causeWindow, "a window of policy " + display(r.policy) + ", which opens " + expected(r.opens, w.overview.at), r.policy}
	case r.state == "window":
		found = reason{causeWindow, "a window of policy " + display(r.policy), r.policy}
	case r.state == "paused":
		found = reason{causePaused, "policy " + display(r.policy) + ", which is paused", r.policy}
	case lacking(w.lacks, flow.RoleCommitter, "") != nil:
		found = reason{causeCommitter, lacking(w.lacks, flow.RoleCommitter, "").Text, ""}
	default:
		found = w.whyDue(&r.Filer)
	}
	w.at(found, r.Filer.Name).shards++
}

// whyDue returns the reason why the backup of a due shard has not started, although its policy
// allows it.
func (s *overview) whyDue(f *backup.Filer) reason {
	site := backup.SiteName(f.Site)
	limits, known, scheduled := s.crew.limits()
	running := s.slots[site]
	status := s.filers[f.Name]
	switch {
	case !known:
		return reason{causeSlot, "a slot at site " + display(site) + ", or the scheduler", site}
	case running >= limits.Running:
		for _, role := range []flow.Role{flow.RoleWalker, flow.RoleReader} {
			if l := lacking(s.lacks, role, site); l != nil { // no snapshot ends before there is one
				return reason{causeWorkers, l.Text, site}
			}
		}
		return reason{causeSlot, fmt.Sprintf("a slot: %d of %d snapshots of site %s run", running, limits.Running, display(site)), site}
	case status != nil && status.Running >= limits.RunningPerFiler:
		return reason{causeSlot, fmt.Sprintf("a slot: %d of %d snapshots of the filer run (site %s)", status.Running, limits.RunningPerFiler, display(site)), site}
	case !scheduled && s.crew.ready(flow.RoleCommitter):
		return reason{causeScheduler, "a committer that schedules: one begins within 15 s (site " + display(site) + ")", site}
	case !scheduled:
		return reason{causeScheduler, "a committer that is ready, and schedules (site " + display(site) + ")", site}
	}
	return reason{causeScheduler, "the scheduler, which looks every 10 s (site " + display(site) + ")", site}
}

// what describes the waiting work: "16 batches, 2 tasks".
func (w *wait) what() string {
	var parts []string
	for _, part := range []struct {
		n    int
		what string
	}{{w.snapshots, "complete snapshot"}, {w.shards, "due shard"}, {w.batches, "batch"}, {w.tasks, "task"}} {
		if part.n > 0 {
			parts = append(parts, counted(part.n, part.what))
		}
	}
	return strings.Join(parts, ", ")
}

// line formats a wait for people:
//
//	slow1: 16 batches, 2 tasks stalled 0:31 (r1 8, r2 8, w1 2)
//	nas1, nas2: 40 batches wait for: no reader at site oslo
//	nas1: its read limit of 10 MiB/s slows 2 batches
func (w *wait) line(now time.Time) string {
	names := make([]string, len(w.filers))
	for n, filer := range w.filers {
		names[n] = display(filer)
	}
	of := someNames(names)
	if len(names) > maxHints {
		of = counted(len(names), "filer")
	}
	switch w.cause {
	case causeSilent:
		return w.silentLine(of, now)
	case causeStalled:
		return fmt.Sprintf("%s: %s stalled %s%s", of, w.what(), clock(now.Sub(w.since)), w.holders())
	}
	if w.cause == causeReadLimit {
		return fmt.Sprintf("%s: %s slows %s", of, w.text, w.what())
	}
	verb := "wait"
	if w.pieces() == 1 {
		verb = "waits"
	}
	text := " for " + w.text
	if w.cause == causeWorkers || w.cause == causeCommitter || w.cause == causeUnknown {
		text = ": " + w.text
	}
	if w.snapshots > 0 {
		return fmt.Sprintf("%s: %s %s to be committed: %s", of, w.what(), verb, w.text)
	}
	return fmt.Sprintf("%s: %s %s%s", of, w.what(), verb, text)
}

// holders returns the amount of stalled work per worker: " (r1 8, r2 8)".
func (w *wait) holders() string {
	if len(w.workers) == 0 {
		return ""
	}
	names := slices.SortedFunc(maps.Keys(w.workers), func(a, b string) int { return cmp.Or(cmp.Compare(w.workers[b], w.workers[a]), cmp.Compare(a, b)) })
	for n, worker := range names {
		names[n] = fmt.Sprintf("%s %d", display(worker), w.workers[worker])
	}
	return " (" + someNames(names) + ")"
}

package schedule

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/forget"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/policy"
	"github.com/bctl/bctl/internal/process/health"
	"github.com/bctl/bctl/internal/telemetry"
)

// Role is the role of the leading scheduler.
const Role = "scheduler"

// Index is the part of the index that a scheduler uses.
type Index interface {
	index.Leading
	index.Scheduling
	forget.Index
	MayDelete(ctx context.Context, d index.Deletion) error
	Deleted(ctx context.Context, d index.Deletion, complete bool) error
	Stops(ctx context.Context) ([]index.Stop, error)
	ListPolicies(ctx context.Context) ([]backup.Policy, error)
	ListShards(ctx context.Context, f index.ShardFilter) ([]index.ShardStatus, error)
}

// Options tune a scheduler.
type Options struct {
	Worker string // name of this process, for display
	// Holder is the name by which the index knows this process as a leader, and which no other
	// process has; "": one made of Worker.
	Holder string
	Tick   time.Duration
	// Term is how long a term lasts that is not renewed. If the leader dies unnoticed, no scheduler
	// leads for that long. Term must be several times Renew, the interval at which the leader
	// renews its term, and the others stand for election.
	Term, Renew time.Duration
	// Limits are the maximum numbers of running snapshots per site and per filer. Snapshots that
	// the scheduler did not begin count, too.
	Limits policy.Limits
	Log    *slog.Logger

	Metrics *telemetry.Scheduler // nil: nothing is measured
	Health  *health.Process      // nil: health is not reported
}

// Defaults of Options.
const (
	DefaultTick            = 10 * time.Second
	DefaultTerm            = 10 * time.Second
	DefaultRenew           = 2 * time.Second
	DefaultRunning         = 64
	DefaultRunningPerFiler = 4
)

const (
	resignWithin = 2 * time.Second
	// If snapshots end, the next tick waits for at least restFactor times the duration of the last
	// one.
	restFactor = 4
	planAtOnce = 1000 // shards per transaction
	// moveWithin is the time limit of a step that queries the index. The index answers or fails
	// much sooner.
	moveWithin = 5 * time.Minute
	// tickWithin is how long a tick may take before its term is no longer renewed, so that another
	// scheduler takes over from one that hangs.
	tickWithin = 2 * time.Minute
	// maxMissed bounds the count of missed times of one shard.
	maxMissed = 1000
)

// A Scheduler is one candidate for the leading scheduler.
type Scheduler struct {
	index  Index
	opts   Options
	log    *slog.Logger
	holder string
	parsed map[backup.PolicyID]timetable
	// applied is what this process knows of the shards whose snapshots it has forgotten by their
	// policies. After a change of the leader, all policies are applied again.
	applied map[backup.ShardID]applied
	beat    *health.Beat  // while it runs
	wake    chan struct{} // a slot may have become free
	vacant  chan struct{} // no scheduler leads, or this one has begun to

	standing chan struct{} // full while the index is asked for the term
	led      atomic.Pointer[lead]
	ticking  atomic.Pointer[time.Time] // when the tick in progress began; nil: none is
}

// A lead is the last term of a scheduler.
type lead struct {
	index.Term           // zero: it does not lead
	until      time.Time // by the clock of this machine; the index ends the term later
}

// A timetable is a policy and its schedule.
type timetable struct {
	backup.Policy
	*policy.Schedule
}

// New returns a scheduler.
func New(idx Index, o Options) *Scheduler {
	if o.Tick <= 0 {
		o.Tick = DefaultTick
	}
	if o.Term <= 0 {
		o.Term = DefaultTerm
	}
	if o.Limits.Running <= 0 {
		o.Limits.Running = DefaultRunning
	}
	if o.Limits.RunningPerFiler <= 0 {
		o.Limits.RunningPerFiler = DefaultRunningPerFiler
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Holder == "" {
		o.Holder = o.Worker + "-" + rand.Text()[:8]
	}
	if o.Renew <= 0 {
		o.Renew = DefaultRenew
	}
	s := &Scheduler{index: idx, opts: o, log: o.Log, holder: o.Holder, wake: make(chan struct{}, 1), vacant: make(chan struct{}, 1), standing: make(chan struct{}, 1)}
	s.led.Store(&lead{})
	return s
}

// Look requests a tick now, and not only at the next interval, because a snapshot has begun or
// ended. It may be called concurrently.
func (s *Scheduler) Look() { loop.Wake(s.wake) }

// Stand requests a tick now because the scheduler that led is dead: one that does not lead stands
// for election. It may be called concurrently.
func (s *Scheduler) Stand() { loop.Wake(s.vacant) }

// Limits returns the limits that apply, of the options or by default.
func (s *Scheduler) Limits() policy.Limits { return s.opts.Limits }

// Leads reports whether this scheduler leads. It may be called concurrently.
func (s *Scheduler) Leads() bool {
	led := s.led.Load()
	return led.Term != (index.Term{}) && time.Now().Before(led.until)
}

// Run ticks until ctx is done, and then lets another lead. Meanwhile it renews its term, or stands
// for election, also while a tick takes long.
func (s *Scheduler) Run(ctx context.Context) {
	var renewing sync.WaitGroup
	defer s.resign(ctx)
	defer renewing.Wait()
	renewing.Go(func() { loop.Every(ctx, s.opts.Renew, func() { s.renew(ctx) }) })
	tick := time.NewTicker(s.opts.Tick)
	defer tick.Stop()
	s.beat = s.opts.Health.Loop("schedule", moveWithin)
	defer s.beat.Done()
	for {
		s.beat.Moved()
		began := time.Now()
		s.ticking.Store(&began)
		err := s.Tick(ctx)
		s.ticking.Store(nil)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("scheduling failed, will retry", "error", err)
			s.opts.Metrics.Retry(err)
		}
		s.wait(ctx, tick.C, time.Since(began))
		if ctx.Err() != nil {
			return
		}
	}
}

// wait returns when it is time for the next tick: at the interval or, if this scheduler leads, when
// it was asked to look. Where snapshots end all the time, ticks take a fifth of the time at most.
func (s *Scheduler) wait(ctx context.Context, tick <-chan time.Time, took time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
			return
		case <-s.vacant:
			return
		case <-s.wake:
			if !s.Leads() {
				continue // the one that leads was asked as well
			}
			loop.Pause(ctx, min(restFactor*took, s.opts.Tick))
			return
		}
	}
}

func (s *Scheduler) resign(ctx context.Context) {
	term := s.led.Load().Term
	if term == (index.Term{}) {
		return
	}
	resigning, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignWithin)
	defer cancel()
	if err := s.index.Resign(resigning, term); err != nil {
		s.log.Debug("ending the scheduler's term failed: it expires by itself", "error", err)
	}
}

// Tick does the work that is due now, if this scheduler leads. It must not be called concurrently.
func (s *Scheduler) Tick(ctx context.Context) error {
	term, err := s.stand(ctx)
	if err != nil || term == (index.Term{}) {
		return err
	}
	err = s.lead(ctx, term)
	if errors.Is(err, index.ErrNotLeading) {
		s.log.Debug("the scheduler's term ended during a tick", "epoch", term.Epoch)
		return nil
	}
	return err
}

// renew renews the term between ticks and during a tick, unless that hangs. A new term begins with
// a tick.
func (s *Scheduler) renew(ctx context.Context) {
	if began := s.ticking.Load(); began != nil && time.Since(*began) > tickWithin {
		return
	}
	was := s.led.Load().Term
	switch term, err := s.stand(ctx); {
	case err != nil: // ticks report that the index does not answer
		s.log.Debug("renewing the scheduler's term failed, will retry", "error", err)
	case term != was && term != (index.Term{}):
		loop.Wake(s.vacant)
	}
}

// stand requests or renews the term. It returns the zero Term if another scheduler leads, and logs
// when this one begins and ends to lead.
func (s *Scheduler) stand(ctx context.Context) (index.Term, error) {
	s.standing <- struct{}{} // the other request ends with the context
	defer func() { <-s.standing }()
	asked := time.Now()
	term, _, err := s.index.Lead(ctx, Role, s.holder, s.opts.Term)
	if err != nil {
		return index.Term{}, err
	}
	was := s.led.Swap(&lead{term, asked.Add(s.opts.Term)})
	if term == was.Term {
		return term, nil
	}
	if term == (index.Term{}) {
		s.log.Info("scheduler: this committer no longer leads", "epoch", was.Epoch)
	} else {
		s.log.Info("scheduler: this committer leads", "epoch", term.Epoch)
	}
	s.opts.Metrics.Leads(term != index.Term{})
	return term, nil
}

func (s *Scheduler) lead(ctx context.Context, term index.Term) error {
	policies, err := s.index.ListPolicies(ctx)
	if err != nil {
		return err
	}
	s.parse(policies)
	filers, err := s.index.FilersToSchedule(ctx)
	if err != nil {
		return err
	}
	if err := s.bind(ctx, term, filers, policies); err != nil {
		return err
	}
	if err := s.unplan(ctx, term); err != nil {
		return err
	}
	if err := s.plan(ctx, term); err != nil {
		return err
	}
	if err := s.begin(ctx, term, filers); err != nil {
		return err
	}
	if err := s.forget(ctx, term); err != nil {
		return err
	}
	now, err := s.index.Clock(ctx)
	if err != nil {
		return err
	}
	s.opts.Metrics.Passed(now)
	return nil
}

// parse parses the schedules of policies. A policy that this binary does not understand, because a
// newer one wrote it, is logged and skipped.
func (s *Scheduler) parse(policies []backup.Policy) {
	parsed := make(map[backup.PolicyID]timetable, len(policies))
	for _, p := range policies {
		if known, ok := s.parsed[p.ID]; ok && known.Revision == p.Revision {
			parsed[p.ID] = known
			continue
		}
		times, err := policy.Parse(p)
		if err != nil {
			s.log.Error("invalid policy: its shards are not scheduled", "policy", p.Name, "error", err)
			continue
		}
		parsed[p.ID] = timetable{p, times}
	}
	s.parsed = parsed
	s.opts.Metrics.Policies(len(parsed), len(policies)-len(parsed))
}

func (s *Scheduler) bind(ctx context.Context, term index.Term, filers []backup.Filer, policies []backup.Policy) error {
	bound := make(map[backup.FilerID]index.Binding, len(filers))
	for i := range filers {
		p, _ := policy.For(filers[i].Labels, policies)
		bound[filers[i].ID] = index.Binding{Policy: p.ID, Revision: p.Revision}
	}
	changed, err := s.index.Bind(ctx, term, bound)
	if changed > 0 {
		s.log.Info("shards assigned to new or changed policies", "shards", changed)
	}
	return err
}

// ids returns the policies for which a condition holds.
func (s *Scheduler) ids(holds func(timetable) bool) []backup.PolicyID {
	var ids []backup.PolicyID
	for id, t := range s.parsed {
		if holds(t) {
			ids = append(ids, id)
		}
	}
	return ids
}

// unplan drops plans made by a clock that was ahead: their shards would not be backed up until that
// time.
func (s *Scheduler) unplan(ctx context.Context, term index.Term) error {
	now, err := s.index.Clock(ctx)
	if err != nil {
		return err
	}
	latest := make(map[backup.PolicyID]time.Time, len(s.parsed))
	for id, t := range s.parsed {
		if after := t.Latest(now); !after.IsZero() {
			latest[id] = after
		}
	}
	dropped, err := s.index.Unplan(ctx, term, latest)
	if dropped > 0 {
		s.log.Warn("shards were due far in the future because a clock was ahead; they are planned again", "shards", dropped)
	}
	return err
}

// plan plans all shards that need a plan.
func (s *Scheduler) plan(ctx context.Context, term index.Term) error {
	all := s.ids(func(timetable) bool { return true })
	if len(all) == 0 {
		return nil
	}
	for after := backup.ShardID(0); ; {
		s.beat.Moved()
		now, err := s.index.Clock(ctx)
		if err != nil {
			return err
		}
		found, err := s.index.Unplanned(ctx, all, after, planAtOnce)
		if err != nil || len(found) == 0 {
			return err
		}
		plans := make([]index.Plan, 0, len(found))
		for _, u := range found {
			t, ok := s.parsed[u.Policy]
			if !ok || t.Revision != u.Revision {
				continue // changed since it was bound
			}
			past := policy.Past{Good: u.LastGood, Bad: u.Bad, Failed: u.Failed, Deadline: u.Deadline}
			u.Due, u.Deadline = t.Plan(u.Shard, past, now)
			plans = append(plans, u.Plan)
		}
		if err := s.index.PlanShards(ctx, term, plans); err != nil {
			return err
		}
		after = found[len(found)-1].Shard
	}
}

// begin begins the snapshots that are due and permitted.
func (s *Scheduler) begin(ctx context.Context, term index.Term, filers []backup.Filer) error {
	now, err := s.index.Clock(ctx)
	if err != nil {
		return err
	}
	open := s.ids(func(t timetable) bool { return !t.Paused && t.Allowed(now) })
	if len(open) == 0 {
		s.opts.Metrics.Waiting(0)
		return nil
	}
	due, running, err := s.index.DueShards(ctx, now, open)
	if err != nil {
		return err
	}
	sites := make(map[backup.FilerID]string, len(filers))
	for i := range filers {
		sites[filers[i].ID] = filers[i].Site
	}
	candidates := make([]policy.Candidate, len(due))
	plans := make(map[backup.ShardID]index.Plan, len(due))
	for i, p := range due {
		candidates[i] = policy.Candidate{Shard: p.Shard, Filer: p.Filer, Site: sites[p.Filer], Due: p.Due, Deadline: p.Deadline}
		plans[p.Shard] = p
	}
	busy := make([]policy.Running, 0, len(running))
	for filer, n := range running {
		busy = append(busy, policy.Running{Filer: filer, Site: sites[filer], Snapshots: n})
	}
	picked := policy.Pick(candidates, busy, s.opts.Limits)
	s.opts.Metrics.Waiting(len(candidates) - len(picked))
	for _, c := range picked {
		s.beat.Moved()
		// A tick may last beyond the end of a window.
		now, err := s.index.Clock(ctx)
		if err != nil {
			return err
		}
		p := plans[c.Shard]
		t := s.parsed[p.Policy]
		if !t.Allowed(now) {
			continue
		}
		if err := s.beginOne(ctx, term, p, t, now); err != nil {
			return err
		}
	}
	return nil
}

// beginOne begins a snapshot. A problem of one shard does not keep others from being begun.
func (s *Scheduler) beginOne(ctx context.Context, term index.Term, p index.Plan, t timetable, now time.Time) error {
	begun, err := s.index.BeginDue(ctx, term, p, now)
	switch {
	case err == nil:
		s.log.Debug("snapshot scheduled", "snapshot", begun.ID.Short(), "filer", begun.Filer.Name, "shard", begun.Shard.Name, "number", begun.Number,
			"policy", t.Name, "due", p.Due, "deadline", p.Deadline)
		s.opts.Metrics.Begun(now.Sub(p.Due), t.missed(p.Shard, p.Due, now))
	case errors.Is(err, backup.ErrRunning), errors.Is(err, index.ErrNotDue), errors.Is(err, backup.ErrNotFound):
		s.log.Debug("shard no longer due", "shard_id", p.Shard, "error", err)
	case errors.Is(err, index.ErrNotLeading), errors.Is(err, backup.ErrUnavailable), ctx.Err() != nil:
		return err
	default:
		s.log.Error("starting a snapshot failed", "shard_id", p.Shard, "policy", t.Name, "error", err)
		s.opts.Metrics.Retry(err)
	}
	return nil
}

// missed returns how many further times, after due and up to now, the shard would have been due.
func (t timetable) missed(shard backup.ShardID, due, now time.Time) (n int) {
	for next := t.Next(shard, due); !next.IsZero() && !next.After(now) && n < maxMissed; next = t.Next(shard, next) {
		n++
	}
	return n
}

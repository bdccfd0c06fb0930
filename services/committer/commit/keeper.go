package commit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/telemetry"
)

// The keeper is the one committer that leads. It alone makes and repairs streams and consumers,
// ends the leases of what was in a stream that is lost, renews the leases of
// what workers report, governs filers, and gives the store what it does not know yet. If it dies, another leads once its term has run out.

const (
	keeperRole   = "keeper"
	resignWithin = 2 * time.Second
)

// times are of the keeper, and of the lease of a commit; shorter in tests.
type times struct {
	// term is how long a term lasts that is not renewed, and so how long nobody leads after
	// the leader has died. The leader itself goes by the time before it asked: it stops before another starts.
	term, renew time.Duration
	streams     time.Duration // how often the streams are looked after
	govern      time.Duration // an interval of the governor
	note        time.Duration // how often what workers report is looked through
	record      time.Duration // how often the store is given what it does not know yet
	lease       time.Duration // how long others leave a commit to a committer that does not renew its lease
}

var keeperTimes = times{
	term: 10 * time.Second, renew: 2 * time.Second, streams: 5 * time.Second, govern: time.Second, note: time.Second, record: 30 * time.Second,
	lease: 10 * time.Second,
}

// keeperLoop stands for leader, and leads while it is one.
func (s *Service) keeperLoop(ctx context.Context) {
	for ctx.Err() == nil {
		// Who cannot reach the queues cannot look after them: another may.
		if err := s.Conn.Ready(); err != nil {
			pause(ctx, s.times.renew)
			continue
		}
		asked := time.Now()
		term, ok, err := s.Index.Lead(ctx, keeperRole, s.holder, s.times.term)
		switch {
		case err == nil && ok:
			err = s.lead(ctx, term, asked)
		case err == nil:
			s.opts.Metrics.Follows()
		}
		if err != nil && ctx.Err() == nil && !s.retry(err) {
			s.log.Warn("cannot lead", "error", err)
		}
		pause(ctx, s.times.renew)
	}
}

// lead does what a leader does until its term ends. It returns why it gave the term up.
func (s *Service) lead(ctx context.Context, term index.Term, asked time.Time) error {
	s.log.Info("keeper: this committer leads", "epoch", term.Epoch)
	leading, end := context.WithCancelCause(ctx)
	expiry := time.AfterFunc(s.times.term-time.Since(asked), func() { end(index.ErrNotLeading) })
	defer expiry.Stop()
	s.takeOver()
	s.opts.Metrics.Leads(func() (*telemetry.Fleet, error) { return s.fleet(leading) })
	var owned sync.WaitGroup
	owned.Go(func() {
		if err := s.keepStreams(leading); err != nil {
			end(err)
		}
	})
	owned.Go(func() { s.governLoop(leading, term) })
	owned.Go(func() { s.recordLoop(leading) })
	owned.Go(func() { s.renewTerm(leading, end, expiry, term) })
	<-leading.Done()
	s.opts.Metrics.Leads(nil)
	s.stepDown()
	owned.Wait()
	resigning, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignWithin)
	defer cancel()
	if err := s.Index.Resign(resigning, term); err != nil {
		s.log.Debug("the term runs out by itself", "error", err)
	}
	cause := context.Cause(leading)
	s.log.Info("keeper: this committer does not lead any more", "epoch", term.Epoch, "reason", cause)
	if errors.Is(cause, index.ErrNotLeading) || ctx.Err() != nil {
		return nil
	}
	return cause
}

// renewTerm renews the term until it has ended.
func (s *Service) renewTerm(ctx context.Context, end context.CancelCauseFunc, expiry *time.Timer, term index.Term) {
	every(ctx, s.times.renew, func() {
		asked := time.Now()
		now, ok, err := s.Index.Lead(ctx, keeperRole, s.holder, s.times.term)
		switch {
		case err != nil:
			s.log.Debug("the term cannot be renewed yet", "error", err)
		case !ok || now.Epoch != term.Epoch:
			end(index.ErrNotLeading)
		default:
			expiry.Reset(s.times.term - time.Since(asked))
		}
	})
}

// keepStreams looks after the streams until ctx is done; at once where something could not be
// published. It fails where the queues do not answer: perhaps they answer another.
func (s *Service) keepStreams(ctx context.Context) error {
	tick := time.NewTicker(s.times.streams)
	defer tick.Stop()
	for {
		if err := s.ensureStreams(ctx); err != nil && ctx.Err() == nil {
			if errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			if !s.retry(err) {
				s.log.Warn("the queues are not as they should be", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-s.unpublished:
		}
	}
}

// ensureStreams makes and mends what is not as it should be. Where a stream is missing, all messages that
// were on their way are lost: their work can be handed out at once. Its leases end before the stream is
// made again: while it is missing nobody can hand anything out that would not be lost, and should this process die
// in between, the next finds it missing still.
func (s *Service) ensureStreams(ctx context.Context) error {
	sites, err := s.Index.Sites(ctx)
	if err != nil {
		return err
	}
	if err := s.expireFuture(ctx); err != nil {
		return err
	}
	err = s.Conn.HaveStreams(ctx)
	missing := errors.Is(err, flow.ErrNoStream)
	if missing {
		err = s.expireLeases(ctx)
	}
	if err != nil {
		return err
	}
	lost, err := s.Conn.EnsureStreams(ctx, sites)
	if lost && !missing { // in this moment
		err = errors.Join(err, s.expireLeases(ctx))
	}
	if lost {
		s.log.Info("a stream was missing: what was in it is handed out again")
		signal(s.wake)
	}
	return err
}

// expireFuture ends the leases that a clock has given which was ahead: nobody would take the work until then.
func (s *Service) expireFuture(ctx context.Context) error {
	ended, err := s.Index.ExpireFuture(ctx, max(2*s.opts.Lease, 2*s.opts.QueueLease, longLease), time.Time{})
	if ended > 0 {
		s.log.Warn("leases ended far in the future: a clock was ahead; their work is handed out again", "leases", ended)
		signal(s.wake)
	}
	return err
}

// longLease is longer than any committer of the fleet gives, whatever its settings are.
const longLease = 24 * time.Hour

// expireLeases ends the leases of all work.
func (s *Service) expireLeases(ctx context.Context) error {
	running, err := s.Index.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Running}})
	if err != nil {
		return err
	}
	for i := range running {
		if err := s.Index.ExpireLeases(ctx, running[i].ID); err != nil {
			return err
		}
	}
	return nil
}

// governLoop governs filers until ctx is done.
func (s *Service) governLoop(ctx context.Context, term index.Term) {
	every(ctx, s.times.govern, func() {
		s.mu.Lock()
		idle := s.governor.idle()
		s.mu.Unlock()
		if idle {
			return
		}
		filers, err := s.Index.ListFilers(ctx, index.FilerFilter{})
		policies, policiesErr := s.Index.ListPolicies(ctx)
		if err = errors.Join(err, policiesErr); err == nil {
			s.mu.Lock()
			loads := s.governor.step(filers, policies, time.Now())
			s.mu.Unlock()
			if len(loads) > 0 {
				err = s.Index.SetLoads(ctx, term, loads)
			}
		}
		if err != nil && ctx.Err() == nil {
			s.log.Warn("filers are governed as before", "error", err)
		}
	})
}

// takeOver begins to lead: with what the index knows, for what was heard before may be old.
func (s *Service) takeOver() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leads, s.governor = true, newGovernor()
}

func (s *Service) stepDown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leads = false
}

// leading reports whether this committer leads.
func (s *Service) leading() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leads
}

// Leads reports whether this committer is the keeper. It may be called while the service runs.
func (s *Service) Leads() bool { return s.leading() }

// measured gives the governor what a worker reports.
func (s *Service) measured(p *backup.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leads && !s.opts.Alone {
		s.governor.observe(p)
		s.opts.Metrics.Heard(p)
	}
}

// every calls do at intervals until ctx is done.
func every(ctx context.Context, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

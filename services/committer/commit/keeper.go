package commit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/loop"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/telemetry"
)

// The keeper is the one committer that leads. It alone makes and repairs streams and consumers,
// ends the leases of work that was in a lost stream, renews the leases of work that workers report,
// governs filers, fails snapshots that no worker sees, and writes to the store what it lacks. If it
// dies, another leads once its term has expired.

const (
	keeperRole   = index.KeeperRole
	resignWithin = 2 * time.Second
)

// times are those of the keeper, and of the lease of a commit; shorter in tests.
type times struct {
	// term is how long a term lasts that is not renewed, and so how long no committer leads after
	// the leader has died. The leader itself counts from before its request, so that it stops
	// before another starts.
	term, renew time.Duration
	streams     time.Duration // how often the streams are checked
	govern      time.Duration // an interval of the governor
	strays      time.Duration // how often assigned work is compared with the queues
	note        time.Duration // how often the reports of workers are evaluated
	record      time.Duration // how often missing records are written to the store
	// How long others leave a commit to a committer that does not renew its lease.
	lease time.Duration
}

var keeperTimes = times{
	term: 10 * time.Second, renew: 2 * time.Second, streams: 5 * time.Second, strays: time.Second, govern: time.Second, note: time.Second, record: 30 * time.Second,
	lease: 10 * time.Second,
}

// keeperLoop stands for election, and leads while it is elected.
func (s *Service) keeperLoop(ctx context.Context) {
	for ctx.Err() == nil {
		// A committer that cannot reach the queues cannot maintain them, but another may.
		if err := s.Conn.Ready(); err != nil {
			loop.Pause(ctx, s.times.renew)
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
			s.log.Warn("leader election failed", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-s.vacant:
		case <-time.After(s.times.renew):
		}
	}
}

// lead does the work of a leader until its term ends. It returns why it gave the term up.
func (s *Service) lead(ctx context.Context, term index.Term, asked time.Time) error {
	s.log.Info("keeper: this committer leads", "epoch", term.Epoch)
	leading, end := context.WithCancelCause(ctx)
	var failed atomic.Pointer[error] // the last attempt to renew the term; nil: it succeeded
	expiry := time.AfterFunc(s.times.term-time.Since(asked), func() { end(expired(failed.Load())) })
	defer expiry.Stop()
	s.takeOver()
	s.opts.Metrics.Leads(func() (*telemetry.Fleet, error) { return s.fleet(leading) })
	var owned sync.WaitGroup
	owned.Go(func() {
		if err := s.keepStreams(leading); err != nil {
			end(err)
		}
	})
	owned.Go(func() { s.strayLoop(leading) })
	owned.Go(func() { s.governLoop(leading, term) })
	owned.Go(func() { s.recordLoop(leading) })
	owned.Go(func() { s.announceLoop(leading) })
	owned.Go(func() { s.unseenLoop(leading) })
	owned.Go(func() { s.renewTerm(leading, end, expiry, term, &failed) })
	<-leading.Done()
	s.opts.Metrics.Leads(nil)
	s.stepDown()
	owned.Wait()
	resigning, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignWithin)
	defer cancel()
	if err := s.Index.Resign(resigning, term); err != nil {
		s.log.Debug("ending the keeper's term failed: it expires by itself", "error", err)
	}
	cause := context.Cause(leading)
	why := cause.Error()
	if ctx.Err() != nil {
		why = "this committer stops"
	}
	s.log.Info("keeper: this committer no longer leads", "epoch", term.Epoch, "reason", why)
	if errors.Is(cause, index.ErrNotLeading) || ctx.Err() != nil {
		return nil
	}
	return cause
}

// expired returns why a term was not renewed.
func expired(failed *error) error {
	if failed == nil {
		return fmt.Errorf("the index did not renew the term in time: %w", index.ErrNotLeading)
	}
	return fmt.Errorf("the term could not be renewed: %w: %w", *failed, index.ErrNotLeading)
}

// renewTerm renews the term until it has ended.
func (s *Service) renewTerm(ctx context.Context, end context.CancelCauseFunc, expiry *time.Timer, term index.Term, failed *atomic.Pointer[error]) {
	loop.Every(ctx, s.times.renew, func() {
		asked := time.Now()
		now, ok, err := s.Index.Lead(ctx, keeperRole, s.holder, s.times.term)
		switch {
		case err != nil:
			failed.Store(&err)
			s.log.Debug("renewing the keeper's term failed, will retry", "error", err)
		case !ok || now.Epoch != term.Epoch:
			end(fmt.Errorf("the term ended before it was renewed, and another may lead: %w", index.ErrNotLeading))
		default:
			failed.Store(nil)
			expiry.Reset(s.times.term - time.Since(asked))
		}
	})
}

// keepStreams maintains the streams until ctx is done, and at once if a message could not be
// published. It fails if the queues do not answer, because they may answer another committer.
func (s *Service) keepStreams(ctx context.Context) error {
	tick := time.NewTicker(s.times.streams)
	defer tick.Stop()
	for {
		if err := s.ensureStreams(ctx); err != nil && ctx.Err() == nil {
			if errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			if !s.retry(err) {
				s.log.Warn("checking the NATS streams and consumers failed, will retry", "error", err)
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

// ensureStreams makes and repairs the streams. If a stream is missing, all messages in it are lost,
// and their work can be assigned at once. Their leases are ended before the stream is made again:
// while it is missing, no committer can assign work that would not be lost, and if this process
// dies in between, the next one still finds it missing.
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
	reassigned := false
	if missing {
		reassigned, err = s.expireLeases(ctx)
	}
	if err != nil {
		return err
	}
	lost, err := s.Conn.EnsureStreams(ctx, sites)
	if lost && !missing { // just now
		some, expireErr := s.expireLeases(ctx)
		reassigned, err = some, errors.Join(err, expireErr)
	}
	if lost && reassigned {
		s.log.Warn("a NATS stream was missing and was created again; the work of running snapshots is reassigned")
	}
	if lost {
		loop.Wake(s.wake)
	}
	return err
}

// expireFuture ends leases given by a clock that was ahead: until then no worker would get the
// work.
func (s *Service) expireFuture(ctx context.Context) error {
	ended, err := s.Index.ExpireFuture(ctx, max(2*s.opts.Lease, 2*s.opts.QueueLease, longLease), time.Time{})
	if ended > 0 {
		s.log.Warn("leases ended far in the future because a clock was ahead; their work is reassigned", "leases", ended)
		loop.Wake(s.wake)
	}
	return err
}

// longLease is longer than the leases of the other committers of the fleet, whose settings may
// differ from this one's.
const longLease = time.Hour

// expireLeases ends the leases of all work, and reports whether there were any. There are none at
// the first start of a fleet, also if a snapshot was begun before: then the streams are new, and
// nothing was lost with them.
func (s *Service) expireLeases(ctx context.Context) (some bool, err error) {
	work, err := s.Index.InHand(ctx, time.Time{}, 1)
	if err != nil {
		return false, err
	}
	running, err := s.Index.Snapshots(ctx, index.SnapshotFilter{States: []backup.State{backup.Running}})
	if err != nil {
		return false, err
	}
	for i := range running {
		if err := s.Index.ExpireLeases(ctx, running[i].ID); err != nil {
			return false, err
		}
	}
	return len(work) > 0, nil
}

// governLoop governs filers until ctx is done.
func (s *Service) governLoop(ctx context.Context, term index.Term) {
	loop.Every(ctx, s.times.govern, func() {
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
			s.log.Warn("updating the limits of filers failed, will retry", "error", err)
		}
	})
}

// takeOver begins to lead with the state in the index, because earlier reports may be out of date.
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

// measured passes a worker's report to the governor.
func (s *Service) measured(p *backup.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leads && !s.opts.Alone {
		s.governor.observe(p)
		s.opts.Metrics.Heard(p)
	}
}

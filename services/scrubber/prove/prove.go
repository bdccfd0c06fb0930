// Package prove is the scrubber: it proves, without a key, that packs in the store are still what
// was sealed, each within the time that operators have set (bctl scrub set).
//
// Any number of scrubbers may run. One of them leads while it proves the packs that are due, and
// the others wait. What is due follows from the index alone (index.Scrubbing), so it does not
// matter when a scrubber was started, or how long none has run.
package prove

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"math"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/process/health"
	"github.com/bctl/bctl/internal/scrub"
	"github.com/bctl/bctl/internal/telemetry"
)

// defaultPoll is the time between two searches for packs that are due. A search reads the table of
// packs.
const defaultPoll = 5 * time.Minute

// stepWithin is how long the scrubber may make no progress: the longest step reads one pack from a
// store that does not answer.
const stepWithin = time.Hour

// Options are the settings of a Prover.
type Options struct {
	Worker     string // name of this process, for display
	Repository backup.RepositoryID
	Journal    *scrub.Journal // nil: only packs are proven
	Poll       time.Duration  // 0: 5 minutes
	Log        *slog.Logger

	Metrics *telemetry.Scrubber // nil: nothing is measured
	Health  *health.Process     // nil: health is not reported
}

// A Prover proves the packs of a repository.
type Prover struct {
	index  scrub.Index
	store  pack.Ranger
	opts   Options
	holder string
	beat   *health.Beat
}

// New returns a Prover. It only reads from the store.
func New(idx scrub.Index, s pack.Ranger, o Options) *Prover {
	if o.Poll <= 0 {
		o.Poll = defaultPoll
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Prover{index: idx, store: s, opts: o, holder: o.Worker + "-" + rand.Text()[:8]}
}

// Run proves packs until ctx is done.
func (p *Prover) Run(ctx context.Context) {
	p.beat = p.opts.Health.Loop("scrub", stepWithin)
	defer p.beat.Done()
	for {
		p.beat.Moved()
		if err := p.Look(ctx); err != nil && ctx.Err() == nil {
			p.opts.Log.Warn("scrubbing failed, will retry", "error", err)
			p.opts.Metrics.Retry(err)
		}
		loop.Pause(ctx, p.opts.Poll)
		if ctx.Err() != nil {
			return
		}
	}
}

// Look proves the packs that are due, within the limits of the day. If another scrubber does that,
// Look only measures.
func (p *Prover) Look(ctx context.Context) error {
	if err := p.measure(ctx); err != nil {
		return err
	}
	began, last := time.Now(), scrub.Summary{}
	s, err := scrub.Run(ctx, scrub.Options{
		Index: p.index, Store: p.store, Repository: p.opts.Repository, Journal: p.opts.Journal, Holder: p.holder, Log: p.opts.Log,
		Progress: func(now scrub.Summary) { // one at a time
			p.beat.Moved()
			p.opts.Metrics.Read(now.Packs()-last.Packs(), now.Read.Bytes-last.Read.Bytes, now.Damaged-last.Damaged)
			p.opts.Metrics.ReadParity(now.Parity-last.Parity, now.DamagedParity-last.DamagedParity)
			p.opts.Metrics.ReadJournal(now.Journal-last.Journal, now.DamagedJournal-last.DamagedJournal)
			last = now
		},
	})
	if errors.Is(err, scrub.ErrBusy) {
		p.opts.Log.Debug("another scrubber proves packs, will try again")
		err = nil
	}
	if s.Packs() > 0 {
		p.opts.Log.Info("packs proven", "proven", s.Proven, "adopted", s.Adopted, "damaged", s.Damaged, "bytes", s.Read.Bytes, "limited", s.Limited, "seconds", time.Since(began).Seconds())
	}
	if s.Parity > 0 {
		p.opts.Log.Info("parity objects proven", "objects", s.Parity, "damaged", s.DamagedParity, "limited", s.Limited)
	}
	if s.Journal > 0 {
		p.opts.Log.Info("objects of the journal proven", "objects", s.Journal, "damaged", s.DamagedJournal, "limited", s.Limited)
	}
	return errors.Join(err, p.measure(ctx))
}

// measure reports what is proven.
func (p *Prover) measure(ctx context.Context) error {
	s, err := p.index.Scrub(ctx)
	if err != nil {
		return err
	}
	age := func(since time.Time, undated int64) float64 {
		switch {
		case undated > 0: // stored at a time that is not known
			return math.Inf(1)
		case since.IsZero():
			return 0
		}
		return max(0, s.Now.Sub(since).Seconds())
	}
	m := p.opts.Metrics
	m.State(telemetry.ScrubState{
		OldestSeconds: age(s.Oldest, s.UndatedPacks), Within: s.Within, Unproven: s.UnprovenPacks, Undated: s.UndatedPacks, Late: s.LatePacks, Damaged: s.DamagedPacks,
	})
	m.Journal(telemetry.ScrubPartsState{OldestSeconds: age(s.Journal.Oldest, s.Journal.Undated), Late: s.Journal.Late, Damaged: s.Journal.Damaged})
	m.Parity(telemetry.ScrubPartsState{OldestSeconds: age(s.Parity.Oldest, s.Parity.Undated), Late: s.Parity.Late, Damaged: s.Parity.Damaged})
	for _, back := range s.PutBack {
		m.PutBack(string(back.Source), back.Objects, back.Bytes)
	}
	return nil
}

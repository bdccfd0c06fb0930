// Package scrub proves that the packs in the store are still what was sealed. It reads whole packs
// and compares them with the checksums in the index (pack.Sums), which readers have made of what
// they sealed. It needs no key (I15), changes nothing in the store, and cannot read content.
//
// Run reads the packs that are due (index.Scrubbing), longest ago first, until none is left or the
// limit of the day is reached. It notes the results of a group of packs in one transaction. So a
// run that ends early loses the proofs of one group, and the next one continues there.
//
//	pack                      what is noted
//	as its checksums say      when it was proven
//	without checksums         the checksums of what was read. That is no proof: it is compared with
//	                          them from now on
//	missing or damaged        why. bctl check finds the affected files, and bctl repair puts it back
//	                          or has them stored again. It is due again after a day, or when
//	                          bctl scrub or bctl repair runs
//	the store does not answer nothing: Run fails
//
// After the packs, Run proves the parity objects, group by group: the rows of the groups have their
// digests. A group whose packs are damaged is none that fails: the packs are proven themselves.
//
// Then it proves the journal, slice by slice (index.JournalSlices). Its objects are signed, and the
// public key of the signer proves them. Which objects there are, the list of the store says: one
// that is missing, only a check finds.
package scrub

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/leading"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// Role is the role for which a scrub leads.
const Role = "scrubber"

// ErrBusy reports that another process scrubs this repository.
var ErrBusy = errors.New("another scrub of this repository is running")

// atATime is how many packs are read at a time, each into memory.
const atATime = 2

// A group is noted in one transaction.
const (
	groupPacks = 64
	groupBytes = 1 << 30
)

// An Index is the part of the index that a scrub uses.
type Index interface {
	index.Scrubbing
	index.Leading
	check.PlaceReader
	ParityGroups(ctx context.Context) iter.Seq2[index.ParityGroup, error]
}

// Options are the settings of a Run.
type Options struct {
	Index      Index
	Store      pack.Ranger
	Repository backup.RepositoryID
	Journal    *Journal     // nil: the journal is not proven
	Holder     string       // a name of this process that no other has
	Log        *slog.Logger // nil: nothing is logged

	// All proves also the packs that are not due.
	All bool
	// Failed proves only the packs whose last proof has failed, whatever the limits of the day are.
	Failed bool
	// Also are other packs that are proven with them.
	Also []index.PackToProve
	// Most is what this run may read, within the limits of the day; 0: no other limit.
	Most index.ScrubCost
	// Progress, if not nil, is called after each pack, one call at a time.
	Progress func(Summary)
	// Damaged, if not nil, is called with each damaged pack, one call at a time.
	Damaged func(*check.Finding)
}

// A Summary is what a Run has done.
type Summary struct {
	Proven, Adopted, Damaged int64 // packs
	// Parity objects and Journal objects were read, and these are damaged.
	Parity, DamagedParity   int64
	Journal, DamagedJournal int64
	Read                    index.ScrubCost
	// Limited: more is due, but the limits do not allow more.
	Limited bool
}

// Packs returns the number of packs that were read.
func (s *Summary) Packs() int64 { return s.Proven + s.Adopted + s.Damaged }

// Run proves the packs, and the slices of the journal, that are due. It fails with ErrBusy while
// another process scrubs.
func Run(ctx context.Context, o Options) (s Summary, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r := &run{Options: o, buffers: make(chan []byte, atATime)}
	for range atATime {
		r.buffers <- nil
	}
	led, err := leading.Lead(ctx, o.Index, Role, o.Holder, func(ctx context.Context, t index.Term) error {
		r.term = t
		return r.prove(ctx)
	})
	if err == nil && !led {
		err = ErrBusy
	}
	return r.summary, err
}

// A run is one Run.
type run struct {
	Options
	term    index.Term
	buffers chan []byte
	used    index.ScrubCost // of the limits

	mu      sync.Mutex // guards what follows
	summary Summary
	proofs  []index.Proof
}

// prove proves packs, parity and journal.
func (r *run) prove(ctx context.Context) error {
	state, err := r.Index.Scrub(ctx)
	if err != nil {
		return err
	}
	if r.All || r.Failed {
		// SQLite notes times in milliseconds: what this run proves must not seem to be older.
		loop.Pause(ctx, time.Millisecond)
	}
	if r.Failed {
		err = r.proveFailed(ctx)
	} else {
		err = r.provePacks(ctx, &state)
	}
	if err != nil {
		return err
	}
	// A key of before parity was proven may not read it: the journal is proven all the same.
	unread := r.proveParity(ctx, &state)
	if errors.Is(unread, fs.ErrPermission) {
		unread = fmt.Errorf("%w: let the scrubber read below %s (bctl deploy refresh, then apply the permissions)", unread, store.ParityPrefix)
	} else if unread != nil {
		return unread
	}
	if r.Journal != nil {
		err = r.proveJournal(ctx, &state)
	}
	return errors.Join(unread, err)
}

// allows reports whether this run may read so much in all.
func (r *run) allows(state *index.Scrub, total index.ScrubCost) bool {
	return state.Allows(total) && (r.Most.Bytes == 0 || total.Bytes <= r.Most.Bytes) && (r.Most.Requests == 0 || total.Requests <= r.Most.Requests)
}

// provePacks proves the packs that are due, longest ago first.
func (r *run) provePacks(ctx context.Context, state *index.Scrub) error {
	for {
		due, err := r.Index.ToProve(ctx, r.before(state), groupPacks)
		if err != nil || len(due) == 0 {
			return err
		}
		n, cost := fitting(due, func(cost index.ScrubCost) bool {
			return r.allows(state, r.used.Plus(cost))
		})
		if n == 0 {
			r.summary.Limited = true
			return nil
		}
		r.used = r.used.Plus(cost)
		if err := r.packs(ctx, due[:n], cost); err != nil {
			return err
		}
	}
}

// proveFailed proves the packs whose last proof has failed, and Also.
func (r *run) proveFailed(ctx context.Context) error {
	failed, err := r.Index.DamagedPacks(ctx)
	if err != nil {
		return err
	}
	has := map[int64]bool{}
	failed = slices.DeleteFunc(append(failed, r.Also...), func(p index.PackToProve) bool {
		twice := has[p.Row]
		has[p.Row] = true
		return twice
	})
	for len(failed) > 0 {
		n, cost := fitting(failed[:min(len(failed), groupPacks)], func(index.ScrubCost) bool { return true })
		if err := r.packs(ctx, failed[:n], cost); err != nil {
			return err
		}
		failed = failed[n:]
	}
	return nil
}

// fitting returns how many of the packs, from the first one on, form the next group.
func fitting(due []index.PackToProve, allowed func(index.ScrubCost) bool) (n int, cost index.ScrubCost) {
	for i := range due {
		next := cost.Plus(costOf(&due[i]))
		if !allowed(next) || i > 0 && next.Bytes > groupBytes {
			break
		}
		n, cost = i+1, next
	}
	return n, cost
}

// costOf returns what proving a pack reads.
func costOf(p *index.PackToProve) index.ScrubCost {
	return index.ScrubCost{Requests: 1, Bytes: p.Bytes}
}

// packs proves some packs, and notes the results. If it fails, what was read counts all the same.
func (r *run) packs(ctx context.Context, some []index.PackToProve, cost index.ScrubCost) error {
	r.proofs = r.proofs[:0]
	g, reading := errgroup.WithContext(ctx)
	g.SetLimit(atATime)
	for i := range some {
		g.Go(func() error { return r.one(reading, &some[i]) })
	}
	err := g.Wait()
	return errors.Join(err, r.Index.NoteProofs(context.WithoutCancel(ctx), r.term, r.proofs, cost))
}

// one proves a pack.
func (r *run) one(ctx context.Context, p *index.PackToProve) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	buf := <-r.buffers
	data, f, err := check.ProvePack(ctx, r.Store, r.Index, r.Repository, p, buf[:0])
	defer func() { r.buffers <- data }()
	if err != nil {
		return err
	}
	proof := index.Proof{Row: p.Row}
	switch {
	case f != nil:
		proof.Damage = f.Text
	case len(p.Sums) == 0:
		if proof.Adopt, err = pack.SumsOf(data, p.FrameBytes); err != nil {
			return err // ProvePack has compared the same
		}
	}
	r.note(p, proof)
	if f != nil {
		if p.Damage == "" {
			r.Log.Error("a pack is damaged or missing: bctl check lists the affected files, and bctl repair has them stored again",
				"pack", p.Pack.String(), "object", store.PackName(p.Snapshot, p.Object), "error", f.Text)
		}
		if r.Damaged != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.Damaged(f)
		}
	}
	return nil
}

func (r *run) note(p *index.PackToProve, proof index.Proof) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proofs = append(r.proofs, proof)
	r.summary.Read = r.summary.Read.Plus(costOf(p))
	switch {
	case proof.Damage != "":
		r.summary.Damaged++
	case proof.Adopt != nil:
		r.summary.Adopted++
	default:
		r.summary.Proven++
	}
	if r.Progress != nil {
		r.Progress(r.summary)
	}
}

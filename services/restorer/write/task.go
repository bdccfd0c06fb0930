package write

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/process/health"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/restore/target"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/spread"
)

// errLeaseEnds reports that the lease of a task could not be renewed in time.
var errLeaseEnds = errors.New("the lease of the task could not be renewed")

// An attempt is one attempt at a task.
type attempt struct {
	r    *Restorer
	of   index.Restore
	task index.RestoreTask
	beat *health.Beat

	files, bytes atomic.Int64

	mu           sync.Mutex
	result       spread.Result
	problemBytes int
}

type pages = iter.Seq2[backup.PageVersion, error]

// isRefusal reports whether this restorer is the wrong one for the target.
func isRefusal(err error) bool { return errors.Is(err, target.ErrOther) || errors.Is(err, errTarget) }

// run does the task, and keeps its lease meanwhile.
func (a *attempt) run(ctx context.Context) error {
	working, end := context.WithCancelCause(ctx)
	defer end(nil)
	renewing, stop := context.WithCancel(working)
	keys := make(chan []byte, 1)
	var renewer sync.WaitGroup
	renewer.Go(func() {
		if err := a.renew(renewing, keys); err != nil {
			end(err)
		}
	})
	err := a.work(working, keys)
	stop()
	renewer.Wait()
	if cause := context.Cause(working); cause != nil {
		return cause
	}
	return err
}

// renew renews the lease until ctx is done, and passes on the keys. It fails before the lease ends.
func (a *attempt) renew(ctx context.Context, keys chan<- []byte) error {
	lease, renewed, given := a.r.o.Lease, time.Now(), a.task.Kind == index.RestoreBegin
	for {
		began := time.Now()
		calling, cancel := context.WithTimeout(ctx, lease/renewals)
		sealed, err := a.r.idx.RenewRestoreTask(calling, &a.task, lease, a.files.Load(), a.bytes.Load())
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the attempt has ended
		case errors.Is(err, index.ErrTakenOver):
			return err
		case err == nil:
			renewed = began
			a.beat.Moved()
		case time.Since(renewed) > lease*(renewals-2)/renewals:
			return fmt.Errorf("%w: %w", errLeaseEnds, err)
		}
		if sealed != nil && !given {
			given = true
			keys <- sealed
		}
		wait := lease / renewals
		if !given {
			wait = min(wait, keysPoll)
		}
		loop.Pause(ctx, wait)
	}
}

func (a *attempt) work(ctx context.Context, keys <-chan []byte) error {
	request, err := spread.DecodeRequest(a.of.Request)
	if err != nil {
		return err
	}
	o := request.Options(&a.of)
	o.Concurrency = a.r.o.Concurrency
	if o.Target, err = a.r.o.Targets.resolve(o.Target); err != nil {
		return err
	}
	mark := target.JointMark(a.task.Restore)
	if a.task.Kind == index.RestoreBegin {
		before, err := restore.Begin(o, mark)
		a.result.Begun = spread.Begun{Inode: before.Inode, Mode: before.Mode, Mtime: before.Mtime}
		return err
	}
	o.Part = &restore.Part{
		From: a.task.From, To: a.task.To, Target: target.Joined{Mark: mark, Attempt: a.task.Attempt},
		Pages: func(ctx context.Context, from, to []byte) pages { return a.r.idx.PagesIn(ctx, a.of.Snapshot, from, to) },
	}
	if a.task.Kind == index.RestoreLast {
		if err := a.last(ctx, o.Part); err != nil {
			return err
		}
	}
	var sealed []byte
	select {
	case sealed = <-keys:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	given, err := a.r.session.Open(sealed)
	if err != nil {
		return err
	}
	a.result.Summary, err = restore.Restore(ctx, a.deps(given), o, a)
	return err
}

func (a *attempt) deps(given seal.GivenKeys) restore.Deps {
	return restore.Deps{Catalog: a.r.idx, Store: a.r.store, Repository: a.r.o.Repository, Opener: given.Opener(), HashKey: given.Dedup}
}

// last prepares the last part, which needs to know where the others began, and what the target was.
func (a *attempt) last(ctx context.Context, part *restore.Part) (err error) {
	part.Last = true
	if part.Cuts, err = spread.Cuts(ctx, a.r.idx, a.task.Restore); err != nil {
		return err
	}
	first, err := a.r.idx.RestoreTasks(ctx, a.task.Restore, 0, 1)
	if err != nil {
		return err
	}
	if len(first) == 0 || first[0].Kind != index.RestoreBegin {
		return fmt.Errorf("the restore has no first task: %w", backup.ErrCorrupt)
	}
	result, err := spread.DecodeResult(first[0].Result)
	if err != nil {
		return err
	}
	part.Before = &backup.Entry{Mode: result.Begun.Mode, Mtime: result.Begun.Mtime}
	if a.task.Attempt > 1 { // an earlier attempt may have removed the mark
		part.Target.Inode = result.Begun.Inode
	}
	return nil
}

// Progress, Change and Problem implement restore.Observer.
func (a *attempt) Progress(p restore.Progress) {
	a.files.Store(p.Files)
	a.bytes.Store(p.Bytes)
}

// Change is not reported: the index does not store the changes of a restore.
func (a *attempt) Change(restore.Change) {}

// Problem keeps the problem for the result.
func (a *attempt) Problem(p backup.Problem) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.result.Add(p, &a.problemBytes)
}

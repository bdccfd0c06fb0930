package walk

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/selection"
	"github.com/bctl/bctl/internal/source"
)

var errRootGone = errors.New("the shard's root cannot be read")

// A budget ends a slice: what is not walked then becomes child tasks.
type budget struct {
	directories, entries, resultBytes int
	time                              time.Duration
}

// budgets by generation: the first slices are small, so that a fresh tree is
// spread over all walkers at once; the last is for all later ones.
var budgets = []budget{
	{64, 20_000, sliceBytes, time.Second},
	{512, 100_000, sliceBytes, 2 * time.Second},
	{20_000, 400_000, sliceBytes, 10 * time.Second},
}

const (
	// sliceBytes of results end a slice, so that most results are one message.
	sliceBytes = 320 << 10
	// maxFrontier directories wait in memory; more become child tasks at once.
	maxFrontier = 16 << 10
	// childDirectories is the most that a child task starts from.
	childDirectories = 2048
)

// A slice is one attempt at a walk task.
type slice struct {
	svc      *Service
	task     *backup.WalkTask
	tree     source.Tree
	match    *selection.Matcher
	marks    *marks
	result   *result
	racyFrom backup.Time // a ctime from here on is racy

	budget budget
	end    time.Time

	mu          sync.Mutex
	more        *sync.Cond
	frontier    []string // directories to walk, the next one last
	busy        int
	stopped     bool
	directories int
	entries     int
}

func newSlice(svc *Service, task *backup.WalkTask, tree source.Tree) (*slice, error) {
	match, err := selection.Compile(task.Job.Selection)
	if err != nil {
		return nil, err
	}
	generation := min(int(task.Generation), len(svc.budgets)-1)
	if svc.opts.WholeSlices {
		generation = len(svc.budgets) - 1
	}
	s := &slice{
		svc: svc, task: task, tree: tree, match: match,
		marks:    newMarks(svc.index, task.Job.Shard, task.Job.Base, task.Directories),
		result:   newResult(svc, task),
		racyFrom: backup.TimeOf(task.Job.Started.Time().Add(-svc.opts.Grain)),
		budget:   svc.budgets[generation],
	}
	s.end = time.Now().Add(s.budget.time)
	s.more = sync.NewCond(&s.mu)
	s.frontier = slices.Clone(task.Directories)
	slices.Reverse(s.frontier)
	return s, nil
}

// walk walks down from the task's directories until there is nothing left or
// the budget is spent.
func (s *slice) walk(ctx context.Context) error {
	defer context.AfterFunc(ctx, s.stop)()
	g, working := errgroup.WithContext(ctx)
	defer context.AfterFunc(working, s.stop)()
	for range s.svc.opts.Directories {
		g.Go(func() error { return s.work(working) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.result.children(ctx, s.frontier, s.task.Generation)
}

func (s *slice) work(ctx context.Context) error {
	for {
		path, ok := s.next()
		if !ok {
			return nil
		}
		select {
		case s.svc.inFlight <- struct{}{}:
		case <-ctx.Done():
			s.done(nil, 0)
			return ctx.Err()
		}
		started := time.Now()
		v := s.svc.visitors.Get().(*visitor) // its buffers are as many as directories are read at a time
		subdirectories, entries, err := v.visit(ctx, s, path)
		s.svc.visitors.Put(v)
		s.result.walked(time.Since(started))
		<-s.svc.inFlight
		if err != nil {
			s.done(nil, 0)
			return err
		}
		if spill := s.done(subdirectories, entries); len(spill) > 0 {
			if err := s.result.children(ctx, spill, s.task.Generation); err != nil {
				return err
			}
		}
	}
}

// next returns a directory to walk; ok is false when the slice is at its end.
func (s *slice) next() (path string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.frontier) == 0 && s.busy > 0 && !s.stopped {
		s.more.Wait()
	}
	if len(s.frontier) == 0 || s.stopped || s.spent() {
		s.stopped = true
		s.more.Broadcast()
		return "", false
	}
	path = s.frontier[len(s.frontier)-1]
	s.frontier = s.frontier[:len(s.frontier)-1]
	s.busy++
	s.directories++
	return path, true
}

// spent reports whether the budget is. A slice walks one directory at least.
func (s *slice) spent() bool {
	return s.directories > 0 && (s.directories >= s.budget.directories || s.entries >= s.budget.entries ||
		s.result.bytes() >= s.budget.resultBytes || time.Now().After(s.end))
}

// done puts a directory's subdirectories on the frontier. When that gets too
// long it returns those that would be walked last, to become child tasks.
func (s *slice) done(subdirectories []string, entries int) (spill []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range slices.Backward(subdirectories) {
		s.frontier = append(s.frontier, path)
	}
	s.busy--
	s.entries += entries
	if len(s.frontier) > maxFrontier {
		n := len(s.frontier) - maxFrontier/2
		spill = slices.Clone(s.frontier[:n])
		s.frontier = slices.Delete(s.frontier, 0, n)
	}
	s.more.Broadcast()
	return spill
}

func (s *slice) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.more.Broadcast()
}

package walk

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/selection"
	"github.com/bctl/bctl/internal/source"
)

var errRootGone = errors.New("the shard's root cannot be read")

// A budget ends a slice: the directories not yet walked become child tasks.
type budget struct {
	directories, entries, resultBytes int
	time                              time.Duration
}

// budgets by generation: the first slices are small, so that a fresh tree is spread over all
// walkers at once; the last is for all later ones.
var budgets = []budget{
	{16, 5_000, sliceBytes, 250 * time.Millisecond},
	{256, 50_000, sliceBytes, time.Second},
	{20_000, 400_000, sliceBytes, 2 * time.Second},
}

// scarceTime is the time of a later slice while tasks are scarce, so that the end of a walk is
// spread, too.
const scarceTime = time.Second

const (
	// sliceBytes of results end a slice, so that most results are one message.
	sliceBytes = 320 << 10
	// maxFrontier directories wait in memory; further ones become child tasks at once.
	maxFrontier = 16 << 10
	// childDirectories is the maximum number of directories that a child task starts from.
	childDirectories = 2048
)

// A slice is one attempt at a walk task.
type slice struct {
	svc         *Service
	flight      *inFlight
	task        *backup.WalkTask
	tree        source.Tree
	match       *selection.Matcher
	snapshotDir string // at the root: holds the source snapshots, and is left out
	marks       *marks
	findings    *findings
	mounts      *mountPoints // the task's, and those found since
	racyFrom    backup.Time  // changes from here on are racy, by the clock that stamps them

	budget  budget
	end     time.Time
	workers *errgroup.Group

	mu          sync.Mutex
	frontier    []string // directories to walk, the next one last
	working     int      // workers
	stopped     bool
	directories int
	entries     int
}

func newSlice(svc *Service, t *inFlight, task *backup.WalkTask, tree source.Tree) (*slice, error) {
	match, err := svc.opts.Compile(task.Job.Selection)
	if err != nil {
		return nil, err
	}
	generation := min(int(task.Generation), len(svc.budgets)-1)
	if svc.opts.Alone {
		generation = len(svc.budgets) - 1
	}
	s := &slice{
		svc: svc, flight: t, task: task, tree: tree, match: match,
		snapshotDir: snapshotDir(task.Job.Snapshots),
		marks:       newMarks(svc.index, task.Job.Shard, task.Job.Base, task.Directories),
		findings:    newFindings(svc, task),
		budget:      svc.budgets[generation],
		mounts:      &mountPoints{paths: slices.Clone(task.Mounts)},
	}
	now, behind := tree.Clock()
	s.racyFrom = backup.TimeOf(now.Add(-behind))
	s.findings.mounts = s.mounts
	s.findings.check = func(ctx context.Context) error { return source.CheckTree(ctx, tree, s.mounts.all()) }
	if task.Generation == 0 {
		s.findings.root = tree.Root()
	}
	if task.Job.Snapshots != "" {
		s.findings.source = task.Job.Source
	}
	if task.Scarce && !svc.opts.Alone {
		s.budget.time = min(s.budget.time, svc.scarceTime)
	}
	// Slices that began together must not end together: their walkers would all wait for new work.
	s.end = time.Now().Add(s.budget.time/2 + rand.N(s.budget.time))
	s.frontier = slices.Clone(task.Directories)
	slices.Reverse(s.frontier)
	return s, nil
}

// snapshotDir returns the name, at the root of a tree, of the directory that contains the source
// snapshots that a pattern finds: some file servers list it, in the live tree and in the snapshots
// themselves. It returns "" for a pattern of one component, because the tree is that directory.
func snapshotDir(pattern string) string {
	first, _, below := strings.Cut(pattern, "/")
	if !below || source.IsPattern(first) {
		return ""
	}
	return first
}

// walk walks down from the task's directories until none is left, the budget is spent, or the
// walker stops.
func (s *slice) walk(ctx context.Context) error {
	var working context.Context
	s.workers, working = errgroup.WithContext(ctx)
	defer context.AfterFunc(working, s.stop)()
	s.working = 1
	s.workers.Go(func() error { return s.work(working, false) })
	if err := s.workers.Wait(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.directories == 0 && len(s.frontier) > 0 {
		return errStopped
	}
	return s.findings.children(ctx, s.frontier, s.task.Generation)
}

// work walks directories until there is none to walk now. It starts other workers as far as there
// are directories and slots for them. entered reports that the worker that started this one has
// already taken a slot for it.
func (s *slice) work(ctx context.Context, entered bool) error {
	for {
		if !entered {
			if err := s.flight.enter(ctx); err != nil {
				return err
			}
		}
		entered = false
		path, ok := s.next()
		if !ok {
			s.flight.leave()
			return nil
		}
		started := time.Now()
		// There are only as many visitors, with their buffers, as directories that are read at a
		// time.
		v := s.svc.visitors.Get().(*visitor)
		subdirectories, entries, err := v.visit(ctx, s, path)
		s.svc.visitors.Put(v)
		s.findings.walked(time.Since(started))
		s.flight.leave()
		if err != nil {
			return err
		}
		surplus, help := s.done(subdirectories, entries)
		for range help {
			s.workers.Go(func() error { return s.work(ctx, true) })
		}
		if len(surplus) > 0 {
			if err := s.findings.children(ctx, surplus, s.task.Generation); err != nil {
				return err
			}
		}
	}
}

// next returns a directory to walk. ok is false, and the worker ends, if there is none now or the
// slice is at its end.
func (s *slice) next() (path string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped && len(s.frontier) > 0 {
		s.stopped = s.spent()
	}
	if len(s.frontier) == 0 || s.stopped {
		s.working--
		return "", false
	}
	path = s.frontier[len(s.frontier)-1]
	s.frontier = s.frontier[:len(s.frontier)-1]
	s.directories++
	return path, true
}

// spent reports whether the budget is used up or the walker stops. A slice walks at least one
// directory, unless it is stopped before.
func (s *slice) spent() bool {
	return s.svc.stopping.Load() || s.directories > 0 && (s.directories >= s.budget.directories || s.entries >= s.budget.entries ||
		s.findings.bytes() >= s.budget.resultBytes || time.Now().After(s.end))
}

// done puts a directory's subdirectories on the frontier. If the frontier becomes too long, it
// returns those that would be walked last, to become child tasks. help is how many more workers
// have room; each already has a slot.
func (s *slice) done(subdirectories []string, entries int) (surplus []string, help int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range slices.Backward(subdirectories) {
		s.frontier = append(s.frontier, path)
	}
	s.entries += entries
	if len(s.frontier) > maxFrontier {
		n := len(s.frontier) - maxFrontier/2
		surplus = slices.Clone(s.frontier[:n])
		s.frontier = slices.Delete(s.frontier, 0, n)
	}
	for !s.stopped && s.working < s.svc.opts.Directories && help < len(s.frontier)-1 && s.flight.tryEnter() {
		s.working++
		help++
	}
	return surplus, help
}

func (s *slice) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
}

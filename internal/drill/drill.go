package drill

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/restore/target"
	"github.com/bctl/bctl/internal/source"
)

// Options say what to drill, and how.
type Options struct {
	Snapshot backup.Snapshot // committed
	Started  time.Time       // of the index's clock
	By       string          // user@host
	TempDir  string          // in which the temporary directory is made
	Seed     uint64
	MaxFiles int   // of the sample
	MaxBytes int64 // of the sample, and of the directory
	// Source opens the file server's tree; nil: nothing is compared with it.
	Source source.Source
	// Progress is called with what the drill does, from any goroutine.
	Progress func(step string, p restore.Progress)

	restored func(path string) // for tests: called before the comparison
}

// Steps of a drill.
const (
	StepChoose    = "choosing"
	StepSample    = "restoring the sample"
	StepDirectory = "restoring a directory"
	StepCompare   = "comparing"
)

// A run is one drill.
type run struct {
	o       Options
	d       restore.Deps
	place   *place
	content *content
	live    *live
	report  *Report
}

// Run makes a drill, and returns its report, which is not signed yet. With an error, nothing is
// known: the errors are ErrNothing, those of restore.Restore, of the store, and of the temporary
// directory. What differs is not an error.
func Run(ctx context.Context, d restore.Deps, o Options) (_ *Report, err error) {
	watched := &watchedStore{Store: d.Store}
	d.Store = watched
	r := &run{o: o, d: d, report: newReport(&d, &o)}
	if o.Source != nil {
		if r.live, err = openLive(ctx, o.Source, &o.Snapshot); err != nil {
			return nil, err
		}
		defer r.live.tree.Close()
		r.report.Source = &Source{}
	}
	if r.place, err = newPlace(o.TempDir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.place.remove()) }()
	r.content = &content{hasher: chunk.NewHasher([32]byte(d.HashKey)), fetch: fetch.New(fetch.Options{
		Index: d.Catalog, Store: d.Store, Repository: d.Repository, Opener: d.Opener, HashKey: d.HashKey,
	})}
	began := time.Now()
	if err := r.drill(ctx); err != nil {
		return nil, err
	}
	if err := watched.failed(); err != nil && r.report.Failures > 0 {
		return nil, fmt.Errorf("the store did not give all that the drill asked for, so that it proves nothing: %w", err)
	}
	r.report.Seconds = time.Since(began).Seconds()
	r.report.Passed = r.report.Failures == 0
	return r.report, nil
}

func newReport(d *restore.Deps, o *Options) *Report {
	s := &o.Snapshot
	return &Report{
		Version: reportVersion, ID: backup.NewDrillID().String(), Repository: d.Repository.String(),
		Filer: s.Filer.Name, Shard: s.Shard.Name, ShardKey: s.Shard.Key.String(), Snapshot: s.ID.String(), Number: int64(s.Number),
		SnapshotStarted: s.Started.UTC(), Started: o.Started.UTC().Truncate(time.Microsecond), By: o.By,
		Seed: o.Seed, MaxFiles: o.MaxFiles, MaxBytes: o.MaxBytes,
	}
}

// drill chooses, restores and compares.
func (r *run) drill(ctx context.Context) error {
	r.o.Progress(StepChoose, restore.Progress{})
	chosen, err := choose(ctx, r.d.Catalog, r.o.Snapshot.ID, r.o.Seed, r.o.MaxFiles, r.o.MaxBytes)
	if err != nil {
		return err
	}
	if err := chosen.provesNothing(&r.o); err != nil {
		return err
	}
	r.report.TooLarge = chosen.tooLarge
	need := chosen.sampleBytes
	if chosen.directory != nil {
		need = max(need, chosen.directory.bytes)
	}
	if err := r.place.room(need); err != nil {
		return err
	}
	// The sample is restored even if it is empty: this reads all listings of the snapshot.
	o := restore.Options{Include: paths(chosen.sample)}
	r.report.Sample.Chosen = len(chosen.sample) > 0
	if err := r.restore(ctx, StepSample, o, chosen.sample, &r.report.Sample); err != nil || chosen.directory == nil {
		return err
	}
	if err := r.place.empty(); err != nil {
		return err
	}
	dir := &r.report.Directory
	dir.Path, dir.Raw, dir.Chosen = chosen.directory.path, backup.RawBase64(chosen.directory.path), true
	return r.restore(ctx, StepDirectory, restore.Options{Path: chosen.directory.path}, nil, dir)
}

// paths selects these paths, and none below them.
type paths map[string]bool

// Matches implements restore.Selector.
func (p paths) Matches(path string, directory bool) bool { return !directory && p[path] }

// restore restores what o selects, and compares it.
func (r *run) restore(ctx context.Context, step string, o restore.Options, only map[string]bool, part *Part) error {
	s := &r.o.Snapshot
	o.Snapshot, o.Pages, o.Compare = s.ID, s.Pages, s.Compare
	o.Target = filepath.Join(r.place.below(), "restored")
	w := &watcher{run: r, step: step, top: o.Path, why: map[string]string{}}
	began := time.Now()
	sum, err := restore.Restore(ctx, r.d, o, w)
	if err != nil {
		return err
	}
	part.Seconds, part.Bytes = time.Since(began).Seconds(), sum.Bytes
	if sum.Files+sum.Links+sum.Directories == 0 && !part.Chosen {
		return nil
	}
	r.o.Progress(StepCompare, restore.Progress{})
	if r.o.restored != nil {
		r.o.restored(o.Target)
	}
	return r.compare(ctx, o, only, part, w.why)
}

func (r *run) compare(ctx context.Context, o restore.Options, only map[string]bool, part *Part, why map[string]string) error {
	root, err := target.Open(target.Options{Path: o.Target})
	if err != nil {
		return err
	}
	defer root.Close()
	c := &comparison{
		catalog: r.d.Catalog, snapshot: o.Snapshot, top: o.Path, only: only, root: root, why: why, report: r.report, part: part,
		content: r.content, probe: &prober{dir: r.place.below(), known: map[string]bool{}}, live: r.live,
	}
	return c.run(ctx)
}

// maxProblems bounds the problems of a restore that are remembered.
const maxProblems = 1000

// A watcher receives the events of a restore.
type watcher struct {
	run  *run
	step string
	top  string

	mu  sync.Mutex
	why map[string]string // by path within the shard
}

// Progress implements restore.Observer.
func (w *watcher) Progress(p restore.Progress) { w.run.o.Progress(w.step, p) }

// Change implements restore.Observer.
func (w *watcher) Change(restore.Change) {}

// Problem implements restore.Observer. Listings that are missing or damaged are failures. What is
// wrong with an entry, the comparison finds: the target may lack nothing but what it cannot have.
func (w *watcher) Problem(p backup.Problem) {
	path := backup.Join(w.top, p.Path)
	if p.Path == "" {
		path = w.top
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case p.Op == restore.OpListing || p.Op == restore.OpOrphan:
		w.run.report.fail(path, "listing", p.Err)
	case len(w.why) < maxProblems:
		w.why[path] = p.Op + ": " + p.Err
	}
}

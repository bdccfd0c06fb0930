package restore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/hardlink"
	"github.com/bctl/bctl/internal/restore/target"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/selection"
	"github.com/bctl/bctl/internal/store"
)

// Overwrite selects what happens to files that exist at the target.
type Overwrite string

const (
	// IfChanged keeps a file whose size and mtime equal the snapshot's, and replaces all others.
	IfChanged Overwrite = "if-changed"
	// IfNewer replaces an existing entry only if the snapshot's has a later mtime. If size and
	// mtime are equal, it does what IfChanged does.
	IfNewer Overwrite = "if-newer"
	// Always replaces every file.
	Always Overwrite = "always"
	// Never keeps every existing file.
	Never Overwrite = "never"
)

// A Catalog is the part of the index that a restore reads.
type Catalog interface {
	browse.Catalog
	fetch.Locator
}

// Deps are the dependencies of a restore.
type Deps struct {
	Catalog    Catalog
	Store      store.Store
	Repository backup.RepositoryID // that the packs belong to
	Opener     *seal.Opener
	HashKey    seal.DedupKey
}

// A Selector selects paths, relative to the directory that is restored. A restore does not descend
// into directories that its Exclude selects.
type Selector interface {
	// Matches reports whether the selector matches path; directory reports whether path is a
	// directory.
	Matches(path string, directory bool) bool
}

// Options select what to restore, where, and how.
type Options struct {
	Snapshot backup.SnapshotID
	// Path is within the shard; "" is all of it. The content of a directory, or one file, is
	// written into Target.
	Path   string
	Target string // directory; created if it does not exist
	// Pages is the page set that the snapshot was committed with; zero if it is not known. When the
	// whole shard is restored, it reveals pages of the index that are missing or foreign.
	Pages backup.PageSet
	// Compare is what the snapshot's backup compared; zero means everything. If it did not compare
	// ctimes, an equal ctime does not prove that two names are one file.
	Compare backup.Compare

	// Counts are what the snapshot has; zero if they are not known. They tell whether the target
	// has room, and how much is left to do.
	Counts backup.Counts
	// IgnoreSpace skips the check that an empty target has room for what is selected.
	IgnoreSpace bool
	// Estimate measures a part of the snapshot beside its restore, for Progress.Total.
	Estimate bool

	Include Selector // nil: everything; otherwise only what it matches, and everything below
	Exclude Selector // nil: nothing
	// Newer restores only entries, other than directories, whose mtime is later, and the
	// directories that contain them; zero: all.
	Newer backup.Time

	// Protected are paths relative to Target at which nothing is restored or deleted: the
	// repository itself, and its keys.
	Protected []string
	// ProtectedInodes are the inodes of everything that is protected, inside Target or not. If the
	// restore meets one of them at another path (another spelling of its name, a hard link, a mount
	// that was made since), it leaves the inode alone and reports a Problem.
	ProtectedInodes map[Inode]struct{}

	Overwrite Overwrite // "": IfChanged
	// InPlace writes only what differs into large files that exist, instead of replacing them. It
	// takes IfChanged or Always: an unfinished file looks newer than the snapshot's.
	InPlace bool
	Delete  bool // remove names that the snapshot does not have
	// LeftOut describes what the backup left out, for the whole shard; nil means nothing. Delete
	// keeps these paths, because the snapshot cannot bring them back.
	LeftOut *selection.Matcher
	// TargetAttributes gives an existing Target the attributes of the directory that is restored.
	// Without it, an existing Target keeps its own. A Target that this restore creates always gets
	// those of the snapshot.
	TargetAttributes bool
	Owners           Owners // nil: owners have the numbers of the snapshot
	DryRun           bool   // only report what would be done
	NoSync           bool   // do not wait at the end until the data is on the disk
	Verify           bool   // compare the content of files that are kept

	Part *Part // nil: the restore has no parts

	Concurrency int // maximum concurrent reads of pack ranges; 0: a few per CPU

	space func(path string) (target.Space, error)           // for tests: target.SpaceAt
	fault func(c target.Call, name string, done bool) error // for tests: see target.Options
}

// An Inode identifies a file or directory of this machine.
type Inode struct{ Device, Number uint64 }

var errProtected = errors.New("it belongs to the repository and is skipped")

// protected returns an error if the existing entry belongs to the repository.
func (o *Options) protected(have *backup.Entry) error {
	if _, ok := o.ProtectedInodes[Inode{have.Device, have.Inode}]; ok {
		return errProtected
	}
	return nil
}

// An Action is what a restore does with one path.
type Action string

// The actions. With DryRun they are what would be done.
const (
	Create  Action = "create"
	Replace Action = "replace" // also a directory that takes the place of something else
	Update  Action = "update"  // what differs is written into the existing file
	Keep    Action = "keep"    // equal already, or kept because of Never
	Link    Action = "link"    // another name of a file
	Delete  Action = "delete"
	// Attributes keeps an existing file or directory and gives it attributes of the snapshot that
	// it did not have.
	Attributes Action = "attributes"
)

// A Change reports what was done with one path.
type Change struct {
	Action Action
	Path   string // relative to the target
	Kind   backup.Kind
	Size   int64 // bytes
}

// Progress is the progress of a restore.
type Progress struct {
	Files int64 // finished, including those that were kept
	Bytes int64 // of these files
	Path  string
	Total Amount // that is selected; zero: not known yet
}

// An Observer receives the events of a restore. Its methods are called from any goroutine.
type Observer interface {
	// Progress reports the current progress.
	Progress(Progress)
	// Change reports one change that was made to the target, or would be made in a dry run.
	Change(Change)
	// Problem reports one thing that could not be restored or set. Its path is relative to what is
	// restored.
	Problem(backup.Problem)
}

// A Summary counts what a restore did.
type Summary struct {
	Files        int64 // written, including symlinks and special files
	Links        int64 // hard links made: further names of files
	Directories  int64 // made
	Kept         int64 // files that were left alone
	KeptDirs     int64 // existing directories whose attributes were not changed
	Attributes   int64 // existing files and directories whose attributes were changed
	Deleted      int64
	Bytes        int64 // written, or to be written in a dry run, without holes
	KeptBytes    int64 // sizes of the files that were left alone
	Problems     int64
	Flawed       int64 // of the problems: flawed entries of the snapshot (flaws.go)
	OwnersNotSet int64 // because only root may set them; one Problem reports all
}

// Add adds the counts of another restore.
func (s *Summary) Add(o *Summary) {
	s.Files += o.Files
	s.Links += o.Links
	s.Directories += o.Directories
	s.Kept += o.Kept
	s.KeptDirs += o.KeptDirs
	s.Attributes += o.Attributes
	s.Deleted += o.Deleted
	s.Bytes += o.Bytes
	s.KeptBytes += o.KeptBytes
	s.Problems += o.Problems
	s.Flawed += o.Flawed
	s.OwnersNotSet += o.OwnersNotSet
}

// A restorer is one run of Restore.
type restorer struct {
	o      Options
	obs    Observer
	cat    Catalog
	fetch  *fetch.Fetcher
	key    seal.DedupKey
	root   *target.Root // nil in a dry run if the target does not exist
	top    *directory   // the target; nil until it is used, and always in a dry run
	links  linkGroups
	taken  inodes
	xattrs xattrCache

	ctx   context.Context // of the run, for callbacks that have none
	abort context.CancelCauseFunc

	mu     sync.Mutex
	active map[*file]struct{} // files between two chunks
	last   string             // path for Progress

	unfinished map[*directory]struct{} // existing directories below the target

	files, linked, directories, kept, keptDirectories, deleted atomic.Int64
	attributes                                                 atomic.Int64
	bytes, keptBytes                                           atomic.Int64
	problems, flawed, owners                                   atomic.Int64
	done, doneBytes                                            atomic.Int64
	openFiles, remembered                                      atomic.Int64

	total atomic.Pointer[Amount] // that is selected; nil: not known yet
}

func newRestorer(d Deps, o Options, obs Observer) *restorer {
	return &restorer{
		o: o, obs: obs, cat: d.Catalog, key: d.HashKey, active: make(map[*file]struct{}),
		fetch: fetch.New(fetch.Options{
			Index: d.Catalog, Store: d.Store, Repository: d.Repository, Opener: d.Opener, HashKey: d.HashKey, Concurrency: o.Concurrency,
		}),
	}
}

// Restore restores what o selects. The Summary is also valid with an error. Errors are
// backup.ErrNotFound, ErrInvalid (the target), ErrWrongKey, ErrUnavailable, an UnfinishedError or a
// SpaceError (nothing was written), syscall.ENOSPC (the target is full), a SyncError, or the
// context's. Problems are not errors.
func Restore(ctx context.Context, d Deps, o Options, obs Observer) (Summary, error) {
	o.setDefaults()
	entry, err := browse.Lookup(ctx, d.Catalog, o.Snapshot, o.Path)
	if err != nil {
		return Summary{}, err
	}
	r := newRestorer(d, o, obs)
	if entry.Kind != backup.Directory {
		r.o.Delete = false // one file says nothing about its siblings
	}
	if r.o.selectsAll() && o.Counts.Files > 0 {
		r.total.Store(&Amount{o.Counts.Files, o.Counts.Bytes})
	}
	if err := r.checkUnfinished(ctx); err != nil {
		return Summary{}, err
	}
	if !o.DryRun {
		if err := r.checkSpace(ctx, &entry); err != nil {
			return Summary{}, err
		}
	}
	if err := r.openTarget(entry.Kind == backup.Directory); err != nil {
		return Summary{}, err
	}
	defer r.closeTarget()
	r.ctx, r.abort = context.WithCancelCause(ctx)
	defer r.abort(nil)
	stopProgress, stopMeasuring := r.reportProgress(), r.measureBeside(r.ctx, &entry)
	err = r.run(r.ctx, entry)
	stopMeasuring()
	stopProgress()
	if err != nil && o.Part == nil { // another process may have taken over a part, and its names
		r.discardActive()
	}
	r.finishTarget(err == nil)
	if err != nil || r.top == nil || entry.Kind != backup.Directory {
		r.abandonTarget()
	}
	if err == nil {
		if o.Part == nil {
			r.reportOwners()
		}
		err = context.Cause(r.ctx) // an error of the final steps
	}
	if err == nil && o.DryRun {
		err = r.checkSpace(ctx, &entry)
	}
	if err == nil && !o.NoSync {
		err = r.syncTarget()
	}
	return r.summary(), err
}

func (o *Options) setDefaults() {
	if o.Overwrite == "" {
		o.Overwrite = IfChanged
	}
	if o.space == nil {
		o.space = target.SpaceAt
	}
}

// run plans and writes until everything is done.
func (r *restorer) run(ctx context.Context, entry backup.Entry) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(bundlesInFlight)
	p := &planner{r: r, bundles: g, bundle: &bundle{}, keyer: hardlink.NewKeyer(r.key, r.o.Compare)}
	var err error
	if p.stale, err = r.flawAbove(gctx); err == nil {
		err = p.plan(gctx, entry)
	}
	if waited := g.Wait(); err == nil || errors.Is(err, context.Canceled) {
		err = errors.Join(waited, err)
	}
	// The cause is a better error than that of the goroutine that noticed it first.
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// discardActive removes unfinished files. All writers have ended.
func (r *restorer) discardActive() {
	for f := range r.active {
		f.discard()
	}
}

// full reports whether err means that no further file can be written.
func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS)
}

// problem reports what could not be restored at path. An error that makes continuing pointless ends
// the run.
func (r *restorer) problem(path, op string, err error) {
	if full(err) {
		r.abort(fmt.Errorf("write to target %s: %w", r.o.Target, err))
		return
	}
	r.attribute(path, op, err)
}

// attribute reports an attribute that could not be set. It never ends the run: "no space left on
// device" is also the error of an extended attribute for which an inode has no room.
func (r *restorer) attribute(path, op string, err error) {
	switch {
	case errors.Is(err, target.ErrOwner):
		r.owners.Add(1)
	case errors.Is(err, context.Canceled): // Restore's error reports it
	default:
		text := err.Error()
		if errors.Is(err, fs.ErrPermission) && r.root != nil {
			text += r.root.Flags(path)
		}
		r.problems.Add(1)
		r.obs.Problem(backup.Problem{Path: path, Op: op, Err: text})
	}
}

func (r *restorer) reportOwners() {
	if n := r.owners.Load(); n > 0 {
		r.problems.Add(1)
		r.obs.Problem(OwnersProblem(n))
	}
}

// OwnersProblem is the one problem that reports all owners that were not set.
func OwnersProblem(n int64) backup.Problem {
	return backup.Problem{Op: "chown", Err: fmt.Sprintf("%v; entries that belong to the user who restored them: %d", target.ErrOwner, n)}
}

func (r *restorer) change(a Action, path string, e *backup.Entry) {
	switch a {
	case Keep:
		r.kept.Add(1)
		r.keptBytes.Add(e.Size)
	case Link:
		r.linked.Add(1)
	case Delete:
		r.deleted.Add(1)
	case Attributes:
		r.attributes.Add(1)
	default:
		r.files.Add(1)
	}
	r.obs.Change(Change{a, path, e.Kind, e.Size})
}

func (r *restorer) setPath(path string) {
	r.mu.Lock()
	r.last = path
	r.mu.Unlock()
}

func (r *restorer) progress() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := Progress{Files: r.done.Load(), Bytes: r.doneBytes.Load(), Path: r.last}
	if total := r.total.Load(); total != nil {
		p.Total = *total
	}
	return p
}

// reportProgress reports progress to the observer ten times per second until stop is called.
func (r *restorer) reportProgress() (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				r.obs.Progress(r.progress())
			case <-quit:
				r.obs.Progress(r.progress())
				return
			}
		}
	}()
	return func() { close(quit); <-ended }
}

func (r *restorer) summary() Summary {
	return Summary{
		Files: r.files.Load(), Links: r.linked.Load(), Directories: r.directories.Load(),
		Kept: r.kept.Load(), KeptDirs: r.keptDirectories.Load(), Attributes: r.attributes.Load(), Deleted: r.deleted.Load(), Bytes: r.bytes.Load(), KeptBytes: r.keptBytes.Load(),
		Problems: r.problems.Load(), Flawed: r.flawed.Load(), OwnersNotSet: r.owners.Load(),
	}
}

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
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/restore/target"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/selection"
	"github.com/bctl/bctl/internal/store"
)

// Overwrite says what becomes of files that are at the target already.
type Overwrite string

const (
	// IfChanged leaves a file alone whose size and mtime are the snapshot's; others are replaced.
	IfChanged Overwrite = "if-changed"
	// Always replaces every file.
	Always Overwrite = "always"
	// Never keeps whatever there is.
	Never Overwrite = "never"
)

// A Catalog is what restore asks of the index.
type Catalog interface {
	browse.Catalog
	fetch.Locator
}

// Deps are what a restore works with.
type Deps struct {
	Catalog    Catalog
	Store      store.Store
	Repository backup.RepositoryID // of the packs
	Opener     *seal.Opener
	HashKey    seal.DedupKey
}

// A Selector says which paths are meant, relative to what is restored.
// directory paths that are not selected are not entered.
type Selector interface {
	// Excluded reports whether a path is meant; directory says what it is.
	Excluded(path string, directory bool) bool
}

// Options say what to restore, where to, and how.
type Options struct {
	Snapshot backup.SnapshotID
	Path     string // within the shard; "" is all of it. A directory's content, or one file, goes into Target.
	Target   string // directory; made where it is not there
	// Pages is what the snapshot was committed with; zero: not known. Where all of the shard is restored, pages of the
	// index that are missing or others show.
	Pages backup.PageSet
	// Compare is what the snapshot's backup compared; zero: everything. Where it did not compare ctimes, an equal ctime
	// does not prove that two names are one file.
	Compare backup.Compare

	Include Selector // nil: everything; else only what it "excludes" and what is below
	Exclude Selector // nil: nothing

	// Protected are paths relative to Target at which nothing is restored or deleted: the repository itself, and its keys.
	Protected []string
	// ProtectedInodes are those of all that is protected, in Target or not. It is left alone, and reported, at whatever other
	// path the restore meets it: another spelling of its name, a hard link, a mount that was made since.
	ProtectedInodes map[Inode]struct{}

	Overwrite Overwrite // "": IfChanged
	Delete    bool      // remove what the snapshot does not have
	// LeftOut is what the backup left out, of the whole shard: Delete leaves that alone, for the snapshot cannot bring it
	// back. nil: nothing.
	LeftOut *selection.Matcher
	// TargetAttributes gives a Target that was there the attributes of the directory that is restored. Without it, such a
	// Target keeps its own; one that this restore makes has those of the snapshot in any case.
	TargetAttributes bool
	DryRun           bool // only say what would be done
	NoSync           bool // do not wait at the end until the data is on the disk
	Verify           bool // compare the content of files that are left alone

	Concurrency int // ranges of packs in flight; 0: a few for each CPU

	fault func(c target.Call, name string, done bool) error // for tests: target.Options
}

// An Inode identifies a file or directory of this machine.
type Inode struct{ Device, Number uint64 }

var errProtected = errors.New("it belongs to the repository, and is left alone")

// protected returns an error if what is at the target belongs to the repository.
func (o *Options) protected(have *backup.Entry) error {
	if _, ok := o.ProtectedInodes[Inode{have.Device, have.Inode}]; ok {
		return errProtected
	}
	return nil
}

// An Action is what becomes of one path.
type Action string

// The actions. With DryRun they are what would be done.
const (
	Create  Action = "create"
	Replace Action = "replace" // a directory, too: it takes the place of something else
	Keep    Action = "keep"    // right already, or kept because of Never
	Link    Action = "link"    // another name of a file
	Delete  Action = "delete"
	// Attributes: what was there stays, a directory too, and gets attributes of the snapshot that it did not have.
	Attributes Action = "attributes"
)

// A Change says what was done with one path.
type Change struct {
	Action Action
	Path   string // relative to the target
	Kind   backup.Kind
	Size   int64 // bytes
}

// Progress is how far a restore is.
type Progress struct {
	Files int64 // that are done, those that were left alone included
	Bytes int64 // of them
	Path  string
}

// An Observer is told what happens, from any goroutine.
type Observer interface {
	// Progress is how far it is now.
	Progress(Progress)
	// Change is one thing that was done to the target, or would be in a dry run.
	Change(Change)
	// Problem is one thing that could not be restored or set, path relative to what is restored.
	Problem(backup.Problem)
}

// A Summary is what a restore did.
type Summary struct {
	Files        int64 // written, symlinks and special files among them
	Links        int64 // further names of files
	Directories  int64
	Kept         int64 // files left alone
	Attributes   int64 // files and directories that were there and got other attributes
	Deleted      int64
	Bytes        int64 // written, or to be written in a dry run, without holes
	KeptBytes    int64 // sizes of the files left alone
	Problems     int64
	Flawed       int64 // of these: entries that the snapshot has not as the file server had them
	OwnersNotSet int64 // because only root may; one Problem for all
}

// A restorer is one run of Restore.
type restorer struct {
	o      Options
	obs    Observer
	cat    Catalog
	fetch  *fetch.Fetcher
	key    seal.DedupKey
	root   *target.Root // nil: a dry run to a target that is not there
	top    *directory   // the target; nil: it is not used yet, and in a dry run never
	links  linkGroups
	taken  inodes
	xattrs xattrCache

	ctx   context.Context // of the run, for what is called back without one
	abort context.CancelCauseFunc

	mu     sync.Mutex
	active map[*file]struct{} // files between two chunks
	last   string             // path for Progress

	unfinished map[*directory]struct{} // that were there, below the target

	files, linked, directories, kept, deleted atomic.Int64
	attributes                                atomic.Int64
	bytes, keptBytes                          atomic.Int64
	problems, flawed, owners                  atomic.Int64
	done, doneBytes                           atomic.Int64
	openFiles, remembered                     atomic.Int64
}

// Restore restores what o says. The Summary is valid with an error, too:
// backup.ErrNotFound, ErrInvalid (the target), ErrWrongKey, ErrUnavailable,
// syscall.ENOSPC where the target is full, a SyncError, or the context's. Problems are not an error.
func Restore(ctx context.Context, d Deps, o Options, obs Observer) (Summary, error) {
	if o.Overwrite == "" {
		o.Overwrite = IfChanged
	}
	entry, err := browse.Lookup(ctx, d.Catalog, o.Snapshot, o.Path)
	if err != nil {
		return Summary{}, err
	}
	r := &restorer{
		o: o, obs: obs, cat: d.Catalog, key: d.HashKey, active: make(map[*file]struct{}),
		fetch: fetch.New(fetch.Options{
			Index: d.Catalog, Store: d.Store, Repository: d.Repository, Opener: d.Opener, HashKey: d.HashKey, Concurrency: o.Concurrency,
		}),
	}
	if entry.Kind != backup.Directory {
		r.o.Delete = false // one file says nothing of what is beside it
	}
	if err := r.openTarget(entry.Kind == backup.Directory); err != nil {
		return Summary{}, err
	}
	defer r.closeTarget()
	r.ctx, r.abort = context.WithCancelCause(ctx)
	defer r.abort(nil)
	stopTelling := r.tellProgress()
	err = r.run(r.ctx, entry)
	stopTelling()
	if err != nil {
		r.discardActive()
	}
	r.finishTarget(err == nil)
	if err != nil || r.top == nil || entry.Kind != backup.Directory {
		r.abandonTarget()
	}
	if err == nil {
		r.reportOwners()
		err = context.Cause(r.ctx) // what has come up in the end
	}
	if err == nil && !o.NoSync {
		err = r.syncTarget()
	}
	return r.summary(), err
}

// run plans and writes until all is done.
func (r *restorer) run(ctx context.Context, entry backup.Entry) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(windowsInFlight)
	p := &planner{r: r, windows: g, window: &window{}, hasher: chunk.NewHasher([32]byte(r.key))}
	var err error
	if p.stale, err = r.flawAbove(gctx); err == nil {
		err = p.plan(gctx, entry)
	}
	if waited := g.Wait(); err == nil || errors.Is(err, context.Canceled) {
		err = errors.Join(waited, err)
	}
	// What ended the run is better told by its cause than by who noticed first.
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// discardActive removes what is half written. All writers have ended.
func (r *restorer) discardActive() {
	for f := range r.active {
		f.discard()
	}
}

// full are the errors after which no further file can be written.
func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EROFS)
}

// problem reports what could not be restored at path; what makes going on pointless ends the run.
func (r *restorer) problem(path, op string, err error) {
	if full(err) {
		r.abort(fmt.Errorf("write to target %s: %w", r.o.Target, err))
		return
	}
	r.attribute(path, op, err)
}

// attribute reports an attribute that could not be set. It never ends the run: an extended attribute for which an inode has no
// room is "no space left on device" as well.
func (r *restorer) attribute(path, op string, err error) {
	switch {
	case errors.Is(err, target.ErrOwner):
		r.owners.Add(1)
	case errors.Is(err, context.Canceled): // Restore's error says so
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
		r.obs.Problem(backup.Problem{Op: "chown", Err: fmt.Sprintf("%v; entries that belong to the user who restored them: %d", target.ErrOwner, n)})
	}
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

func (r *restorer) at(path string) {
	r.mu.Lock()
	r.last = path
	r.mu.Unlock()
}

func (r *restorer) progress() Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Progress{Files: r.done.Load(), Bytes: r.doneBytes.Load(), Path: r.last}
}

// tellProgress tells the observer ten times a second until stop.
func (r *restorer) tellProgress() (stop func()) {
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
		Kept: r.kept.Load(), Attributes: r.attributes.Load(), Deleted: r.deleted.Load(), Bytes: r.bytes.Load(), KeptBytes: r.keptBytes.Load(),
		Problems: r.problems.Load(), Flawed: r.flawed.Load(), OwnersNotSet: r.owners.Load(),
	}
}

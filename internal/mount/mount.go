package mount

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

const (
	// requestBytes is the size of the kernel's largest reads, and concurrency the number of ranges
	// of packs that are read at a time.
	requestBytes = 256 << 10
	concurrency  = 2
	// tryAgain is the pause between two tries of an index or a store that does not answer.
	tryAgain = time.Second
	// grace is how long a request goes on after a signal has interrupted the process that made it:
	// the process may ignore the signal, and would then see an error.
	grace = time.Second
)

// A Catalog is the part of the index that a mount reads.
type Catalog interface {
	browse.Catalog
	fetch.Locator
	// Snapshots and ListShards are as in index.Catalog.
	Snapshots(ctx context.Context, f index.SnapshotFilter) ([]backup.Snapshot, error)
	ListShards(ctx context.Context, f index.ShardFilter) ([]index.ShardStatus, error)
}

// Options select what to mount, where, and how.
type Options struct {
	Mountpoint string // an empty directory
	Catalog    Catalog
	Store      store.Store
	Repository backup.RepositoryID // that the packs belong to
	Opener     *seal.Opener        // nil: there is no identity, and content is refused
	HashKey    seal.DedupKey
	// Hold keeps a snapshot from being forgotten until end is called. It fails with
	// backup.ErrNotFound if the snapshot was forgotten already. nil: nothing is kept.
	Hold func(ctx context.Context, id backup.SnapshotID) (end func(), err error)
	// AllowOther lets other users use the mount, with the permissions that the files have. Without
	// it, only the user who mounts may, and reads everything.
	AllowOther bool
	Patience   time.Duration // how long a request waits for an index or a store that does not answer
	Log        *slog.Logger
}

// Run mounts, calls ready, and serves until ctx is done or somebody unmounts. Errors are
// backup.ErrInvalid (the mountpoint), and those of mounting.
func Run(ctx context.Context, o Options, ready func() error) error {
	return run(ctx, o, func(*fileSystem) error { return ready() }, nil)
}

// run is Run; change, which tests set, changes the file system before it is mounted.
func run(ctx context.Context, o Options, ready func(*fileSystem) error, change func(*fileSystem)) error {
	if err := checkMountpoint(o.Mountpoint); err != nil {
		return err
	}
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	f := newFileSystem(serving, &o)
	if change != nil {
		change(f)
	}
	server, err := fuse.NewServer(f, o.Mountpoint, f.mountOptions())
	if err != nil {
		return fmt.Errorf("mount %s: %w (is FUSE installed, /dev/fuse there, and may this user mount?)", o.Mountpoint, err)
	}
	released := make(chan struct{})
	go func() {
		defer close(released)
		f.views.release(serving)
	}()
	trimmed := make(chan struct{})
	go func() {
		defer close(trimmed)
		f.trim(serving, server)
	}()
	served := make(chan struct{})
	go func() {
		defer close(served)
		server.Serve()
	}()
	if err = server.WaitMount(); err == nil {
		err = ready(f)
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case <-served: // unmounted by somebody else
		}
	}
	err = errors.Join(err, unmount(server, served, o.Mountpoint))
	end()
	if f.chunks != nil {
		f.chunks.end()
	}
	<-trimmed
	<-released
	return err
}

// checkMountpoint fails unless path is an empty directory.
func checkMountpoint(path string) error {
	list, err := os.ReadDir(path)
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("mountpoint %s is not a directory: %w", path, backup.ErrInvalid)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("mountpoint %s does not exist (create it with mkdir): %w", path, backup.ErrInvalid)
	case errors.Is(err, unix.ENOTCONN):
		return fmt.Errorf("mountpoint %s is that of a mount whose process has died (fusermount3 -u %[1]s removes it): %w", path, backup.ErrInvalid)
	case err != nil:
		return fmt.Errorf("mountpoint: %w", err)
	case len(list) > 0:
		return fmt.Errorf("mountpoint %s is not empty: %w", path, backup.ErrInvalid)
	}
	return nil
}

func newFileSystem(ctx context.Context, o *Options) *fileSystem {
	f := &fileSystem{
		RawFileSystem: fuse.NewDefaultRawFileSystem(), o: o, ctx: ctx, started: time.Now(),
		owner: fuse.Owner{Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())},
		nodes: newNodes(), directories: &directories{catalog: o.Catalog, known: map[directoryKey]*list.Element{}},
		views:   &views{hold: o.Hold, key: o.HashKey, ctx: ctx, byID: map[backup.SnapshotID]*view{}},
		handles: map[uint64]any{},
	}
	if o.Opener != nil {
		f.chunks = &chunks{ctx: ctx, known: map[backup.ChunkID]*part{}}
		fetcher := fetch.New(fetch.Options{
			Index: o.Catalog, Store: o.Store, Repository: o.Repository, Opener: o.Opener, HashKey: o.HashKey, Concurrency: concurrency,
			Frame: f.chunks.frame,
		})
		f.chunks.fetch = fetcher
		f.chunks.get1 = func(ctx context.Context, wants []fetch.Want) error {
			return f.patiently(ctx, func(ctx context.Context) error { return fetcher.Get(ctx, wants) })
		}
	}
	return f
}

func (f *fileSystem) mountOptions() *fuse.MountOptions {
	o := &fuse.MountOptions{
		Name: "bctl", FsName: "bctl", Options: []string{"ro"}, AllowOther: f.o.AllowOther, MaxWrite: requestBytes, MaxReadAhead: requestBytes,
		DisableSplice: true, // of content in memory, each read would fill a pipe in vain
		DirectMount:   os.Geteuid() == 0, DirectMountFlags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_RDONLY,
	}
	if f.o.AllowOther {
		// The kernel then also checks ACLs.
		o.Options, o.EnableAcl = append(o.Options, "default_permissions"), true
	}
	return o
}

// unmount unmounts, also if files are still open.
func unmount(server *fuse.Server, served <-chan struct{}, mountpoint string) error {
	select {
	case <-served:
		return nil
	default:
	}
	err := server.Unmount()
	if err == nil {
		return nil
	}
	if lazily := unix.Unmount(mountpoint, unix.MNT_DETACH); lazily != nil {
		return fmt.Errorf("unmount %s: %w (fusermount3 -uz %[1]s unmounts it)", mountpoint, err)
	}
	return nil
}

// trim asks the kernel to forget files if it knows too many.
func (f *fileSystem) trim(ctx context.Context, server *fuse.Server) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.nodes.excess:
		}
		for _, old := range f.nodes.oldest() {
			server.EntryNotify(old.parent, old.name)
		}
	}
}

// patiently calls do until the index and the store answer.
func (f *fileSystem) patiently(ctx context.Context, do func(ctx context.Context) error) error {
	began := time.Now()
	for {
		err := do(ctx)
		if !errors.Is(err, backup.ErrUnavailable) || ctx.Err() != nil || time.Since(began) >= f.o.Patience {
			return err
		}
		f.o.Log.Warn("reads in the mount wait for the index or the store", "error", err)
		loop.Pause(ctx, tryAgain)
	}
}

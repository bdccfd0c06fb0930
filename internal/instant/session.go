package instant

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/mount"
	"github.com/bctl/bctl/internal/restore"
)

const (
	// tryAgain is the pause before a restore is continued that had no index or store.
	tryAgain = 10 * time.Second
	// lookAgain is the pause between two tries to unmount what processes use.
	lookAgain = time.Second
	// shrinkEvery is how often the kernel is asked to forget names that nobody uses. Each of them
	// takes memory here, too, and the overlay keeps the view from getting rid of it.
	shrinkEvery = 10 * time.Second
)

// A session is the time in which the target is mounted.
type session struct {
	place *place
	d     Deps
	o     Options
	obs   Observer
	queue queue

	viewed  chan error // what the view ended with
	endView context.CancelFunc
	lower   int // what is shown below
}

// run shows the target until everything is restored and nobody uses it.
func (s *session) run(ctx context.Context) (sum Summary, err error) {
	d, o := s.restore()
	// Nobody is invited to a target that cannot hold what is to come.
	if err := restore.CheckSpace(ctx, d, o); err != nil {
		s.place.abandon()
		return sum, s.named(err)
	}
	if err := s.startView(ctx); err != nil {
		s.place.abandon()
		return sum, err
	}
	mounted := false
	defer func() {
		if !mounted {
			err = errors.Join(err, s.stopView(false))
			s.place.abandon()
		}
	}()
	if err := s.prepareUpper(); err != nil {
		return sum, err
	}
	flags, err := s.place.mount(s.lower)
	unix.Close(s.lower)
	if err != nil {
		return sum, err
	}
	mounted = true
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if err = s.obs.Mounted(); err == nil {
		stop := s.shrink(ctx, flags)
		sum, err = s.fill(ctx)
		stop()
	}
	stays, failed := s.unmount(ctx, err == nil)
	if stays {
		s.obs.Stays()
	}
	return sum, errors.Join(err, failed, s.stopView(stays))
}

// startView mounts the view, and opens what is restored in it.
func (s *session) startView(ctx context.Context) error {
	p := s.place
	at := p.in(viewName)
	for unix.Unmount(at, unix.MNT_DETACH) == nil { // of a killed run
	}
	if err := makeDirectory(at); err != nil {
		return err
	}
	ctx, s.endView = context.WithCancel(context.WithoutCancel(ctx))
	s.viewed = make(chan error, 1)
	ready := make(chan struct{})
	o := mount.Options{
		Mountpoint: at, Catalog: &viewCatalog{s.d.Catalog, &s.queue}, Store: &viewStore{s.d.Store, &s.queue}, Repository: s.d.Repository, Opener: s.d.Opener, HashKey: s.d.HashKey,
		AllowOther: true, // the kernel then sees the ACLs; only root can reach the view
		Patience:   s.o.Patience, Log: s.o.Log,
	}
	go func() { s.viewed <- mount.Run(ctx, o, func() error { close(ready); return nil }) }()
	select {
	case <-ready:
	case err := <-s.viewed:
		s.endView()
		return err
	}
	path := at + "/ids/" + s.o.Snapshot.String()
	if s.o.Path != "" {
		path += "/" + s.o.Path
	}
	var err error
	if s.lower, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return errors.Join(fmt.Errorf("open the snapshot: %w", err), s.stopView(false))
	}
	return nil
}

// stopView unmounts the view. With force, its requests fail from now on: a mount that processes use
// would keep it.
func (s *session) stopView(force bool) error {
	if force {
		_ = unix.Unmount(s.place.in(viewName), unix.MNT_FORCE|unix.MNT_DETACH)
	}
	s.endView()
	return <-s.viewed
}

// prepareUpper makes the directory for what users change. It becomes the top of the target, so it
// has the attributes of the snapshot's, or those that the target had before.
func (s *session) prepareUpper() error {
	p := s.place
	if err := makeDirectory(p.in(workName)); err != nil || p.has(upperName) {
		return err
	}
	if err := os.RemoveAll(p.in(upperName + newSuffix)); err != nil {
		return err
	}
	if err := os.Mkdir(p.in(upperName+newSuffix), 0o700); err != nil {
		return err
	}
	upper, err := openIn(p.private, upperName+newSuffix)
	if err != nil {
		return err
	}
	defer unix.Close(upper)
	from := p.fd
	if p.created {
		from = s.lower
	}
	copyAttributes(from, upper, p.attribute)
	return os.Rename(p.in(upperName+newSuffix), p.in(upperName))
}

// mount mounts the overlay over the target.
func (p *place) mount(lower int) (flags uintptr, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(p.fd, &st); err != nil {
		return 0, err
	}
	// Nobody but root reaches the target without the overlay. The end gives it its attributes.
	if err := unix.Fchmod(p.fd, 0o700); err != nil {
		return 0, fmt.Errorf("target %s: %w", p.path, err)
	}
	flags = uintptr(st.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,redirect_dir=on,index=off,metacopy=off,xino=off",
		procPath(lower), p.in(upperName), p.in(workName))
	err = withoutHandles(func() error { return unix.Mount(source, procPath(p.fd), "overlay", flags, options) })
	if err != nil {
		return 0, fmt.Errorf("mount an overlay at %s: %w (overlayfs needs a local file system, such as ext4, XFS or Btrfs; the kernel's log has details; bctl restore without --instant needs no mount)", p.path, err)
	}
	return flags, nil
}

// withoutHandles calls do without the capability to open files by their handles. An overlay that is
// mounted like that neither stores nor looks up the handles of files below it. Those of the view
// mean something else in the next run.
func withoutHandles(do func() error) error {
	runtime.LockOSThread()
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&h, &have[0]); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	without := have
	without[0].Effective &^= 1 << unix.CAP_DAC_READ_SEARCH
	err := unix.Capset(&h, &without[0])
	if err == nil {
		err = do()
		if failed := unix.Capset(&h, &have[0]); failed != nil {
			return errors.Join(err, failed) // the thread ends with its goroutine
		}
	}
	runtime.UnlockOSThread()
	return err
}

// shrink asks the kernel from time to time to forget names that nobody uses: a remount does.
func (s *session) shrink(ctx context.Context, flags uintptr) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		loop.Every(ctx, shrinkEvery, func() {
			if err := unix.Mount("", s.place.path, "", unix.MS_REMOUNT|flags, ""); err != nil {
				s.o.Log.Debug("the overlay cannot be remounted", "error", err)
			}
		})
	}()
	return func() { cancel(); <-done }
}

// fill restores, again as long as the index or the store does not answer.
func (s *session) fill(ctx context.Context) (Summary, error) {
	d, o := s.restore()
	for {
		sum, err := restore.Restore(ctx, d, o, s.obs)
		switch {
		case err == nil:
			return sum, nil
		case !errors.Is(err, backup.ErrUnavailable) || ctx.Err() != nil:
			return sum, s.named(err)
		}
		s.obs.Unavailable(err)
		loop.Pause(ctx, tryAgain)
	}
}

// restore returns what the background work gives to package restore.
func (s *session) restore() (restore.Deps, restore.Options) {
	d := restore.Deps{
		Catalog: s.d.Catalog, Store: &backgroundStore{s.d.Store, &s.queue}, Repository: s.d.Repository, Opener: s.d.Opener, HashKey: s.d.HashKey,
	}
	return d, restore.Options{
		Snapshot: s.o.Snapshot, Path: s.o.Path, Target: s.place.in(treeName), Pages: s.o.Pages, Compare: s.o.Compare, NoSync: s.o.NoSync, Concurrency: s.o.Concurrency,
		Counts: s.o.Counts, IgnoreSpace: s.o.IgnoreSpace,
	}
}

// named gives an error the name of the target instead of that of the tree.
func (s *session) named(err error) error {
	return &namedError{err, strings.NewReplacer(s.place.in(treeName), s.place.path)}
}

// A namedError has the name of the target instead of that of the tree.
type namedError struct {
	error
	names *strings.Replacer
}

func (e *namedError) Error() string { return e.names.Replace(e.error.Error()) }

func (e *namedError) Unwrap() error { return e.error }

// unmount unmounts the overlay. If everything is restored, it waits until no process uses it.
// Otherwise a busy mount stays, because what is written there would be lost to the next run.
func (s *session) unmount(ctx context.Context, complete bool) (stays bool, err error) {
	path, told := s.place.path, false
	for {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil:
			return false, nil
		case !errors.Is(err, unix.EBUSY):
			return true, fmt.Errorf("unmount %s: %w", path, err)
		case !complete:
			return true, nil // an error has ended the restore
		case ctx.Err() != nil:
			return true, context.Cause(ctx)
		case !told:
			told = true
			s.obs.Busy()
		}
		loop.Pause(ctx, lookAgain)
	}
}

// makeDirectory makes a directory unless it exists.
func makeDirectory(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Package embedded runs all of bctl in one process: a NATS server without a port, a walker, a
// reader and a committer, over an index and a store that the caller opened. They are the services
// of a fleet; this package only connects them.
//
// The process holds a lock on the shard during the backup. The operating system releases the lock
// when the process dies. A process that gets the lock and finds a running snapshot therefore knows
// that the snapshot's process is dead, and ends that snapshot. The new snapshot reflects the
// present tree and the present request, and takes over the content that the other one stored for
// files that have not changed since (I5, I14).
package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/committer/commit"
	"github.com/bctl/bctl/services/reader/read"
	"github.com/bctl/bctl/services/walker/walk"
)

// Options are the components that the services use. The caller closes them.
type Options struct {
	Index      index.Index
	Store      store.Store
	Source     source.Source
	Repository backup.Repository
	WorkerKey  seal.WorkerKey
	Keys       journal.Keys // for the store's copy of the index
	Log        *slog.Logger
	LockDir    string // directory of the shards' lock files; created if necessary
	// OnLost, if not nil, is called after a backup with the number of packs in use that are missing
	// from the store or incomplete.
	OnLost func(packs int)

	Walker    walk.Options
	Reader    read.Options
	Committer commit.Options
}

const (
	// lease is long, because no message is lost while this process lives.
	lease         = 10 * time.Minute
	linger        = 5 * time.Millisecond
	uploads       = 1
	queued        = 32 // tasks and batches in the streams, which are in memory here
	progressEvery = 200 * time.Millisecond
	startTimeout  = 10 * time.Second
	streamBytes   = 256 << 20 // maximum total size of messages in memory
)

// Backup makes a snapshot of the shard, with the ID, Selection, AllowShrink, NewRoot and Tags of s.
// It returns the ended snapshot: Committed, or Failed with its Reason. The error is
// backup.ErrRunning if another process is backing up the shard; ctx's error if ctx was done, in
// which case the snapshot stays running until the next Backup ends it; or that of a failed
// component. watch, if not nil, is called from one goroutine.
func Backup(ctx context.Context, o Options, shard backup.Shard, s backup.Snapshot, watch func(backup.Progress)) (backup.Snapshot, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	unlock, err := lockShard(o.LockDir, shard)
	if err != nil {
		return backup.Snapshot{}, err
	}
	defer unlock()
	snap, err := begin(ctx, &o, shard, s)
	if err != nil {
		return snap, err
	}
	if err = checkInPlace(o.Index); err == nil {
		err = run(ctx, o, snap, watch)
	}
	if moved := checkInPlace(o.Index); moved != nil {
		return snap, moved // whatever its state: the next command does not find it there
	}
	ended, readErr := o.Index.Snapshot(context.WithoutCancel(ctx), snap.ID)
	switch {
	case readErr == nil && ended.State == backup.Committed:
		return ended, nil // even after a later failure or interrupt
	case err != nil:
		return snap, err
	}
	return ended, readErr
}

// begin begins the snapshot, after it has ended one that an interrupted backup of the shard left.
func begin(ctx context.Context, o *Options, shard backup.Shard, s backup.Snapshot) (backup.Snapshot, error) {
	snap, err := o.Index.BeginSnapshot(ctx, shard.ID, s, time.Time{})
	if !errors.Is(err, backup.ErrRunning) {
		return snap, err
	}
	o.Log.Info("the last backup of this shard was interrupted; its stored content is used", "snapshot", snap.ID.Short(), "started", snap.Started)
	if err := o.Index.Fail(ctx, snap.ID, "interrupted", time.Time{}); err != nil {
		return snap, err
	}
	return o.Index.BeginSnapshot(ctx, shard.ID, s, time.Time{})
}

// run runs the services until the snapshot has ended.
func run(ctx context.Context, o Options, snap backup.Snapshot, watch func(backup.Progress)) error {
	ns, stopServer, err := startServer(filepath.Join(o.LockDir, fmt.Sprintf("nats-%d", snap.Shard.ID)))
	if err != nil {
		return err
	}
	defer stopServer()
	conn, err := flow.Connect(flow.Options{InProcess: ns, Name: "bctl", Memory: true, Log: o.Log})
	if err != nil {
		return err
	}
	defer conn.Close()
	// This machine serves every site: it reaches everything that the user configured for it.
	site := backup.SiteName(snap.Filer.Site)
	o.Walker.Site, o.Reader.Site = site, site
	// The client of NATS gives up after 5 s if ctx has no deadline, and a busy machine may need
	// more.
	making, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := conn.EnsureStreams(making, []string{site}); err != nil {
		return err
	}
	if watch != nil {
		stop, err := conn.SubscribeProgress(func(p *backup.Progress) { watch(*p) })
		if err != nil {
			return err
		}
		defer stop()
	}
	return runServices(ctx, o, conn, snap)
}

// runServices starts the services. It sends them no work: the committer finds the root walk task
// that BeginSnapshot has put into the index, and sends it to the walker. It stops the services when
// the snapshot has ended, when ctx is done, or when one of them fails permanently, because in one
// process nothing could resolve the failure meanwhile.
func runServices(ctx context.Context, o Options, conn *flow.Conn, snap backup.Snapshot) error {
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	broken := func(err error) { stop(err) }
	ended := func(backup.SnapshotID) { stop(errEnded) }

	report := flow.NewReporter(conn, "embedded")
	o.Walker.Alone, o.Walker.OnRetry, o.Walker.Log = true, broken, o.Log
	walker := walk.New(conn, o.Index, o.Source, report, o.Walker)
	if o.Reader.Linger == 0 {
		o.Reader.Linger = linger
	}
	if o.Reader.Uploads == 0 {
		o.Reader.Uploads = uploads
	}
	o.Reader.StopTimeout = -1 // the committer stops too, so nothing would process its results
	o.Reader.Alone, o.Reader.OnRetry, o.Reader.Log = true, broken, o.Log
	reader, err := read.New(read.Parts{
		Conn: conn, Index: o.Index, Source: o.Source, Store: o.Store,
		Repository: o.Repository, Key: o.WorkerKey, Report: report,
	}, o.Reader)
	if err != nil {
		return err
	}
	o.Committer.Snapshots, o.Committer.Alone = []backup.SnapshotID{snap.ID}, true
	o.Committer.Lease, o.Committer.QueueLease, o.Committer.Queued = lease, lease, queued
	o.Committer.Appliers = 1 // SQLite has one writer
	o.Committer.OnEnd, o.Committer.OnRetry, o.Committer.Log = ended, broken, o.Log
	committer := commit.New(commit.Parts{Conn: conn, Index: o.Index, Store: o.Store, Keys: o.Keys}, o.Committer)

	var services sync.WaitGroup
	services.Go(func() { committer.Run(working) })
	services.Go(func() { walker.Run(working) })
	services.Go(func() { reader.Run(working) })
	services.Go(func() { report.Run(working, progressEvery) })
	services.Go(func() { watchIndex(working, o.Index, snap.ID, broken) })
	services.Wait()
	if lost := reader.LostPacks(); lost > 0 && o.OnLost != nil {
		o.OnLost(lost)
	}
	if cause := context.Cause(working); !errors.Is(cause, errEnded) {
		return cause
	}
	if err := committer.Record(ctx); err != nil && ctx.Err() == nil {
		// The next backup writes it.
		o.Log.Warn("writing records of snapshots to the store failed, will retry", "error", err)
	}
	return nil
}

var errEnded = errors.New("the snapshot has ended")

// startServer starts a NATS server that listens on no port and keeps its streams in memory.
// JetStream requires a directory all the same. dir belongs to the shard, so that the remains of a
// killed process do not interfere.
func startServer(dir string) (ns *server.Server, stop func(), err error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, nil, err
	}
	ns, err = server.NewServer(&server.Options{
		ServerName: "embedded", DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, JetStreamMaxMemory: streamBytes, StoreDir: dir,
	})
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop = func() {
		ns.Shutdown()
		ns.WaitForShutdown()
		_ = os.RemoveAll(dir) // the next backup of the shard tries again
	}
	ns.Start()
	if !ns.ReadyForConnections(startTimeout) {
		stop()
		return nil, nil, fmt.Errorf("the NATS server in this process did not start: %w", backup.ErrUnavailable)
	}
	return ns, stop, nil
}

// lockShard takes the shard's lock, which the operating system releases when the process dies.
func lockShard(dir string, shard backup.Shard) (unlock func(), err error) {
	path := lockPath(dir, shard)
	unlock, err = lockFile(path)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("shard %s: %w (another process holds %s)", shard.Name, backup.ErrRunning, path)
	}
	return unlock, err
}

// lockFile takes the lock of a file, which it creates with its directory, or fails with
// syscall.EWOULDBLOCK.
func lockFile(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	// The file gets a second kind of lock, which can be queried without being taken. If the file
	// system implements both kinds as one (NFS), this lock is refused, and a query sees the first
	// one instead.
	_ = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	return func() { _ = f.Close() }, nil
}

// IsBackingUp reports whether a process on this machine is backing up the shard, or ending a
// snapshot of it. It takes no lock, so it does not interfere with other processes.
func IsBackingUp(lockDir string, shard backup.Shard) (bool, error) {
	return isLocked(lockPath(lockDir, shard))
}

// isBackingUpAny is IsBackingUp for all shards that have locks in the directory.
func isBackingUpAny(lockDir string) (bool, error) {
	names, err := fs.Glob(os.DirFS(lockDir), "shard-*.lock")
	for _, name := range names {
		if locked, err := isLocked(filepath.Join(lockDir, name)); err != nil || locked {
			return locked, err
		}
	}
	return false, err
}

func isLocked(path string) (bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	held := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &held); err != nil {
		return false, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return held.Type != unix.F_UNLCK, nil
}

func lockPath(dir string, shard backup.Shard) string {
	return filepath.Join(dir, fmt.Sprintf("shard-%d.lock", shard.ID))
}

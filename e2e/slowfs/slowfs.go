//go:build linux

package slowfs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A Latency is how long a filer takes for each kind of request.
type Latency struct {
	Stat time.Duration // a LOOKUP or GETATTR, a READLINK, one of an extended attribute
	Open time.Duration // of a file; directories are opened without a request
	Read time.Duration // one request, of at most 128 KiB
	List time.Duration // a page of a directory
}

// Options describe the filer at the beginning.
type Options struct {
	Latency Latency
	// Parallel is how many requests are served at a time. The others wait, so that the filer
	// becomes slower with more requests. 0: any number.
	Parallel int
	// AttrTimeout is the time for which the kernel may keep attributes. It saves
	// half the requests of a walk. They have no latency, but cost CPU time.
	AttrTimeout time.Duration
	// Xattrs passes extended attributes on. Without it, the filer reports that it has none, and
	// the kernel does not ask again.
	Xattrs bool
}

// An FS is a mounted file system. Its methods may be called from any goroutine.
type FS struct {
	Dir string // where it is mounted

	load   *load
	nodes  *nodes
	server *fuse.Server
	device uint64 // of the mount
}

// Start shows dir at mountpoint, an empty directory, until Close.
func Start(dir, mountpoint string, o Options) (*FS, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	f := &FS{Dir: mountpoint, load: newLoad(o), nodes: newNodes(dir)}
	raw := &operations{
		RawFileSystem: fuse.NewDefaultRawFileSystem(), load: f.load, nodes: f.nodes,
		attrTimeout: o.AttrTimeout, handles: map[uint64]*handle{},
	}
	mount := &fuse.MountOptions{
		FsName: dir, Name: "slowfs", DisableReadDirPlus: true, DisableXAttrs: !o.Xattrs,
	}
	if os.Geteuid() == 0 {
		mount.AllowOther, mount.DirectMountStrict = true, true
		mount.DirectMountFlags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
	} else {
		mount.Options = []string{"ro"}
	}
	if f.server, err = fuse.NewServer(raw, mountpoint, mount); err != nil {
		return nil, fmt.Errorf("mount slowfs at %s: %w", mountpoint, err)
	}
	go f.server.Serve() // until Close unmounts it
	if err := f.server.WaitMount(); err != nil {
		return nil, errors.Join(fmt.Errorf("mount slowfs at %s: %w", mountpoint, err), f.Close())
	}
	var st unix.Stat_t
	if err := unix.Stat(mountpoint, &st); err != nil {
		return nil, errors.Join(fmt.Errorf("stat %s: %w", mountpoint, err), f.Close())
	}
	f.device = st.Dev
	return f, nil
}

// Close unmounts the file system, even if it is in use. Waiting calls get an error.
func (f *FS) Close() error {
	f.load.close()
	var err error
	if os.Geteuid() == 0 {
		err = unix.Unmount(f.Dir, unix.MNT_FORCE|unix.MNT_DETACH)
	} else {
		// Best effort: without it, open files keep the file system until they are closed.
		_ = os.WriteFile(fmt.Sprintf("/sys/fs/fuse/connections/%d/abort", f.device), []byte("1"), 0)
		err = fusermount(f.Dir)
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", f.Dir, err)
	}
	f.server.Wait()
	return nil
}

// fusermount unmounts lazily, for users who may not unmount themselves.
func fusermount(mountpoint string) error {
	program, err := exec.LookPath("fusermount3")
	if err != nil {
		program = "fusermount"
	}
	if output, err := exec.Command(program, "-uz", mountpoint).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(output)))
	}
	return nil
}

// SetLatency changes the latency from the next request on.
func (f *FS) SetLatency(l Latency) { f.load.setLatency(l) }

// SetParallel changes how many requests are served at a time, from the next one on.
func (f *FS) SetParallel(n int) { f.load.setParallel(n) }

// Hang makes every request for what is at a path, or below it, wait until
// Resume. The path is relative to the root, and may be below .snapshot; "" is all.
func (f *FS) Hang(path string) { f.load.hang(path) }

// Resume ends all that Hang did.
func (f *FS) Resume() { f.load.resume() }

// Fail makes requests of this kind for a path fail, until lift is called. The
// kernel passes the error on, with two exceptions: it answers from its caches, and
// errors of reads become EIO.
func (f *FS) Fail(r Request, path string, errno syscall.Errno) (lift func()) {
	return f.load.fail(fault{kind(r), path}, errno)
}

// Counters returns the numbers of requests so far.
func (f *FS) Counters() Counters { return f.load.counters() }

// Peak returns the largest number of requests that were under way at once
// since the last call of Peak.
func (f *FS) Peak() int { return f.load.takePeak() }

// AddSnapshot shows a directory, that may be anywhere, as .snapshot/name. The
// directory .snapshot is in no listing, as on many filers.
func (f *FS) AddSnapshot(name, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	return f.nodes.addSnapshot(name, dir)
}

// RenameSnapshot renames a snapshot, as rotation does. Open files stay valid.
func (f *FS) RenameSnapshot(from, to string) error { return f.nodes.renameSnapshot(from, to) }

// RemoveSnapshot removes a snapshot. Calls for its open files fail with ESTALE from then on.
func (f *FS) RemoveSnapshot(name string) error { return f.nodes.removeSnapshot(name) }

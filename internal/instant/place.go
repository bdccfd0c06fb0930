package instant

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore"
)

// Private is the name of the directory in the target that a run works in.
const Private = restore.InstantName

// The names in the private directory.
const (
	viewName     = "view"
	upperName    = "upper"
	workName     = "work"
	treeName     = "tree"
	snapshotName = "snapshot"
	planName     = "plan"
	steppedName  = "stepped" // the plan, when all its steps were carried out
	newSuffix    = ".new"    // of what is not finished
)

// source is the name of the overlay's device in /proc/self/mountinfo.
const source = "bctl-instant"

// A place is an open target. Its descriptors lead below what is mounted over it.
type place struct {
	path    string // without symlinks
	fd      int    // the target
	private int    // the private directory
	created bool   // the target did not exist before the first run
	fresh   bool   // the private directory did not exist before this run

	obs      Observer
	problems int64 // that were reported, besides those of the restore
}

// A subject is what is restored into a place.
type subject struct {
	Snapshot string `json:"snapshot"`
	Path     []byte `json:"path"`
	Created  bool   `json:"created"` // the target did not exist
}

// openPlace opens or creates the target, and locks it.
func openPlace(path string, obs Observer) (*place, error) {
	p := &place{fd: -1, private: -1, obs: obs}
	if err := p.open(path); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *place) open(path string) (err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		p.created = true
		if err := os.MkdirAll(path, 0o700); err != nil {
			return fmt.Errorf("make target %s: %w", path, err)
		}
	}
	if p.path, err = filepath.Abs(path); err == nil {
		p.path, err = filepath.EvalSymlinks(p.path)
	}
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	if err := endKilled(p.path); err != nil {
		return err
	}
	if p.fd, err = unix.Open(p.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
		if errors.Is(err, unix.ENOTDIR) {
			err = fmt.Errorf("it is not a directory: %w", backup.ErrInvalid)
		}
		return fmt.Errorf("target %s: %w", path, err)
	}
	return p.openPrivate()
}

// openPrivate opens or creates the private directory.
func (p *place) openPrivate() error {
	var before unix.Stat_t
	if err := unix.Fstat(p.fd, &before); err != nil {
		return fmt.Errorf("target %s: %w", p.path, err)
	}
	_ = unix.Unlinkat(p.fd, Private, unix.AT_REMOVEDIR) // an empty one says nothing
	names, err := namesIn(p.fd)
	if err != nil {
		return fmt.Errorf("target %s: %w", p.path, err)
	}
	p.fresh = !slices.Contains(names, Private)
	switch {
	case len(names) > 0 && p.fresh:
		return fmt.Errorf("target %s is not empty, and bctl restore --instant needs a new or empty directory: %w", p.path, backup.ErrInvalid)
	case p.fresh:
		if err := unix.Mkdirat(p.fd, Private, 0o700); err != nil {
			return fmt.Errorf("write to target %s: %w", p.path, err)
		}
		if err := setTime(p.fd, backup.Time{Sec: before.Mtim.Sec, Nsec: uint32(before.Mtim.Nsec)}); err != nil {
			return fmt.Errorf("target %s: %w", p.path, err)
		}
	}
	if p.private, err = openIn(p.fd, Private); err != nil {
		return fmt.Errorf("target %s: %w", p.path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(p.private, &st); err != nil || st.Uid != 0 || st.Mode&0o077 != 0 {
		return fmt.Errorf("%s is not of bctl: %w", filepath.Join(p.path, Private), errors.Join(err, backup.ErrInvalid))
	}
	if err := unix.Flock(p.private, unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return &runningError{p.path}
	}
	if len(names) > 1 && !p.isRestored() {
		return fmt.Errorf("target %s has more in it than an interrupted restore: %w", p.path, backup.ErrInvalid)
	}
	return nil
}

// A runningError is backup.ErrRunning for a restore instead of a snapshot.
type runningError struct{ target string }

func (e *runningError) Error() string {
	return fmt.Sprintf("another restore to target %s is running", e.target)
}

func (e *runningError) Is(target error) bool { return target == backup.ErrRunning }

// claim notes what is restored here, and fails if it is something else than before.
func (p *place) claim(s subject) error {
	data, err := os.ReadFile(p.in(snapshotName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.Created = p.created
		if data, err = json.Marshal(s); err == nil {
			err = p.write(snapshotName, func(w io.Writer) error { _, err := w.Write(data); return err })
		}
		return err
	case err != nil:
		return err
	}
	var have subject
	if err := json.Unmarshal(data, &have); err != nil {
		return fmt.Errorf("%s in target %s is damaged: %w", filepath.Join(Private, snapshotName), p.path, err)
	}
	p.created = have.Created
	if have.Snapshot == s.Snapshot && bytes.Equal(have.Path, s.Path) {
		return nil
	}
	what := have.Snapshot
	if len(have.Path) > 0 {
		what += ":" + string(have.Path)
	}
	return fmt.Errorf("target %s is being restored from %q: finish that first, with bctl restore --instant %[2]q --target %[1]q: %[3]w", p.path, what, backup.ErrInvalid)
}

// write writes a file of the private directory in one step.
func (p *place) write(name string, content func(io.Writer) error) error {
	f, err := os.OpenFile(p.in(name+newSuffix), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	b := bufio.NewWriter(f)
	err = content(b)
	err = errors.Join(err, b.Flush())
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(p.in(name+newSuffix), p.in(name))
	}
	if err == nil {
		err = unix.Fsync(p.private)
	}
	if err != nil {
		err = fmt.Errorf("write to target %s: %w", p.path, err)
	}
	return err
}

// in returns a path that leads into the private directory, whatever is mounted over the target.
func (p *place) in(name string) string { return procPath(p.private) + "/" + name }

func (p *place) has(name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(p.private, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// isRestored reports whether nothing is missing, and nothing is mounted any more.
func (p *place) isRestored() bool { return p.has(planName) || p.has(steppedName) }

// problem reports something that could not be restored.
func (p *place) problem(path, op string, err error) {
	p.problems++
	p.obs.Problem(backup.Problem{Path: path, Op: op, Err: err.Error()})
}

// attribute is problem for an attribute of the target itself.
func (p *place) attribute(op string, err error) { p.problem("", op, err) }

// abandon removes what this run has made, before anything was restored.
func (p *place) abandon() {
	if !p.fresh || p.remove() != nil || !p.created {
		return
	}
	_ = unix.Rmdir(p.path)
}

func (p *place) close() {
	for _, fd := range []int{p.private, p.fd} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// isMounted reports whether the overlay of a run is mounted at the path.
func isMounted(path string) (bool, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	at := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(path)
	mounted := false
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 10 || fields[4] != at {
			continue
		}
		_, kind, _ := strings.Cut(line, " - ")
		mounted = strings.HasPrefix(kind, "overlay "+source+" ") // the last one is on top
	}
	return mounted, nil
}

// endKilled unmounts what a killed run has left mounted. It fails if the run is not dead, or if
// processes use the mount.
func endKilled(path string) error {
	mounted, err := isMounted(path)
	if err != nil || !mounted {
		return err
	}
	// A live run answers that there is no such name.
	var st unix.Stat_t
	absent := filepath.Join(path, Private+"-"+strconv.Itoa(os.Getpid()))
	if err := unix.Lstat(absent, &st); err == nil || errors.Is(err, unix.ENOENT) {
		return &runningError{path}
	}
	if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount what a killed restore has left at %s: %w (end the processes that fuser -vm %[1]s lists)", path, err)
	}
	return nil
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

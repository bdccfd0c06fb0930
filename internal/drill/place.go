//go:build linux

package drill

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore/target"
)

// placePrefix begins the names of the temporary directories of drills.
const placePrefix = "bctl-drill-"

// A place is the temporary directory of one drill. It is locked while the drill runs. All content
// is in the directory below it, because package target locks that one. Beside that is the mark, a
// file with the name of the place: a directory without it was not made by a drill, and is not
// touched.
type place struct {
	path string
	lock *os.File
}

const (
	contentName = "content"
	markName    = "made-by-bctl-drill"
)

// markText is the content of the mark of a place. A copy of a place has another name.
func markText(path string) string { return "bctl-drill v1\n" + filepath.Base(path) + "\n" }

// below returns the path of the directory with the content.
func (p *place) below() string { return filepath.Join(p.path, contentName) }

// newPlace makes a place in dir, and removes those that killed drills have left there.
func newPlace(dir string) (*place, error) {
	if err := removeLeftovers(dir); err != nil {
		return nil, err
	}
	path, err := os.MkdirTemp(dir, placePrefix)
	if err != nil {
		return nil, fmt.Errorf("make the drill's temporary directory: %w", err)
	}
	lock, err := lockPlace(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), os.Remove(path))
	}
	p := &place{path, lock}
	err = os.WriteFile(filepath.Join(path, markName), []byte(markText(path)), 0o400)
	if err == nil {
		err = os.Mkdir(p.below(), 0o700)
	}
	if err != nil {
		return nil, errors.Join(err, p.remove())
	}
	return p, nil
}

// lockPlace opens and locks a directory. It fails if another process has locked it.
func lockPlace(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// isMarked reports whether a drill has made the directory, and nobody has put anything beside its
// content.
func (p *place) isMarked() bool {
	names, err := os.ReadDir(p.path)
	if err != nil || slices.ContainsFunc(names, func(e os.DirEntry) bool { return e.Name() != contentName && e.Name() != markName }) {
		return false
	}
	info, err := os.Lstat(filepath.Join(p.path, markName))
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(markText(p.path))) {
		return false
	}
	text, err := os.ReadFile(filepath.Join(p.path, markName))
	return err == nil && string(text) == markText(p.path)
}

// removeLeftovers removes the marked places of this user that no process has locked.
func removeLeftovers(dir string) error {
	names, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("the directory for temporary files: %w", err)
	}
	for _, entry := range names {
		if !strings.HasPrefix(entry.Name(), placePrefix) || !entry.IsDir() {
			continue
		}
		p := &place{path: filepath.Join(dir, entry.Name())}
		if p.lock, err = lockPlace(p.path); err != nil {
			continue // a drill runs there
		}
		var st unix.Stat_t
		if unix.Fstat(int(p.lock.Fd()), &st) != nil || int(st.Uid) != os.Geteuid() || !p.isMarked() {
			p.lock.Close()
			continue
		}
		if err := p.remove(); err != nil {
			return err
		}
	}
	return nil
}

// spareBytes must be free beside what is restored.
const spareBytes = 64 << 20

// room fails unless there is room for a restore of so many bytes.
func (p *place) room(bytes int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(p.path, &st); err != nil {
		return fmt.Errorf("free space of %s: %w", p.path, err)
	}
	free := int64(min(st.Bavail, math.MaxInt64/uint64(max(st.Bsize, 1)))) * st.Bsize
	if need := sum(bytes, spareBytes); free < need {
		return fmt.Errorf("the drill needs %s in %s, which has %s free: name another directory (--temp-dir), or restore less (--max-size, --files): %w",
			humanize.IBytes(uint64(need)), filepath.Dir(p.path), humanize.IBytes(uint64(max(free, 0))), unix.ENOSPC)
	}
	return nil
}

// empty removes everything in the place.
func (p *place) empty() error {
	root, err := target.Open(target.Options{Path: p.below()})
	if err != nil {
		return err
	}
	defer root.Close()
	at, err := root.Dir("")
	if err != nil {
		return err
	}
	defer at.Release()
	var failed error
	how := target.Removal{
		Keep:    func(string, *backup.Entry) bool { return false },
		Removed: func(string, *backup.Entry) {},
		Failed: func(path string, err error) {
			if failed == nil {
				failed = fmt.Errorf("remove what the drill has restored: %s: %w", filepath.Join(p.below(), path), err)
			}
		},
	}
	var names []string
	if err := at.Names(func(name string) error { names = append(names, name); return nil }); err != nil {
		return err
	}
	for _, name := range names {
		at.RemoveAll(name, &how)
	}
	return failed
}

// remove removes the place.
func (p *place) remove() error {
	defer p.lock.Close()
	_, err := os.Lstat(p.below())
	if err == nil {
		if err = p.empty(); err == nil {
			err = os.Remove(p.below())
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// The mark comes last: without it, nothing else would be removed.
	if err := os.Remove(filepath.Join(p.path, markName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Remove(p.path)
}

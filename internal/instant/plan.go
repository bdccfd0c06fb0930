package instant

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// A plan is a list of steps that put into upper what it does not have of tree. It is written to a
// file before the first step, because the steps change what it is computed from. Each step can be
// repeated. The format of overlayfs is documented in the kernel's
// Documentation/filesystems/overlayfs.rst.

// A step changes one name in upper. Paths are relative to upper and tree.
type step struct {
	Do   string      `json:"do"`
	At   []byte      `json:"at"`             // in upper
	From []byte      `json:"from,omitempty"` // in tree
	Time backup.Time `json:"time,omitzero"`
}

// What a step does.
const (
	// doMove moves From to At, where nothing is.
	doMove = "move"
	// doUncover removes the overlay's mark that a name was deleted.
	doUncover = "uncover"
	// doClean removes the overlay's attributes, and sets those attributes of From that the overlay
	// would have taken for its own.
	doClean = "clean"
	// doTime sets the mtime of a directory, after all other steps in it. The top always has one.
	doTime = "time"
)

// A header is the first line of a plan.
type header struct {
	Problems int64 `json:"problems"` // of the restore
}

// A planner walks through upper, which has what users touched, and through what tree has beside it.
type planner struct {
	tree int // descriptor
	out  *json.Encoder
}

// plan writes the plan. From then on, nothing is mounted over the target any more.
func (p *place) plan(problems int64) error {
	return p.write(planName, func(w io.Writer) error {
		upper, err := openIn(p.private, upperName)
		if err != nil {
			return err
		}
		defer unix.Close(upper)
		tree, err := openIn(p.private, treeName)
		if err != nil && !gone(err) {
			return err
		}
		if err == nil {
			defer unix.Close(tree)
		}
		pl := &planner{tree: tree, out: json.NewEncoder(w)}
		if err := pl.out.Encode(header{problems}); err != nil {
			return err
		}
		return pl.directory(upper, "", tree, "")
	})
}

// directory plans a directory of upper. lower is the one that the overlay has merged with it, and
// lowerPath its path in tree; -1: there is none.
func (pl *planner) directory(upper int, at string, lower int, lowerPath string) error {
	var st unix.Stat_t
	if err := unix.Fstat(upper, &st); err != nil {
		return err
	}
	names, err := namesIn(upper)
	if err != nil {
		return err
	}
	have := make(map[string]struct{}, len(names))
	changed := false
	for _, name := range names {
		have[name] = struct{}{}
		uncovers, err := pl.entry(upper, backup.Join(at, name), name, lower, lowerPath)
		if err != nil {
			return fmt.Errorf("%q: %w", backup.Join(at, name), err)
		}
		changed = changed || uncovers
	}
	if lower >= 0 {
		moves, err := pl.moveOthers(have, at, lower, lowerPath)
		if err != nil {
			return err
		}
		changed = changed || moves
	}
	if err := pl.clean(procPath(upper), at, lower >= 0, lowerPath); err != nil {
		return err
	}
	if !changed && at != "" {
		return nil
	}
	return pl.out.Encode(step{Do: doTime, At: []byte(at), Time: backup.Time{Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec)}})
}

// moveOthers plans what only tree has of a directory.
func (pl *planner) moveOthers(have map[string]struct{}, at string, lower int, lowerPath string) (moves bool, err error) {
	err = eachName(lower, func(name string) error {
		if _, ok := have[name]; ok {
			return nil
		}
		moves = true
		return pl.out.Encode(step{Do: doMove, At: []byte(backup.Join(at, name)), From: []byte(backup.Join(lowerPath, name))})
	})
	return moves, err
}

// entry plans one name of upper. It is true if the name is only a mark.
func (pl *planner) entry(upper int, at, name string, lower int, lowerPath string) (uncovers bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstatat(upper, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, err
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case kind == unix.S_IFCHR && st.Rdev == 0:
		return true, pl.out.Encode(step{Do: doUncover, At: []byte(at)})
	case kind != unix.S_IFDIR:
		var below unix.Stat_t
		both := lower >= 0 && unix.Fstatat(lower, name, &below, unix.AT_SYMLINK_NOFOLLOW) == nil && below.Mode&unix.S_IFMT == kind
		return false, pl.clean(procPath(upper)+"/"+name, at, both, backup.Join(lowerPath, name))
	}
	child, err := openIn(upper, name)
	if err != nil {
		return false, err
	}
	defer unix.Close(child)
	below, belowPath, err := pl.below(child, name, lower, lowerPath)
	if err != nil {
		return false, err
	}
	if below >= 0 {
		defer unix.Close(below)
	}
	return false, pl.directory(child, at, below, belowPath)
}

// below opens what the overlay has merged with a directory of upper; -1: nothing.
func (pl *planner) below(child int, name string, lower int, lowerPath string) (fd int, path string, err error) {
	opaque, err := xattr(procPath(child), overlayPrefix+"opaque")
	switch {
	case err == nil && string(opaque) == "y":
		return -1, "", nil
	case err != nil && !errors.Is(err, unix.ENODATA):
		return -1, "", err
	}
	redirect, err := xattr(procPath(child), overlayPrefix+"redirect")
	switch {
	case errors.Is(err, unix.ENODATA):
	case err != nil:
		return -1, "", err
	case strings.HasPrefix(string(redirect), "/"): // from the top
		path = strings.TrimPrefix(string(redirect), "/")
		fd, err = openBelow(pl.tree, path)
		return exists(fd, path, err)
	default:
		name = string(redirect)
	}
	if lower < 0 {
		return -1, "", nil
	}
	if err := backup.CheckName(name); err != nil {
		return -1, "", err
	}
	fd, err = openIn(lower, name)
	return exists(fd, backup.Join(lowerPath, name), err)
}

// exists makes -1 of a directory that is not there, or is none.
func exists(fd int, path string, err error) (int, string, error) {
	if gone(err) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return -1, "", nil
	}
	return fd, path, err
}

// clean plans the removal of the overlay's attributes. both: tree has the same kind of entry.
func (pl *planner) clean(path, at string, both bool, lowerPath string) error {
	names, err := xattrsOf(path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, overlayPrefix) {
			s := step{Do: doClean, At: []byte(at)}
			if both {
				s.From = []byte("/" + lowerPath)
			}
			return pl.out.Encode(s)
		}
	}
	return nil
}

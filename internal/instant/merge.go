package instant

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

// renamedSuffix is for an entry at the top whose name is taken.
const renamedSuffix = "-renamed"

// A merger carries out a plan.
type merger struct {
	place       *place
	upper, tree parents
	stepped     bool // all steps of the plan were carried out before

	fault func() error // for tests: called before each change
}

// change returns the error that a test injects in place of a change.
func (m *merger) change() error {
	if m.fault == nil {
		return nil
	}
	return m.fault()
}

// run makes one tree, and moves it into the target. It returns the number of problems that the
// restore had.
func (m *merger) run(ctx context.Context, sync bool) (problems int64, err error) {
	p := m.place
	m.stepped = !p.has(planName)
	name := planName
	if m.stepped {
		name = steppedName
	}
	f, err := os.Open(p.in(name))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	upper, err := openIn(p.private, upperName)
	if gone(err) { // the last steps were done
		return m.readProblems(f, p.remove())
	}
	if err != nil {
		return 0, err
	}
	defer unix.Close(upper)
	tree, err := openIn(p.private, treeName)
	if err != nil && !gone(err) {
		return 0, err
	}
	if tree >= 0 {
		defer unix.Close(tree)
	}
	m.upper, m.tree = parents{root: upper, fd: -1}, parents{root: tree, fd: -1}
	defer m.upper.close()
	defer m.tree.close()
	problems, top, err := m.steps(ctx, f)
	if err == nil && !m.stepped {
		err = os.Rename(p.in(planName), p.in(steppedName))
	}
	if err == nil {
		err = m.moveUp(ctx, upper, top)
	}
	if err == nil && sync {
		err = unix.Syncfs(p.fd)
	}
	if err == nil {
		err = m.change()
	}
	if err == nil {
		err = p.remove()
	}
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("finish target %s: %w", p.path, err)
	}
	return problems, err
}

func (m *merger) readProblems(f io.Reader, err error) (int64, error) {
	var h header
	return h.Problems, errors.Join(err, json.NewDecoder(bufio.NewReader(f)).Decode(&h))
}

// steps carries out all steps, unless that was done. top is the time of the top directory.
func (m *merger) steps(ctx context.Context, f io.Reader) (problems int64, top backup.Time, err error) {
	in := json.NewDecoder(bufio.NewReader(f))
	var h header
	if err := in.Decode(&h); err != nil {
		return 0, top, err
	}
	for {
		var s step
		switch err := in.Decode(&s); {
		case errors.Is(err, io.EOF):
			return h.Problems, top, nil
		case err != nil:
			return h.Problems, top, err
		case ctx.Err() != nil:
			return h.Problems, top, context.Cause(ctx)
		}
		if s.Do == doTime && len(s.At) == 0 {
			top = s.Time
		}
		if m.stepped {
			continue
		}
		if err := m.step(&s); err != nil {
			return h.Problems, top, fmt.Errorf("%s %q: %w", s.Do, s.At, err)
		}
	}
}

func (m *merger) step(s *step) error {
	if err := m.change(); err != nil {
		return err
	}
	at := string(s.At)
	if s.Do == doTime {
		fd, err := openBelow(m.upper.root, at)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return setTime(fd, s.Time)
	}
	dir, name, err := m.upper.of(at)
	if err != nil {
		return err
	}
	switch s.Do {
	case doMove:
		from, old, err := m.tree.of(string(s.From))
		if err == nil {
			err = unix.Renameat2(from, old, dir, name, unix.RENAME_NOREPLACE)
		}
		if gone(err) { // it was moved before
			err = unix.Fstatat(dir, name, &unix.Stat_t{}, unix.AT_SYMLINK_NOFOLLOW)
		}
		return err
	case doUncover:
		if err := unix.Unlinkat(dir, name, 0); !gone(err) {
			return err
		}
		return nil
	case doClean:
		return m.clean(dir, name, string(s.From))
	}
	return fmt.Errorf("%q is no step: %w", s.Do, backup.ErrCorrupt)
}

// clean removes the overlay's attributes of a name, and gives it those that it has in tree.
func (m *merger) clean(dir int, name, from string) error {
	path := procPath(dir) + "/" + name
	names, err := xattrsOf(path)
	if err != nil {
		return err
	}
	for _, name := range names {
		rest, ok := strings.CutPrefix(name, overlayPrefix)
		if !ok {
			continue
		}
		if strings.HasPrefix(rest, "overlay.") { // the file's own
			value, err := xattr(path, name)
			if err == nil {
				err = unix.Lsetxattr(path, "trusted."+rest, value, 0)
			}
			if err != nil {
				return err
			}
		}
		if err := unix.Lremovexattr(path, name); err != nil && !errors.Is(err, unix.ENODATA) {
			return err
		}
	}
	return m.carry(path, from)
}

// carry sets those attributes of a path in tree that the overlay takes for its own: it does not
// copy them.
func (m *merger) carry(path, from string) error {
	if from == "" || m.tree.root < 0 {
		return nil
	}
	dir, old, err := m.tree.of(strings.TrimPrefix(from, "/"))
	if err != nil {
		return err
	}
	below := procPath(dir) + "/" + old
	names, err := xattrsOf(below)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, overlayPrefix) {
			continue
		}
		value, err := xattr(below, name)
		if err == nil {
			err = unix.Lsetxattr(path, name, value, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// moveUp moves everything from upper into the target, which then gets the attributes of upper.
func (m *merger) moveUp(ctx context.Context, upper int, top backup.Time) error {
	p := m.place
	names, err := namesIn(upper)
	if err != nil {
		return err
	}
	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := m.change(); err != nil {
			return err
		}
		err := unix.Renameat2(upper, name, p.fd, name, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EEXIST) { // root made it after the unmounting, or it is the private directory
			to := name + renamedSuffix
			p.problem(name, "rename", fmt.Errorf("something else has this name; it is now %q", to))
			err = unix.Renameat2(upper, name, p.fd, to, unix.RENAME_NOREPLACE)
		}
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	if err := m.change(); err != nil {
		return err
	}
	copyAttributes(upper, p.fd, p.attribute)
	if err := setTime(p.fd, top); err != nil {
		p.attribute("set time", err)
	}
	return os.Remove(p.in(upperName))
}

// remove removes the private directory. The file of the plan goes last: it says that nothing is
// missing.
func (p *place) remove() error {
	var st unix.Stat_t
	if err := unix.Fstat(p.fd, &st); err != nil {
		return err
	}
	for _, name := range []string{treeName, workName, viewName, upperName + newSuffix, snapshotName + newSuffix, snapshotName, planName + newSuffix, planName, steppedName} {
		if err := os.RemoveAll(p.in(name)); err != nil {
			return err
		}
	}
	if err := unix.Unlinkat(p.fd, Private, unix.AT_REMOVEDIR); err != nil {
		return fmt.Errorf("remove %s: %w", filepath.Join(p.path, Private), err)
	}
	return setTime(p.fd, backup.Time{Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec)})
}

// parents opens the directories of paths, and keeps the last one.
type parents struct {
	root int // -1: there is nothing
	path string
	fd   int // -1: none is open
}

// of returns the directory of a path, and its name there. The path "" is "." in the root.
func (c *parents) of(path string) (dir int, name string, err error) {
	if c.root < 0 {
		return -1, "", os.ErrNotExist
	}
	if path == "" {
		return c.root, ".", nil
	}
	parent, name := backup.Split(path)
	if err := backup.CheckName(name); err != nil {
		return -1, "", err
	}
	if c.fd < 0 || c.path != parent {
		c.close()
		if c.fd, err = openBelow(c.root, parent); err != nil {
			return -1, "", err
		}
		c.path = parent
	}
	return c.fd, name, nil
}

func (c *parents) close() {
	if c.fd >= 0 {
		unix.Close(c.fd)
	}
	c.fd = -1
}

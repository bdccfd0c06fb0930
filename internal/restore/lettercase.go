package restore

import (
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"

	"github.com/bctl/bctl/internal/restore/target"
)

// A target may ignore the case of names: CIFS, vfat and NTFS do, and ext4 can. A lookup of a name
// of the snapshot then finds an entry with a different name, perhaps one of another file of the
// snapshot. Such a name is reported as a problem and never replaces the existing entry.

var (
	errOtherCase = errors.New("the target ignores case, and has an entry whose name differs only in case: " +
		"rename or remove it, or restore to a target that distinguishes case")
	errSharedName = errors.New("the target ignores case, and another file of the snapshot already has this name there")
)

// letterCase is what is known about the case of names in an existing directory.
type letterCase struct {
	mu    sync.Mutex
	known bool
	names map[uint64]struct{} // hashes of all names, if the directory ignores case
}

// checkCase returns an error if the directory does not list name although a lookup finds it: the
// existing name then differs in case.
func (d *directory) checkCase(at *target.Dir, name string) error {
	if target.SwapCase(name) == name {
		return nil
	}
	c := &d.letterCase
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		ignores, err := at.IgnoresCase(name)
		if err != nil {
			return err
		}
		if ignores {
			c.names = make(map[uint64]struct{})
			if err := at.Names(func(name string) error { c.names[hashOf(name)] = struct{}{}; return nil }); err != nil {
				return err
			}
		}
		c.known = true
	}
	if _, ok := c.names[hashOf(name)]; ok || c.names == nil {
		return nil
	}
	return errOtherCase
}

// taken explains the error that a name is taken although it was free when it was looked up.
func (d *directory) taken(name string, err error) error {
	at, openErr := d.open()
	if openErr != nil {
		return err
	}
	defer at.Release()
	if ignores, caseErr := at.IgnoresCase(name); ignores && caseErr == nil {
		return fmt.Errorf("%w (%w)", errSharedName, err)
	}
	return err
}

// isInOtherCase reports whether, at a target that ignores case, a name of the directory equals a
// name that the snapshot has. The snapshot does not have the name as it is written.
func (d *directory) isInOtherCase(at *target.Dir, name string) (bool, error) {
	if _, ok := d.folded[hashOf(foldCase(name))]; !ok {
		return false, nil
	}
	return at.IgnoresCase(name)
}

var nameSeed = maphash.MakeSeed()

func hashOf(name string) uint64 { return maphash.String(nameSeed, name) }

// foldCase maps names that differ only in case to one string.
func foldCase(name string) string { return strings.ToLower(strings.ToUpper(name)) }

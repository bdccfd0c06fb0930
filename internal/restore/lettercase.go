package restore

import (
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"

	"github.com/bctl/bctl/internal/restore/target"
)

// A target may ignore the case of names: CIFS, vfat and NTFS do, and ext4 may.
// A name of the snapshot then finds what has another name, perhaps that of
// another file of the snapshot. Such a name is a problem, never a replacement.

var (
	errOtherCase = errors.New("the target ignores case, and has this name with letters of other case: " +
		"rename or remove that, or restore to a target that does not ignore case")
	errSharedName = errors.New("another file of the snapshot has this name here: the target ignores case")
)

// letterCase is what is known about case in a directory that was there.
type letterCase struct {
	mu    sync.Mutex
	known bool
	names map[uint64]struct{} // hashes of all names, if the directory ignores case
}

// checkCase returns an error if the directory has no such name, although at
// finds one: it is there in other case.
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

// taken explains why a name is taken that was not there when it was looked for.
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

// isInOtherCase reports whether a name of the directory, which the snapshot does
// not have, is one that the snapshot has, to a target that ignores case.
func (d *directory) isInOtherCase(at *target.Dir, name string) (bool, error) {
	if _, ok := d.folded[hashOf(foldCase(name))]; !ok {
		return false, nil
	}
	return at.IgnoresCase(name)
}

var nameSeed = maphash.MakeSeed()

func hashOf(name string) uint64 { return maphash.String(nameSeed, name) }

// foldCase returns what names have in common that differ only in case.
func foldCase(name string) string { return strings.ToLower(strings.ToUpper(name)) }

//go:build linux

package target

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// maxFileSystems bounds the descriptors that are kept for Sync.
const maxFileSystems = 1024

// Most writes return before the data is on disk. The kernel reports an error of the disk later, to
// a process that asks through a descriptor that was open by then.

// A fileSystem is a file system that a restore may write to.
type fileSystem struct {
	path string // of the first directory on it that the restore used
	fd   int    // of that directory, open since before the first write
}

// fileSystems holds the file systems of a target.
type fileSystems struct {
	mu      sync.Mutex
	all     map[uint64]fileSystem // by device
	tooMany string                // path of one that exceeded maxFileSystems
}

// meet remembers the file system of an open directory. The caller closes fd.
func (s *fileSystems) meet(fd int, device uint64, path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.all[device]; ok {
		return nil
	}
	if len(s.all) == maxFileSystems {
		s.tooMany = path
		return nil
	}
	kept, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if s.all == nil {
		s.all = make(map[uint64]fileSystem)
	}
	s.all[device] = fileSystem{path, kept}
	return nil
}

func (s *fileSystems) close() {
	for _, f := range s.all {
		unix.Close(f.fd)
	}
	s.all = nil
}

// Sync waits until everything that was written to the target is on disk, including the file systems
// mounted in it. Its error names each file system that failed to write, since the target was
// opened, or before if no process has asked since. Kernels before 5.8 return none of these errors.
func (r *Root) Sync() error {
	s := &r.fileSystems
	s.mu.Lock()
	defer s.mu.Unlock()
	var failed error
	add := func(path string, err error) {
		err = fmt.Errorf("the file system of %s: %w", path, err)
		if failed != nil {
			err = fmt.Errorf("%w; %w", failed, err)
		}
		failed = err
	}
	byPath := func(a, b fileSystem) int { return cmp.Compare(a.path, b.path) }
	for _, f := range slices.SortedFunc(maps.Values(s.all), byPath) {
		if err := r.syncfs(f.fd, f.path); err != nil {
			add(f.path, err)
		}
	}
	if s.tooMany != "" {
		add(s.tooMany, fmt.Errorf("not known: the target has more than %d", maxFileSystems))
	}
	return failed
}

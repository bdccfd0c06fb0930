package read

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/store"
)

// The index records in which pack a chunk is. Before a batch relies on a pack, the reader asks the
// store whether it still has the pack. Otherwise, new content would count as stored although it
// cannot be restored. This costs one Stat for each pack that this process relies on and did not
// store itself, and nothing for a file that is not read.

const (
	// maxPackChecks is the number of answers of the store that are kept, in a few megabytes. With
	// more packs, the reader asks the store again.
	maxPackChecks = 16 << 10
	// statsAtATime is the number of packs of one buffer that are checked concurrently.
	statsAtATime = 8
)

// A packCheck is the store's answer about a pack.
type packCheck struct {
	done chan struct{} // closed when lost and err are valid
	lost error         // why the pack cannot be relied on; nil: it is complete
	err  error         // the store did not answer

	reported bool // the loss was reported
}

// packChecks are those of this process. Concurrent requests for a pack share one answer.
type packChecks struct {
	mu    sync.Mutex
	packs map[backup.PackID]*packCheck
	seen  bool // the store has returned a pack: these credentials may see packs
	lost  int  // packs that were reported
}

// intact reports whether the store has all of a pack.
func (s *Service) intact(ctx context.Context, at index.PackPlace) (bool, error) {
	s.packChecks.mu.Lock()
	l := s.packChecks.packs[at.Pack]
	if l != nil {
		s.packChecks.mu.Unlock()
		select {
		case <-l.done:
			return l.lost == nil, l.err
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	if len(s.packChecks.packs) >= maxPackChecks || s.packChecks.packs == nil {
		s.packChecks.packs = map[backup.PackID]*packCheck{}
	}
	l = &packCheck{done: make(chan struct{})}
	s.packChecks.packs[at.Pack] = l
	s.packChecks.mu.Unlock()

	if l.lost, l.err = s.checkPack(ctx, at); l.err != nil {
		s.packChecks.mu.Lock()
		if s.packChecks.packs[at.Pack] == l {
			delete(s.packChecks.packs, at.Pack) // the next request asks again
		}
		s.packChecks.mu.Unlock()
	}
	close(l.done)
	return l.lost == nil, l.err
}

// missed reports, once, that a lost pack has the only copy of a chunk.
func (s *Service) missed(pack backup.PackID) {
	s.packChecks.mu.Lock()
	l := s.packChecks.packs[pack]
	known := l == nil || l.reported // nil: it was evicted since
	if !known {
		l.reported = true
		s.packChecks.lost++
	}
	s.packChecks.mu.Unlock()
	if !known {
		s.opts.Metrics.LostPack()
		s.opts.Log.Warn("a pack is missing or damaged in the store; backups store its content again if they read it (run bctl doctor)",
			"pack", pack.String(), "error", l.lost)
	}
}

// checkPack asks the store. lost is the reason why a batch must not rely on the pack. err means
// that the store did not answer; the pack may be intact or not.
func (s *Service) checkPack(ctx context.Context, at index.PackPlace) (lost, err error) {
	sizeBytes, missing, err := s.findPack(ctx, at)
	switch {
	case err != nil:
		return nil, err
	case missing == nil:
		s.packChecks.mu.Lock()
		s.packChecks.seen = true
		s.packChecks.mu.Unlock()
		if want := at.Offset + at.Bytes; sizeBytes < want {
			return fmt.Errorf("it has %d bytes, not %d: %w", sizeBytes, want, backup.ErrCorrupt), nil
		}
		return nil, nil
	case !errors.Is(missing, fs.ErrPermission), s.sawPacks():
		// Amazon S3 refuses the request, instead of "not found", to clients that may not list.
		return missing, nil
	}
	s.warnUnseen.Do(func() {
		s.opts.Log.Warn("the store does not allow this reader to test whether packs exist: the reader relies on the index", "error", missing)
	})
	return nil, nil
}

// findPack returns the size of a pack, or the store's answer that it is missing or forbidden. That
// answer proves nothing while the store refuses the credentials, or is not there: an empty mount
// point has no object. Such an outage may also end between two requests. So the store has to answer
// this twice, and each time then to have the repository's configuration, which it must have.
func (s *Service) findPack(ctx context.Context, at index.PackPlace) (sizeBytes int64, missing, err error) {
	for range 2 {
		sizeBytes, missing = s.stat(ctx, store.PackName(at.Snapshot, at.Object))
		if !errors.Is(missing, backup.ErrNotFound) && !errors.Is(missing, fs.ErrPermission) {
			return sizeBytes, nil, missing
		}
		_, err = s.stat(ctx, store.ConfigName)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return 0, nil, refusedError{err}
		case err != nil:
			return 0, nil, err
		}
	}
	return 0, missing, nil
}

func (s *Service) stat(ctx context.Context, name string) (sizeBytes int64, err error) {
	err = s.whileAccepted(ctx, func(ctx context.Context) (err error) {
		sizeBytes, err = s.Store.Stat(ctx, name)
		return err
	})
	return sizeBytes, err
}

func (s *Service) sawPacks() bool {
	s.packChecks.mu.Lock()
	defer s.packChecks.mu.Unlock()
	return s.packChecks.seen
}

// LostPacks returns the number of packs that the store lacks, wholly or in part, and whose content
// had to be stored again.
func (s *Service) LostPacks() int {
	s.packChecks.mu.Lock()
	defer s.packChecks.mu.Unlock()
	return s.packChecks.lost
}

// replaceLost replaces locations in packs that the store does not have by others of the same chunk
// or, if there are none, by the zero location: then the chunk is stored again.
func (s *Service) replaceLost(ctx context.Context, ids []backup.ChunkID, found []index.Location) error {
	intact, err := s.intactOf(ctx, found)
	if err != nil {
		return err
	}
	var lost []int // indexes of ids
	var again []backup.ChunkID
	for i, at := range found {
		if at.Pack != (backup.PackID{}) && !intact[at.Pack] {
			lost, again = append(lost, i), append(again, ids[i])
		}
	}
	if len(again) == 0 {
		return nil
	}
	copies, err := s.Index.LocateCopies(ctx, again)
	if err != nil {
		return err
	}
	for n, i := range lost {
		pack := found[i].Pack
		found[i] = index.Location{}
		for _, at := range copies[n] {
			ok, err := s.intact(ctx, at.PackPlace)
			if err != nil {
				return err
			}
			if ok {
				found[i] = at
				break
			}
		}
		if found[i] == (index.Location{}) {
			s.missed(pack)
		}
	}
	return nil
}

// intactOf asks the store for each pack of some locations, and returns those that are intact.
func (s *Service) intactOf(ctx context.Context, found []index.Location) (map[backup.PackID]bool, error) {
	var mu sync.Mutex
	asked, intact := map[backup.PackID]bool{}, map[backup.PackID]bool{}
	var g errgroup.Group // not with a context: others may wait for the answers
	g.SetLimit(statsAtATime)
	for _, at := range found {
		if at.Pack == (backup.PackID{}) || asked[at.Pack] {
			continue
		}
		asked[at.Pack] = true
		g.Go(func() error {
			ok, err := s.intact(ctx, at.PackPlace)
			mu.Lock()
			defer mu.Unlock()
			intact[at.Pack] = ok
			return err
		})
	}
	return intact, g.Wait()
}

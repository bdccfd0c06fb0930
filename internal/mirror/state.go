package mirror

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// absent is the size of an object that a list does not have.
const absent = -1

// A held is an object of the mirror.
type held struct {
	note            // as noted; copied is 0 if there is no note
	listed    int64 // its size in the mirror's list
	modified  int64 // Unix seconds, in that list; 1 at least
	goneSince int64 // Unix seconds; 0: the store has it, as far as is noted
}

func (h *held) isNoted() bool { return h.copied != 0 }

// since returns the Unix time since when the mirror has the object. Without a note, because it is
// damaged or lost, or because a pass ended before it, that is the time of the mirror's list.
func (h *held) since() int64 { return cmp.Or(h.copied, h.modified) }

// isHere reports whether the mirror has the object.
func (h *held) isHere() bool { return h.listed != absent }

// A state is what the mirror has, and what it has noted. Its methods may be called concurrently
// after load.
type state struct {
	to      store.Store
	objects map[string]*held
	sums    []string // names of the objects with notes
	torn    []string // names of those that are damaged

	mu         sync.Mutex
	lines      []byte // of notes that are not yet in the mirror
	unnoted    int    // their number
	unnotedFor int64  // bytes of their objects
	flushed    time.Time
}

// load reads the notes, and lists the mirror. Damaged notes are given to problem: their objects
// count as not noted.
func load(ctx context.Context, to store.Store, problem func(name string, err error)) (*state, error) {
	s := &state{to: to, objects: map[string]*held{}, flushed: time.Now()}
	for o, err := range to.List(ctx, store.SumsPrefix) {
		if err != nil {
			return nil, err
		}
		s.sums = append(s.sums, o.Name)
	}
	slices.Sort(s.sums) // by time
	for _, name := range s.sums {
		data, err := to.Get(ctx, name, maxSumsBytes)
		if errors.Is(err, backup.ErrNotFound) { // merged by another process
			continue
		}
		if err == nil {
			err = parseSums(data, func(name string, n note) {
				// Of several notes of an object, the one with the longest lock is the newest.
				if h := s.at(name); n.locked >= h.locked {
					h.note = n
				}
			})
		}
		if err != nil && !damaged(err) {
			return nil, err
		}
		if err != nil {
			problem(name, err)
			s.torn = append(s.torn, name)
		}
	}
	for _, prefix := range append([]string{store.ConfigName}, store.MirroredPrefixes...) {
		for o, err := range to.List(ctx, prefix) {
			if err != nil {
				return nil, err
			}
			if isOurs(o.Name) {
				h := s.at(o.Name)
				h.listed, h.modified = o.SizeBytes, max(o.Modified.Unix(), 1)
			}
		}
	}
	for o, err := range to.List(ctx, store.GonePrefix) {
		if err != nil {
			return nil, err
		}
		if name, at, ok := store.ParseGoneName(o.Name); ok && isOurs(name) {
			h := s.at(name)
			h.goneSince = max(h.goneSince, at.Unix())
		}
	}
	return s, nil
}

// get returns what is known of an object.
func (s *state) get(name string) held {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.objects[name]; h != nil {
		return *h
	}
	return held{listed: absent}
}

// at returns the object of a name, which may be new. Unless the state is being loaded, the caller
// holds mu.
func (s *state) at(name string) *held {
	h := s.objects[name]
	if h == nil {
		h = &held{listed: absent}
		s.objects[name] = h
	}
	return h
}

const (
	// After so many notes, bytes of their objects, or so much time, notes are put. What is not
	// noted is read again after a crash.
	flushNotes = 1000
	flushBytes = 1 << 30
	flushAfter = time.Minute
)

// take notes an object.
func (s *state) take(ctx context.Context, name string, n note) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.at(name)
	h.note, h.listed = n, n.sizeBytes
	s.lines = appendNote(s.lines, name, &n)
	s.unnoted++
	s.unnotedFor += n.sizeBytes
	if s.unnoted >= flushNotes || s.unnotedFor >= flushBytes || time.Since(s.flushed) >= flushAfter {
		return s.flushLocked(ctx)
	}
	return nil
}

// flush puts all notes into the mirror.
func (s *state) flush(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flushLocked(ctx)
}

func (s *state) flushLocked(ctx context.Context) error {
	if s.unnoted == 0 {
		return nil
	}
	name := newSumsName(time.Now())
	if err := s.to.Put(ctx, name, encodeSums(s.lines)); err != nil {
		return err
	}
	s.sums = append(s.sums, name)
	s.lines, s.unnoted, s.unnotedFor, s.flushed = s.lines[:0], 0, 0, time.Now()
	return nil
}

// merge replaces the objects with notes by few, if there are many.
func (s *state) merge(ctx context.Context) error {
	const few = 64
	if len(s.sums) < few+len(s.objects)/(sumsLines/2) {
		return nil
	}
	old := s.sums
	s.sums = nil
	var lines []byte
	n := 0
	put := func() error {
		name := newSumsName(time.Now())
		s.sums = append(s.sums, name)
		err := s.to.Put(ctx, name, encodeSums(lines))
		lines, n = lines[:0], 0
		return err
	}
	for _, name := range s.names() {
		h := s.objects[name]
		if !h.isHere() || !h.isNoted() {
			continue
		}
		lines = appendNote(lines, name, &h.note)
		if n++; n == sumsLines {
			if err := put(); err != nil {
				return err
			}
		}
	}
	if n > 0 {
		if err := put(); err != nil {
			return err
		}
	}
	// Locked ones stay, and say the same.
	if err := s.to.Delete(ctx, old...); err != nil && !store.IsLocked(err) {
		return err
	}
	return nil
}

// names returns the names of all objects, sorted.
func (s *state) names() []string {
	names := make([]string, 0, len(s.objects))
	for name := range s.objects {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// kindOf returns the position of a name's prefix in the order of writing; the repository object
// comes before all others.
func kindOf(name string) int {
	return slices.IndexFunc(store.MirroredPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

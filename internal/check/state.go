package check

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A State is the file in which a check notes the packs whose content it has read, so that the next
// one goes on after an interruption. It begins with a line of JSON (stateHeader); the ids of packs
// follow, 16 bytes each. A pack never changes, and one that is replaced gets another id. What is
// lost of the file's end is read again.
type State struct {
	header stateHeader
	// Resumed is the number of packs that an interrupted check has read.
	Resumed int

	mu     sync.Mutex
	file   *os.File
	packs  *idSet
	buffer *bufio.Writer
}

type stateHeader struct {
	Version    int       `json:"version"`
	Repository string    `json:"repository"`
	Share      float64   `json:"share"` // of the packs that are read
	Seed       uint64    `json:"seed"`  // selects these
	Started    time.Time `json:"started"`
}

const stateVersion = 1

// maxStateHeader bounds the first line of the file.
const maxStateHeader = 4096

// ErrStateBusy reports that another check uses the file.
var ErrStateBusy = errors.New("another check of this repository is running")

// maxStateAge is how long a check may go on. What was whole longer ago may be damaged by now.
const maxStateAge = 30 * 24 * time.Hour

// OpenState opens the file at path, or creates it. A file of another repository or with another
// share, one that is older than maxStateAge, and any file if restart is set, is begun anew.
func OpenState(path string, repository backup.RepositoryID, share float64, restart bool) (*State, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	s := &State{file: file, packs: newIDSet(0)}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrStateBusy
		}
		return nil, errors.Join(err, file.Close())
	}
	if restart || !s.load(repository, share) {
		err = s.begin(repository, share)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s.buffer = bufio.NewWriter(file)
	return s, nil
}

// load reads the file. It returns false if it is of no use.
func (s *State) load(repository backup.RepositoryID, share float64) bool {
	r := bufio.NewReaderSize(s.file, maxStateHeader)
	line, err := r.ReadSlice('\n')
	if err != nil || json.Unmarshal(line, &s.header) != nil {
		return false
	}
	h, offset := &s.header, int64(len(line))
	if h.Version != stateVersion || h.Repository != repository.String() || h.Share != share {
		return false
	}
	if age := time.Since(h.Started); age < 0 || age > maxStateAge {
		return false
	}
	for {
		var id backup.PackID
		if _, err := io.ReadFull(r, id[:]); err != nil {
			break
		}
		offset += int64(len(id))
		if id != (backup.PackID{}) { // the end of a file after a loss of power
			s.packs.add((*backup.ChunkID)(&id))
		}
	}
	s.Resumed = s.packs.n
	// A part of an id may follow.
	if s.file.Truncate(offset) != nil {
		return false
	}
	_, err = s.file.Seek(offset, io.SeekStart)
	return err == nil
}

func (s *State) begin(repository backup.RepositoryID, share float64) error {
	s.header = stateHeader{stateVersion, repository.String(), share, rand.Uint64(), time.Now().UTC()}
	s.packs, s.Resumed = newIDSet(0), 0
	line, err := json.Marshal(s.header)
	if err != nil {
		return err
	}
	if err := s.file.Truncate(0); err != nil {
		return err
	}
	_, err = s.file.WriteAt(append(line, '\n'), 0)
	if err == nil {
		_, err = s.file.Seek(0, io.SeekEnd)
	}
	return err
}

// Started returns when the check began.
func (s *State) Started() time.Time { return s.header.Started }

// Read reports whether the content of a pack is to be read: the share of the packs is chosen anew
// with each file.
func (s *State) Read(id backup.PackID) bool { return selects(id, s.header.Seed, s.header.Share) }

// selects chooses a share of the packs. Their ids are random.
func selects(id backup.PackID, seed uint64, share float64) bool {
	x := (binary.LittleEndian.Uint64(id[:8]) ^ seed) * 0x9e3779b97f4a7c15
	return float64(x>>11)/(1<<53) < share
}

// Select returns a selection of a share of the packs, which is another one each time.
func Select(share float64) func(backup.PackID) bool {
	seed := rand.Uint64()
	return func(id backup.PackID) bool { return selects(id, seed, share) }
}

// Has implements Proven.
func (s *State) Has(id backup.PackID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.packs.has((*backup.ChunkID)(&id))
}

// Add implements Proven.
func (s *State) Add(id backup.PackID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.packs.add((*backup.ChunkID)(&id))
	_, err := s.buffer.Write(id[:])
	if err != nil {
		err = fmt.Errorf("note the progress of the check: %w", err)
	}
	return err
}

// Close closes the file. If the check is complete, it removes it.
func (s *State) Close(complete bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.buffer.Flush()
	if complete {
		err = os.Remove(s.file.Name())
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return errors.Join(err, s.file.Close())
}

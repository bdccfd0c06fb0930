package check

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// A tree is a shard's pages in memory: for each page the listing, by directory and key.
type tree map[string]map[backup.PageKey]backup.Page

func (t tree) versions(first, last backup.SnapshotNumber) (versions []index.Version) {
	for path, pages := range t {
		for key, page := range pages {
			versions = append(versions, index.Version{Directory: listing.DirectoryID(path), PathKey: backup.PathKey(path), Key: key, Digest: digestOf(path, key), First: first, Last: last})
			_ = page
		}
	}
	return versions
}

func digestOf(path string, key backup.PageKey) (d backup.PageDigest) {
	id := listing.DirectoryID(path)
	copy(d[:], id[:])
	binary.LittleEndian.PutUint64(d[16:], uint64(key))
	return d
}

func aTree() tree {
	directory := func(names ...string) (entries []backup.Entry) {
		for _, name := range names {
			entries = append(entries, backup.Entry{Name: name, Kind: backup.Directory})
		}
		return append(entries, backup.Entry{Name: "z", Kind: backup.File, Size: 10})
	}
	return tree{
		"":    {0: {Path: "", Next: 7, Entries: directory("a")}, 7: {Path: "", Key: 7, Entries: directory("b")}},
		"a":   {0: {Path: "a", Entries: directory("c")}},
		"b":   {0: {Path: "b", Next: 3, Entries: directory()}, 3: {Path: "b", Key: 3, Next: 9, Entries: directory()}, 9: {Path: "b", Key: 9}},
		"a/c": {0: {Path: "a/c"}},
	}
}

// The sums of a complete snapshot are those of a root alone. Without any one of its pages, one of
// them is another.
func TestSumsOfPages(t *testing.T) {
	sumOf := func(without int) (now sum) {
		all := aTree()
		tally := make(tally, 2)
		for i, v := range all.versions(1, math.MaxInt64) {
			path, _ := backup.PathOfKey(v.PathKey)
			page := all[path][v.Key]
			if i != without {
				tally.count(0, 1, v.Digest, measure(&v, &page))
			}
		}
		now.add(&tally[0])
		rest := now
		rest.add(&tally[1])
		if rest.pages != (backup.PageSet{}) || rest.files != 0 || rest.chain != 0 || rest.below != 0 {
			t.Fatalf("after the last snapshot, %+v is left", rest)
		}
		return now
	}
	whole := sumOf(-1)
	if whole.chain != 0 || whole.below != hashRoot() || whole.files != 6-1 || whole.directories != 4 || whole.bytes != 50 {
		t.Fatalf("%+v", whole)
	}
	for without := range 7 {
		if s := sumOf(without); s.chain == 0 && s.below == hashRoot() || s.pages == whole.pages {
			t.Errorf("a page is missing, and does not show: %+v", s)
		}
	}
}

// A version counts in the snapshots of its range that are needed.
func TestPositions(t *testing.T) {
	s := &shard{numbers: []backup.SnapshotNumber{3, 5, 8}}
	for _, n := range s.numbers {
		s.snapshots = append(s.snapshots, backup.Snapshot{Number: n})
	}
	for _, c := range []struct {
		first, last backup.SnapshotNumber
		from, to    int
		a, b        backup.SnapshotNumber
	}{{1, 2, 0, 0, 0, 0}, {1, 3, 0, 1, 3, 3}, {4, 4, 1, 1, 0, 0}, {3, 5, 0, 2, 3, 5}, {4, math.MaxInt64, 1, 3, 5, 8}, {9, math.MaxInt64, 3, 3, 0, 0}, {1, math.MaxInt64, 0, 3, 3, 8}} {
		from, to := s.positions(c.first, c.last)
		a, b := s.among(c.first, c.last)
		if from != c.from || to != c.to || a != c.a || b != c.b {
			t.Errorf("%d to %d: positions %d to %d, snapshots %d to %d", c.first, c.last, from, to, a, b)
		}
	}
}

func TestIDSet(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	newID := func() (id backup.ChunkID) {
		binary.LittleEndian.PutUint64(id[:], random.Uint64())
		binary.LittleEndian.PutUint64(id[8:], random.Uint64())
		return id
	}
	s := newIDSet(10) // it grows
	var in []backup.ChunkID
	for range 10_000 {
		id := newID()
		in = append(in, id, id)
		s.add(&id)
		s.add(&id)
	}
	zero := backup.ChunkID{}
	s.add(&zero)
	m := newMarkedSet(s)
	for i := range in {
		if !s.has(&in[i]) || !m.mark(&in[i]) || !m.marked(&in[i]) {
			t.Fatal("an id is lost")
		}
		for bit := range 128 { // an id with a flipped bit is another one
			other := in[i]
			other[bit/8] ^= 1 << (bit % 8)
			if i < 20 && s.has(&other) {
				t.Fatalf("bit %d does not matter", bit)
			}
		}
	}
	if s.n != 10_001 || !s.has(&zero) || m.marked(&zero) {
		t.Errorf("%d ids", s.n)
	}
	for range 10_000 {
		if id := newID(); s.has(&id) || m.mark(&id) {
			t.Fatal("an id is there that was not added")
		}
	}
}

// Each chunk is in one part.
func TestParts(t *testing.T) {
	for _, parts := range []int{1, 2, 64, 1 << 16} {
		for _, id := range []backup.ChunkID{{}, {0xff, 0xff}, {0x7f, 0xff}, {0x80}} {
			n := 0
			for part := range parts {
				if inPart(part, parts)(&id) {
					n++
				}
			}
			if n != 1 {
				t.Errorf("%v is in %d of %d parts", id, n, parts)
			}
		}
	}
}

// The file with the progress survives the loss of its end, and is of no use for anything else.
func TestState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks", "check")
	repository := backup.NewRepositoryID()
	open := func(repository backup.RepositoryID, share float64, restart bool, want int) *State {
		t.Helper()
		s, err := OpenState(path, repository, share, restart)
		if err != nil || s.Resumed != want {
			t.Fatalf("%+v, %v, want %d packs", s, err, want)
		}
		return s
	}
	var ids []backup.PackID
	s := open(repository, 0.5, false, 0)
	if _, err := OpenState(path, repository, 0.5, false); err == nil {
		t.Error("two checks use the file")
	}
	for range 100 {
		id := backup.NewPackID()
		ids = append(ids, id)
		if err := s.Add(id); err != nil {
			t.Fatal(err)
		}
	}
	chosen := 0
	for _, id := range ids {
		if s.Read(id) {
			chosen++
		}
	}
	if chosen < 20 || chosen > 80 {
		t.Errorf("%d of 100 packs are read", chosen)
	}
	first := s.Read(ids[0])
	closed(t, s, false)
	s = open(repository, 0.5, false, 100)
	if !s.Has(ids[99]) || s.Has(backup.NewPackID()) || s.Read(ids[0]) != first {
		t.Error("it is another check")
	}
	closed(t, s, false)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range []int64{5, 16, 500} { // the end is lost, or a part of an id
		if err := os.Truncate(path, info.Size()-cut); err != nil {
			t.Fatal(err)
		}
		s = open(repository, 0.5, false, 100-int(cut+15)/16)
		closed(t, s, false)
	}
	if err := os.Truncate(path, info.Size()); err != nil { // zeros after a loss of power
		t.Fatal(err)
	}
	closed(t, open(repository, 0.5, false, 100-32), false)
	for name, garbage := range map[string]string{"empty": "", "no header": "x", "long line": fmt.Sprintf("%0*d\n", 2*maxStateHeader, 0)} {
		if err := os.WriteFile(path, []byte(garbage), 0o600); err != nil {
			t.Fatal(name, err)
		}
		closed(t, open(repository, 0.5, false, 0), false)
	}
	s = open(repository, 0.5, false, 0)
	if err := s.Add(ids[0]); err != nil {
		t.Fatal(err)
	}
	closed(t, s, false)
	closed(t, open(repository, 1, false, 0), false)
	closed(t, open(backup.NewRepositoryID(), 1, false, 0), false)
	for _, age := range []time.Duration{maxStateAge - time.Hour, maxStateAge + time.Hour, -time.Hour} {
		s = open(repository, 1, true, 0)
		s.header.Started = time.Now().Add(-age)
		line, err := json.Marshal(s.header)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(append(line, '\n'), ids[0][:]...), 0o600); err != nil {
			t.Fatal(err)
		}
		closed(t, s, false)
		want := 0
		if age > 0 && age < maxStateAge {
			want = 1
		}
		closed(t, open(repository, 1, false, want), false)
	}
	s = open(repository, 1, true, 0)
	closed(t, s, true)
	if _, err := os.Stat(path); err == nil {
		t.Error("the file of a complete check stays")
	}
}

func closed(t *testing.T, s *State, complete bool) {
	t.Helper()
	if err := s.Close(complete); err != nil {
		t.Fatal(err)
	}
}

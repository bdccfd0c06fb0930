//go:build linux

// Package madeindex fills an index with many snapshots of a large tree that does not exist, with
// names, sizes and changes like those of file servers. Of content, only the names of chunks exist.
//
//	tree.go   the tree, and how it changes from one snapshot to the next
//	index.go  writes the snapshots into the index, as walkers and committers would
package madeindex

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A Shape says what is made. Equal shapes make equal trees.
type Shape struct {
	Files     int
	Snapshots int
	Changed   float64 // share of the files that change between two snapshots, chosen at random
	Seed      uint64
}

// Directories and files form a tree in which each directory has up to fanOut others. One directory
// in a hundred is large.
const (
	fanOut        = 8
	usualFiles    = 90 // in the mean
	largeFiles    = 2_000
	largeOneOf    = 100
	begunAt       = 1_700_000_000 // the time of the first snapshot, in seconds
	secondsApart  = 86_400
	maxFileBytes  = 1 << 20 // each file is one chunk
	removedOneOf  = 20      // of the changed files
	renamedOneOf  = 20
	firstFileNode = 1 << 40 // inodes of files begin here
)

var words = []string{
	"annual", "archive", "asset", "audit", "backup", "budget", "build", "cache", "chart", "client", "config", "contract", "copy", "customer",
	"data", "demo", "design", "draft", "export", "figure", "final", "frame", "holiday", "image", "index", "input", "invoice", "letter", "library",
	"log", "main", "map", "meeting", "minutes", "model", "module", "notes", "offer", "order", "output", "page", "photo", "plan", "project",
	"proposal", "readme", "record", "report", "result", "review", "sample", "scan", "schedule", "server", "sheet", "sketch", "source", "summary",
	"table", "template", "test", "thumb", "trace", "update", "user", "utils", "video", "view",
}

var extensions = []string{"txt", "pdf", "docx", "xlsx", "jpg", "jpg", "png", "go", "c", "h", "py", "js", "json", "html", "log", "csv", "xml", "zip", "mp4", "dwg"}

// A tree is the state of all files in one snapshot.
type tree struct {
	shape   Shape
	first   []int    // of the files of each directory; the last element is the number of files
	changed []uint8  // the snapshot that changed the file last
	renamed []uint8  // how often it was renamed
	removed []uint64 // a bit for each file
}

func newTree(s Shape) *tree {
	t := &tree{shape: s, changed: make([]uint8, s.Files), renamed: make([]uint8, s.Files), removed: make([]uint64, s.Files/64+1)}
	random := rand.New(rand.NewPCG(s.Seed, 1))
	for n := 0; n < s.Files; {
		t.first = append(t.first, n)
		mean := usualFiles
		if random.IntN(largeOneOf) == 0 {
			mean = largeFiles
		}
		n += 1 + int(random.ExpFloat64()*float64(mean))
	}
	t.first = append(t.first, s.Files)
	return t
}

func (t *tree) directories() int { return len(t.first) - 1 }

// change makes the state of the next snapshot, and returns the directories that differ, in order.
func (t *tree) change(snapshot int) (directories []int) {
	random := rand.New(rand.NewPCG(t.shape.Seed, uint64(snapshot)))
	for range int(float64(t.shape.Files) * t.shape.Changed) {
		n := random.IntN(t.shape.Files)
		t.changed[n] = uint8(snapshot)
		switch {
		case random.IntN(removedOneOf) == 0:
			t.removed[n/64] ^= 1 << (n % 64)
		case random.IntN(renamedOneOf) == 0:
			t.renamed[n]++
		}
		d, found := slices.BinarySearch(t.first, n)
		if !found {
			d--
		}
		directories = append(directories, d)
	}
	slices.Sort(directories)
	return slices.Compact(directories)
}

// mix returns a number that looks random.
func mix(a, b uint64) uint64 {
	x := (a+1)*0x9e3779b97f4a7c15 ^ (b+1)*0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 29
	return x * 0x9e3779b97f4a7c15
}

func word(x uint64) string { return words[x%uint64(len(words))] }

func directoryName(d int) string {
	x := mix(uint64(d), 7)
	return fmt.Sprintf("%s-%d", word(x>>8), d)
}

// path returns the path of a directory.
func (t *tree) path(d int) string {
	if d == 0 {
		return ""
	}
	return backup.Join(t.path((d-1)/fanOut), directoryName(d))
}

func (t *tree) name(file int) string {
	x := mix(uint64(file), uint64(t.renamed[file]))
	extension := extensions[x>>3%uint64(len(extensions))]
	switch x & 3 {
	case 0:
		return fmt.Sprintf("%s_%s_%d.%s", word(x>>8), word(x>>16), file%10_000, extension)
	case 1:
		return fmt.Sprintf("%s-20%02d-%02d-%02d-%d.%s", word(x>>8), x>>16%26, 1+x>>24%12, 1+x>>32%28, file%1000, extension)
	default:
		return fmt.Sprintf("%s%06d.%s", word(x>>8), file%1_000_000, extension)
	}
}

func (t *tree) isRemoved(file int) bool { return t.removed[file/64]&(1<<(file%64)) != 0 }

// isUnique reports whether only one file has the name.
func (t *tree) isUnique(name string) bool {
	found := 0
	for n := range t.shape.Files {
		if t.name(n) == name {
			found++
		}
	}
	return found == 1
}

func (t *tree) file(file int) backup.Entry {
	x := mix(uint64(file), uint64(t.changed[file])<<8)
	size := min(int64(math.Exp(4+float64(x>>40%1000)/100)), maxFileBytes)
	at := t.time(int(t.changed[file]), x)
	e := backup.Entry{
		Name: t.name(file), Kind: backup.File, Mode: 0o644, UID: 1000 + uint32(mix(uint64(file)/4096, 3)%200), GID: 100, Nlink: 1,
		Size: size, Mtime: at, Ctime: at, Inode: firstFileNode + uint64(file),
	}
	ref := backup.Ref{Length: size, Span: size}
	binary.LittleEndian.PutUint64(ref.Chunk[:], mix(x, 1))
	binary.LittleEndian.PutUint64(ref.Chunk[8:], mix(x, 2))
	e.Content.Refs = []backup.Ref{ref}
	return e
}

// time returns a time before a snapshot.
func (t *tree) time(snapshot int, x uint64) backup.Time {
	age := int64(x >> 20 % secondsApart)
	if snapshot <= 1 {
		age = int64(x >> 10 % (secondsApart * 1000))
	}
	return backup.Time{Sec: begunAt + int64(snapshot-1)*secondsApart - age, Nsec: uint32(x % 1e9)}
}

// entries returns a directory, and what is in it, sorted.
func (t *tree) entries(d int) (self backup.Entry, entries []backup.Entry) {
	last := 1
	for n := t.first[d]; n < t.first[d+1]; n++ {
		last = max(last, int(t.changed[n]))
		if !t.isRemoved(n) {
			entries = append(entries, t.file(n))
		}
	}
	for child := d*fanOut + 1; child <= d*fanOut+fanOut && child < t.directories(); child++ {
		entries = append(entries, backup.Entry{Name: directoryName(child), Kind: backup.Directory, Inode: uint64(child) + 1})
	}
	slices.SortFunc(entries, func(a, b backup.Entry) int { return cmp.Compare(a.Name, b.Name) })
	at := t.time(last, mix(uint64(d), 5))
	return backup.Entry{Kind: backup.Directory, Mode: 0o755, UID: 1000, GID: 100, Nlink: 2, Inode: uint64(d) + 1, Mtime: at, Ctime: at}, entries
}

// started returns when a snapshot began.
func started(snapshot int) time.Time {
	return time.Unix(begunAt+int64(snapshot-1)*secondsApart, 0).UTC()
}

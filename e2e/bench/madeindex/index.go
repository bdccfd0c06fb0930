//go:build linux

package madeindex

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// Made says what an index has, for those who look for it.
type Made struct {
	Snapshots   int
	Files       int
	Directories int
	Pages       int64 // versions
	Last        [2]backup.SnapshotID
	Path        string // of a file that has changed several times
	Name        string // its name, which no other file has
	Large       string // path of the directory with the most files
}

// resultPages is the number of pages of one result.
const resultPages = 2000

// A maker writes snapshots of one shard.
type maker struct {
	x           index.Index
	shard       backup.Shard
	tree        *tree
	pages       []map[backup.PageKey]backup.Fingerprint // of each directory, in the last snapshot
	set         backup.PageSet
	fingerprint *listing.Fingerprinter
	encode      listing.Encoder
	made        Made
}

// Write makes a filer with one shard, and its snapshots.
func Write(ctx context.Context, x index.Index, filer, shard string, s Shape, progress func(format string, args ...any)) (Made, error) {
	m := &maker{x: x, tree: newTree(s), fingerprint: listing.NewFingerprinter()}
	m.pages = make([]map[backup.PageKey]backup.Fingerprint, m.tree.directories())
	of, err := x.EnsureFiler(ctx, filer)
	if err == nil {
		m.shard, err = x.EnsureShard(ctx, of.ID, shard, "posix://"+shard)
	}
	if err != nil {
		return Made{}, err
	}
	for n := 1; n <= s.Snapshots; n++ {
		directories := m.allDirectories()
		if n > 1 {
			directories = m.tree.change(n)
		}
		if err := m.snapshot(ctx, n, directories); err != nil {
			return Made{}, fmt.Errorf("snapshot %d: %w", n, err)
		}
		progress("snapshot %d of %d: %d directories", n, s.Snapshots, len(directories))
	}
	return m.made, m.describe()
}

func (m *maker) allDirectories() []int {
	all := make([]int, m.tree.directories())
	for d := range all {
		all[d] = d
	}
	return all
}

// snapshot writes one snapshot, in which only these directories differ from the last one.
func (m *maker) snapshot(ctx context.Context, number int, directories []int) error {
	s, err := m.x.BeginSnapshot(ctx, m.shard.ID, backup.Snapshot{ID: backup.NewSnapshotID()}, started(number))
	if err != nil {
		return err
	}
	tasks, err := m.x.ClaimTasks(ctx, index.Claim{Snapshots: []backup.SnapshotID{s.ID}, Lease: time.Hour, Limit: 1, Now: started(number)})
	if err != nil {
		return err
	}
	if len(tasks) != 1 {
		return fmt.Errorf("%d tasks, not one", len(tasks))
	}
	task := tasks[0]
	result := &backup.SliceWalked{Snapshot: s.ID, Task: task.ID, Attempt: task.Attempt}
	for _, d := range directories {
		if err := m.add(result, d); err != nil {
			return err
		}
		if len(result.Pages) >= resultPages {
			if err := m.apply(ctx, result); err != nil {
				return err
			}
			result = &backup.SliceWalked{Snapshot: s.ID, Task: task.ID, Attempt: task.Attempt, Part: result.Part + 1}
		}
	}
	result.Last = true
	result.Counts = backup.Counts{Files: int64(m.tree.shape.Files), Directories: int64(m.tree.directories())}
	if err := m.apply(ctx, result); err != nil {
		return err
	}
	return m.commit(ctx, s, number)
}

// add adds the pages of a directory that differ from those of the last snapshot.
func (m *maker) add(result *backup.SliceWalked, d int) error {
	self, rest := m.tree.entries(d)
	path := m.tree.path(d)
	before, now := m.pages[d], map[backup.PageKey]backup.Fingerprint{}
	var keys listing.Keys
	page := backup.Page{Path: path, Self: &self}
	for more := true; more; {
		n := listing.Cut(rest, false)
		page.Entries, rest, page.Next = rest[:n], rest[n:], 0
		if more = len(rest) > 0; more {
			page.Next = keys.Next(rest[0].Name)
		}
		v := backup.PageVersion{Path: path, Key: page.Key, Fingerprint: m.fingerprint.Of(0, page.Self, page.Entries, page.Next)}
		now[page.Key] = v.Fingerprint
		if before[page.Key] != v.Fingerprint {
			if page.Self != nil {
				v.Inode = page.Self.Inode
			}
			var err error
			if v.Listing, err = m.encode.Encode(nil, &page); err != nil {
				return err
			}
			result.Pages = append(result.Pages, v)
			m.made.Pages++
		}
		page.Key, page.Self = page.Next, nil
	}
	for key := range before {
		if _, ok := now[key]; !ok {
			result.Ended = append(result.Ended, backup.PageName{Path: path, Key: key})
		}
	}
	m.pages[d] = now
	return nil
}

func (m *maker) apply(ctx context.Context, result *backup.SliceWalked) error {
	outcomes, err := m.x.Apply(ctx, []index.Result{{Slice: result}})
	if err == nil {
		err = outcomes[0].Err
	}
	if err == nil && outcomes[0].Late {
		err = errors.New("the result was refused as late")
	}
	return err
}

func (m *maker) commit(ctx context.Context, s backup.Snapshot, number int) error {
	for c, err := range m.x.Changes(ctx, s.ID) {
		switch {
		case err != nil:
			return err
		case c.Ended:
			m.set.Remove(c.Digest)
		default:
			m.set.Add(c.Digest)
		}
	}
	m.made.Last = [2]backup.SnapshotID{m.made.Last[1], s.ID}
	return m.x.Commit(ctx, s.ID, backup.Segment{Attempt: backup.NewPackID(), Parts: 1, Bytes: 1}, m.set, started(number).Add(time.Hour))
}

// describe chooses a file that changed lately, and whose name is unique, and the largest directory.
func (m *maker) describe() error {
	t, largest := m.tree, 0
	m.made.Snapshots, m.made.Files, m.made.Directories = t.shape.Snapshots, t.shape.Files, t.directories()
	for d := range t.directories() {
		if t.first[d+1]-t.first[d] > t.first[largest+1]-t.first[largest] {
			largest = d
		}
	}
	m.made.Large = t.path(largest)
	for d := t.directories() / 2; d < t.directories(); d++ {
		for n := t.first[d]; n < t.first[d+1]; n++ {
			if name := t.name(n); int(t.changed[n]) > t.shape.Snapshots/2 && !t.isRemoved(n) && t.isUnique(name) {
				m.made.Path, m.made.Name = backup.Join(t.path(d), name), name
				return nil
			}
		}
	}
	return errors.New("no file has changed")
}

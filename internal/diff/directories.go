package diff

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"sync"

	"github.com/bctl/bctl/internal/backup"
)

// A directory has the pages of one path that differ: those that only the newer snapshot has, and
// those that only the older one has.
type directory struct {
	path  string
	added []backup.PageVersion
	ended []backup.PageVersion

	now, old side // what is in added and ended, once it is decoded
}

// first returns the first page of a directory, or nil if that is not among the pages. It has the
// directory's own attributes.
func first(pages []backup.PageVersion) *backup.PageVersion {
	if len(pages) > 0 && pages[0].Key == 0 {
		return &pages[0]
	}
	return nil
}

// maxKept is the maximum length of the listings that are kept in memory, so that they are not read
// again.
const maxKept = 64 << 20

// keep reads the directories with pages that differ, and keeps them if they are small. Those that
// are gone from their paths are added to gone.
func (d *differ) keep(ctx context.Context, gone endedDirectories) error {
	bytes, content := 0, d.old.Pages
	for dir, err := range d.stream(ctx) {
		if err != nil {
			return err
		}
		gone.add(&dir)
		for i := range dir.ended {
			content.Remove(dir.ended[i].Digest)
		}
		for i := range dir.added {
			content.Add(dir.added[i].Digest)
		}
		for _, pages := range [][]backup.PageVersion{dir.added, dir.ended} {
			for i := range pages {
				bytes += len(pages[i].Listing) + len(pages[i].Path)
			}
		}
		if d.many = d.many || bytes > maxKept; d.many {
			d.kept = nil
			continue
		}
		d.kept = append(d.kept, dir)
	}
	if content != d.now.Pages {
		d.damaged = append(d.damaged, fmt.Errorf("the index lacks pages that differ, or has other ones: %w", backup.ErrCorrupt))
	}
	return nil
}

// directories yields the directories with pages that differ, in the order of path keys.
func (d *differ) directories(ctx context.Context) iter.Seq2[directory, error] {
	if d.many {
		return d.stream(ctx)
	}
	return func(yield func(directory, error) bool) {
		for i := range d.kept {
			if !yield(d.kept[i], nil) {
				return
			}
		}
	}
}

const (
	// decodedAtOnce is how many directories are decoded by one goroutine, and decodedAhead how many
	// such groups may wait until they are compared.
	decodedAtOnce = 32
	decodedAhead  = 2
)

// decoded yields the directories with pages that differ, with what is in the pages. They are read
// and decoded ahead, by other goroutines.
func (d *differ) decoded(ctx context.Context) iter.Seq2[*directory, error] {
	type group struct {
		of   []directory
		err  error         // after these
		done chan struct{} // closed once they are decoded
	}
	return func(yield func(*directory, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		groups := make(chan *group, decodedAhead)
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		send := func(g *group) bool {
			g.done = make(chan struct{})
			select {
			case groups <- g:
			case <-ctx.Done():
				return false
			}
			running.Go(func() {
				defer close(g.done)
				for i := range g.of {
					g.of[i].decode()
				}
			})
			return true
		}
		running.Go(func() {
			defer close(groups)
			next := &group{}
			for dir, err := range d.directories(ctx) {
				if next.err = err; err != nil {
					break
				}
				if next.of = append(next.of, dir); len(next.of) == decodedAtOnce {
					if !send(next) {
						return
					}
					next = &group{}
				}
			}
			send(next)
		})
		for g := range groups {
			<-g.done
			for i := range g.of {
				if !yield(&g.of[i], nil) {
					return
				}
			}
			if g.err != nil {
				yield(nil, g.err)
				return
			}
		}
	}
}

func (dir *directory) decode() {
	dir.now, dir.old = side{path: dir.path}, side{path: dir.path}
	dir.now.read(dir.added)
	dir.old.read(dir.ended)
}

// stream reads them from the index.
func (d *differ) stream(ctx context.Context) iter.Seq2[directory, error] {
	return func(yield func(directory, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		added, stopAdded := iter.Pull2(ahead(d.index.Added(ctx, d.now.ID, d.old.ID)))
		defer stopAdded()
		ended, stopEnded := iter.Pull2(ahead(d.index.Ended(ctx, d.now.ID, d.old.ID)))
		defer stopEnded()
		defer cancel() // before they are stopped, so that they do not wait for what they read ahead
		a, e := &pages{next: added}, &pages{next: ended}
		for a.advance() && e.advance() && (a.more || e.more) {
			var dir directory
			var order int
			switch {
			case !e.more:
				order = -1
			case !a.more:
				order = 1
			default:
				order = bytes.Compare(backup.PathKey(a.path()), backup.PathKey(e.path()))
			}
			if order <= 0 {
				dir.path = a.path()
				dir.added = a.take()
			}
			if order >= 0 {
				dir.path = e.path()
				dir.ended = e.take()
			}
			if a.err == nil && e.err == nil && !yield(dir, nil) {
				return
			}
		}
		for _, p := range []*pages{a, e} {
			if p.err != nil {
				yield(directory{}, p.err)
				return
			}
		}
	}
}

const (
	// aheadBytes is the length of the listings that are read ahead in one piece.
	aheadBytes  = 1 << 20
	aheadPieces = 2
)

// ahead yields the same, and reads ahead in another goroutine.
func ahead(changes iter.Seq2[backup.PageChange, error]) iter.Seq2[backup.PageChange, error] {
	type piece struct {
		of  []backup.PageChange
		err error // after these
	}
	return func(yield func(backup.PageChange, error) bool) {
		pieces, stop := make(chan piece, aheadPieces), make(chan struct{})
		var running sync.WaitGroup
		defer running.Wait()
		defer close(stop)
		running.Go(func() {
			defer close(pieces)
			var next piece
			size := 0
			send := func() bool {
				select {
				case pieces <- next:
					next, size = piece{}, 0
					return true
				case <-stop:
					return false
				}
			}
			for c, err := range changes {
				if next.err = err; err != nil {
					break
				}
				next.of = append(next.of, c)
				if size += len(c.Listing) + len(c.Path); size > aheadBytes && !send() {
					return
				}
			}
			send()
		})
		for p := range pieces {
			for i := range p.of {
				if !yield(p.of[i], nil) {
					return
				}
			}
			if p.err != nil {
				yield(backup.PageChange{}, p.err)
				return
			}
		}
	}
}

// pages reads a stream of pages by directory.
type pages struct {
	next func() (backup.PageChange, error, bool)
	head *backup.PageChange // the next one, once it is read
	more bool               // there is a head
	err  error
}

// advance reads the head, and reports false on an error.
func (p *pages) advance() bool {
	if p.head == nil && p.err == nil {
		var c backup.PageChange
		c, p.err, p.more = p.next()
		p.head = &c
	}
	return p.err == nil
}

func (p *pages) path() string { return p.head.Path }

// take returns the pages of the head's directory, and leaves the first one of the next directory as
// the head.
func (p *pages) take() (list []backup.PageVersion) {
	path := p.path()
	for p.more && p.path() == path {
		list = append(list, p.head.PageVersion)
		p.head = nil
		if !p.advance() {
			return nil
		}
	}
	return list
}

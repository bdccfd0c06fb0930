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

// decodedAtOnce is how many directories are decoded by one goroutine.
const decodedAtOnce = 32

// decoded yields the directories with pages that differ, with what is in the pages. They are read
// and decoded ahead, by other goroutines.
func (d *differ) decoded(ctx context.Context) iter.Seq2[directory, error] {
	return func(yield func(directory, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		each := func(*directory) int { return 1 }
		for dir, err := range ahead(d.directories(ctx), each, decodedAtOnce, (*directory).decode) {
			if !yield(dir, err) {
				cancel() // what is read ahead is not waited for
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
		added, stopAdded := iter.Pull2(ahead(d.index.Added(ctx, d.now.ID, d.old.ID), lengthOf, aheadBytes, nil))
		defer stopAdded()
		ended, stopEnded := iter.Pull2(ahead(d.index.Ended(ctx, d.now.ID, d.old.ID), lengthOf, aheadBytes, nil))
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

// aheadBytes is the length of the listings that are read ahead in one piece.
const aheadBytes = 1 << 20

func lengthOf(c *backup.PageChange) int { return len(c.Listing) + len(c.Path) }

// aheadPieces is how many pieces may wait until they are taken.
const aheadPieces = 2

// ahead yields the same values, which another goroutine reads ahead in pieces of the given weight.
// Another one prepares each piece; nil: nothing is to be prepared.
func ahead[T any](values iter.Seq2[T, error], weigh func(*T) int, weight int, prepare func(*T)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		pieces, stop := make(chan *piece[T], aheadPieces), make(chan struct{})
		var running sync.WaitGroup
		defer running.Wait()
		defer close(stop)
		send := func(p *piece[T]) bool {
			p.ready = make(chan struct{})
			select {
			case pieces <- p:
			case <-stop:
				return false
			}
			if prepare == nil {
				close(p.ready)
				return true
			}
			running.Go(func() {
				defer close(p.ready)
				for i := range p.of {
					prepare(&p.of[i])
				}
			})
			return true
		}
		running.Go(func() {
			defer close(pieces)
			next, size := &piece[T]{}, 0
			for v, err := range values {
				if next.err = err; err != nil {
					break
				}
				next.of = append(next.of, v)
				if size += weigh(&v); size < weight {
					continue
				}
				if !send(next) {
					return
				}
				next, size = &piece[T]{}, 0
			}
			send(next)
		})
		for p := range pieces {
			<-p.ready
			if !p.each(yield) {
				return
			}
		}
	}
}

// A piece is some values, and the error after them.
type piece[T any] struct {
	of    []T
	err   error
	ready chan struct{} // closed once they are prepared
}

// each yields the values and the error. It reports whether more may follow.
func (p *piece[T]) each(yield func(T, error) bool) bool {
	for i := range p.of {
		if !yield(p.of[i], nil) {
			return false
		}
	}
	if p.err != nil {
		var none T
		yield(none, p.err)
	}
	return p.err == nil
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

package dump

import (
	"context"
	"fmt"
	"io"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore"
)

// An archive writes entries to a stream.
type archive interface {
	// add begins an entry. The content of a file follows, e.Size bytes in all. If link is not
	// empty, the entry is a further name of the file that was added at that path. refused says what
	// the archive has no place for; with whole, it has no place for the entry at all, and nothing
	// was written.
	add(path string, e *backup.Entry, link string) (refused []refusal, err error)
	io.Writer
	// close ends the archive.
	close() error
}

// A refusal is something for which a format has no place.
type refusal struct {
	what  string // in the plural, for Summary.LeftOut
	whole bool   // the entry, and not only an attribute
}

// write writes the batches.
func (d *dumper) write(ctx context.Context) error {
	w := &writer{dumper: d}
	for b := range d.batches {
		select {
		case <-b.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if b.err != nil {
			return b.err
		}
		for i, p := range b.parts {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := w.part(p); err != nil {
				return err
			}
			b.parts[i] = nil // its content is not needed any more
		}
	}
	return nil
}

// A writer writes parts, in order.
type writer struct {
	*dumper
	skip bool  // the rest of the file is left out
	at   int64 // offset in the file
}

func (w *writer) part(p *part) error {
	err := p.damage()
	switch {
	case p.first:
		w.skip = false
		if err != nil {
			return w.leaveOut(p, "dump", err)
		}
		if err := w.begin(p); err != nil {
			return err
		}
	case err != nil && !w.skip:
		return fmt.Errorf("%s: %w: %w", p.path, ErrCut, err)
	}
	if w.skip || p.further || p.e.Kind != backup.File {
		return nil
	}
	for i := range p.segments {
		s := &p.segments[i]
		if err := w.zeros(s.offset); err != nil {
			return err
		}
		if _, err := w.out.Write(s.data); err != nil {
			return err
		}
		w.at += int64(len(s.data))
	}
	if !p.last {
		w.progress(p)
		return nil
	}
	if err := w.zeros(p.e.Size); err != nil {
		return err
	}
	w.sum.Files++
	w.sum.Bytes += p.e.Size
	w.at = 0
	w.progress(p)
	return nil
}

func (w *writer) progress(p *part) {
	w.obs.Progress(restore.Progress{Files: w.sum.Files, Bytes: w.sum.Bytes + w.at, Path: p.path})
}

// leaveOut reports an entry that the archive will not have.
func (w *writer) leaveOut(p *part, op string, err error) error {
	w.problem(&w.sum.Problems, p.path, op, err)
	w.lose(p)
	if w.o.Format == Content {
		return fmt.Errorf("%s: nothing was written: %w", p.path, err)
	}
	return nil
}

// lose skips the rest of an entry, and has further names of the file reported.
func (w *writer) lose(p *part) {
	w.skip = true
	if p.group != nil && !p.further {
		p.group.lost = true
	}
}

// begin writes what precedes the content of an entry.
func (w *writer) begin(p *part) error {
	if p.xattrsLost != nil {
		w.problem(&w.sum.Problems, p.path, "xattr", p.xattrsLost)
	}
	link := ""
	if p.further {
		if p.group.lost {
			return w.leaveOut(p, "link", fmt.Errorf("the archive does not have the first name of this file, %q", p.group.path))
		}
		link = p.group.path
	}
	refused, err := w.out.add(p.path, &p.e, link)
	if err != nil {
		return err
	}
	for _, r := range refused {
		w.sum.LeftOut[r.what]++
		if r.whole {
			w.lose(p)
		}
	}
	switch {
	case w.skip:
	case p.further:
		w.sum.Links++
	case p.e.Kind == backup.Directory:
		w.sum.Directories++
	case p.e.Kind != backup.File:
		w.sum.Files++
	}
	return nil
}

var zeroBytes [64 << 10]byte

// zeros writes zeros for the hole that ends at an offset.
func (w *writer) zeros(end int64) error {
	for w.at < end {
		n, err := w.out.Write(zeroBytes[:min(end-w.at, int64(len(zeroBytes)))])
		if err != nil {
			return err
		}
		w.at += int64(n)
	}
	return nil
}

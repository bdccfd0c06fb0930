package restore

import (
	"context"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/fetch"
)

const (
	maxWindowEntries = 8192
	maxWindowChunks  = 1 << 16
	windowsInFlight  = 2
	// lookahead is the number of files whose lists are loaded together.
	lookahead = 128
	// runEntries is the number of entries that one goroutine processes at a time.
	runEntries = 128
)

// A window is a run of files that are restored together, in whatever order their chunks arrive.
type window struct {
	files       []*file
	directories []*directory // that wait for their xattr chunk
	chunks      int
	xattrs      map[backup.Ref]struct{} // chunks of files and directories
	xattrBytes  int64
}

func (w *window) add(f *file) {
	w.files = append(w.files, f)
	w.chunks += len(f.e.Content.Refs)
	if !f.further {
		w.wantXattrs(f.e.XattrChunk)
	}
}

// addDirectory makes the directory wait until its xattr chunk is fetched, if it has one.
func (w *window) addDirectory(d *directory) {
	if d.self.XattrChunk.Length > 0 {
		w.directories = append(w.directories, d)
		w.wantXattrs(d.self.XattrChunk)
		d.pending.Add(1)
	}
}

func (w *window) wantXattrs(ref backup.Ref) {
	if ref.Length == 0 {
		return
	}
	if _, ok := w.xattrs[ref]; ok {
		return
	}
	if w.xattrs == nil {
		w.xattrs = make(map[backup.Ref]struct{})
	}
	w.xattrs[ref] = struct{}{}
	w.xattrBytes += min(ref.Length, chunk.MaxBytes) // no chunk is longer
}

func (w *window) full() bool {
	return len(w.files)+len(w.directories) >= maxWindowEntries || w.chunks >= maxWindowChunks || w.xattrBytes >= maxWindowXattrBytes
}

// flush decides what to do with the window's files and starts the work.
func (p *planner) flush(ctx context.Context) error {
	r, w, files := p.r, p.window, p.window.files
	p.window = &window{}
	if err := w.takeXattrs(ctx, r); err != nil {
		return err
	}
	for _, d := range w.directories {
		d.done()
	}
	if len(files) == 0 {
		return nil
	}
	r.at(backup.Join(files[0].dir.path, files[0].e.Name))
	if err := each(ctx, files, func(f *file) { f.decide(ctx) }); err != nil {
		return err
	}
	var simple, content []*file
	for _, f := range files {
		switch {
		case f.settled:
		case f.needsContent():
			f.stream = newRefStream(f.e.Size, f.e.Content)
			content = append(content, f)
		default:
			simple = append(simple, f)
		}
	}
	p.windows.Go(func() error { return each(ctx, simple, (*file).makeWhole) })
	return p.gather(ctx, content)
}

// gather turns files into wanted chunks and starts fetching them whenever they fill a window.
func (p *planner) gather(ctx context.Context, files []*file) error {
	var wants []fetch.Want
	for len(files) > 0 {
		f := files[0]
		ref, offset, list, ok, err := f.stream.peek()
		switch {
		case err != nil:
			f.fail("restore", err)
			fallthrough
		case !ok || f.hasFailed():
			f.arrive() // the planner has no more chunks for it
			files = files[1:]
		case list:
			if err := p.r.loadLists(ctx, streamsOf(files)); err != nil {
				return err
			}
		default:
			f.want(offset, ref.Length)
			wants = append(wants, fetch.Want{Chunk: ref.Chunk, Length: ref.Length, Offset: offset, Sink: f})
			f.stream.advance()
		}
		if len(wants) >= maxWindowChunks {
			p.fetch(ctx, wants)
			wants = nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	p.fetch(ctx, wants)
	return nil
}

// fetch starts fetching and writing the chunks. It waits while too many windows are in flight.
func (p *planner) fetch(ctx context.Context, wants []fetch.Want) {
	if len(wants) > 0 {
		p.windows.Go(func() error { return p.r.fetch.Get(ctx, wants) })
	}
}

func streamsOf(files []*file) []*refStream {
	streams := make([]*refStream, 0, min(len(files), lookahead))
	for _, f := range files[:min(len(files), lookahead)] {
		streams = append(streams, &f.stream)
	}
	return streams
}

// each calls do for every file, on all CPUs, until the context is canceled.
func each(ctx context.Context, files []*file, do func(*file)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * runtime.GOMAXPROCS(0))
	for len(files) > 0 {
		n := min(runEntries, len(files))
		run := files[:n]
		files = files[n:]
		g.Go(func() error {
			for _, f := range run {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				do(f)
			}
			return nil
		})
	}
	return g.Wait()
}

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
	maxBundleEntries = 8192
	maxBundleChunks  = 1 << 16
	bundlesInFlight  = 2
	// lookahead is the number of files whose lists are loaded together.
	lookahead = 128
	// runEntries is the number of entries that one goroutine processes at a time.
	runEntries = 128
)

// A bundle is a run of files that are restored together. Their chunks arrive in any order.
type bundle struct {
	files       []*file
	directories []*directory // that wait for their xattr chunk
	chunks      int
	xattrs      map[backup.Ref]struct{} // chunks of files and directories
	xattrBytes  int64
}

func (b *bundle) add(f *file) {
	b.files = append(b.files, f)
	b.chunks += len(f.e.Content.Refs)
	if !f.further {
		b.wantXattrs(f.e.XattrChunk)
	}
}

// addDirectory makes the directory wait until its xattr chunk is fetched, if it has one.
func (b *bundle) addDirectory(d *directory) {
	if d.self.XattrChunk.Length > 0 {
		b.directories = append(b.directories, d)
		b.wantXattrs(d.self.XattrChunk)
		d.pending.Add(1)
	}
}

func (b *bundle) wantXattrs(ref backup.Ref) {
	if ref.Length == 0 {
		return
	}
	if _, ok := b.xattrs[ref]; ok {
		return
	}
	if b.xattrs == nil {
		b.xattrs = make(map[backup.Ref]struct{})
	}
	b.xattrs[ref] = struct{}{}
	b.xattrBytes += min(ref.Length, chunk.MaxBytes) // no chunk is longer
}

func (b *bundle) full() bool {
	return len(b.files)+len(b.directories) >= maxBundleEntries || b.chunks >= maxBundleChunks || b.xattrBytes >= maxBundleXattrBytes
}

// flush decides what to do with the bundle's files and starts the work.
func (p *planner) flush(ctx context.Context) error {
	r, b, files := p.r, p.bundle, p.bundle.files
	p.bundle = &bundle{}
	if err := b.takeXattrs(ctx, r); err != nil {
		return err
	}
	for _, d := range b.directories {
		d.done()
	}
	if len(files) == 0 {
		return nil
	}
	for _, f := range files { // after join, which compares names as the snapshot has them
		r.o.mapOwners(&f.e)
	}
	r.setPath(backup.Join(files[0].dir.path, files[0].e.Name))
	if err := each(ctx, files, func(f *file) { f.decide(ctx) }); err != nil {
		return err
	}
	var simple, content []*file
	for _, f := range files {
		switch {
		case f.settled:
		case f.needsContent():
			f.stream = fetch.NewRefs(f.e.Size, f.e.Content)
			content = append(content, f)
		default:
			simple = append(simple, f)
		}
	}
	p.bundles.Go(func() error { return each(ctx, simple, (*file).makeWhole) })
	return p.gather(ctx, content)
}

// gather turns files into wanted chunks and starts fetching them whenever they fill a bundle.
func (p *planner) gather(ctx context.Context, files []*file) error {
	var wants []fetch.Want
	defer func() {
		if len(files) > 0 {
			files[0].old.close()
		}
	}()
	for len(files) > 0 {
		f := files[0]
		ref, offset, list, ok, err := f.stream.Peek()
		switch {
		case err != nil:
			f.fail("restore", err)
			fallthrough
		case !ok || f.hasFailed():
			f.endOld()
			f.arrive() // the planner has no more chunks for it
			files = files[1:]
		case list:
			if err := p.r.fetch.Load(ctx, streamsOf(files)); err != nil {
				return err
			}
		default:
			there, err := f.isThere(ref, offset)
			if err != nil {
				f.fail("update", err)
				continue
			}
			if there {
				f.stream.Advance()
				break
			}
			f.want(offset, ref.Length)
			wants = append(wants, fetch.Want{Chunk: ref.Chunk, Length: ref.Length, Tag: offset, Sink: f})
			f.stream.Advance()
		}
		if len(wants) >= maxBundleChunks {
			p.startFetch(ctx, wants)
			wants = nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	p.startFetch(ctx, wants)
	return nil
}

// startFetch starts fetching the chunks, each of which file.Chunk writes. It waits while too many
// bundles are in flight.
func (p *planner) startFetch(ctx context.Context, wants []fetch.Want) {
	if len(wants) > 0 {
		p.bundles.Go(func() error { return p.r.fetch.Get(ctx, wants) })
	}
}

func streamsOf(files []*file) []*fetch.Refs {
	streams := make([]*fetch.Refs, 0, min(len(files), lookahead))
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

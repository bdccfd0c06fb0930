package restore

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/listing"
)

// An Amount is what a restore selects.
type Amount struct {
	Files int64 // entries that are not directories
	Bytes int64 // sum of their sizes
}

// measureAfter is when a restore begins to measure what it selects. Most restores have ended by
// then, and the time left is not shown earlier.
const measureAfter = time.Second

// measureBeside measures, if Options.Estimate asks for it, what is selected, while the restore
// runs. stop ends it.
func (r *restorer) measureBeside(ctx context.Context, entry *backup.Entry) (stop func()) {
	if r.total.Load() != nil || !r.o.Estimate {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-ctx.Done():
			return
		case <-time.After(measureAfter):
		}
		if a, err := r.amount(ctx, entry, false); err == nil {
			r.total.CompareAndSwap(nil, &a)
		}
	}()
	return func() { cancel(); <-ended }
}

// selectsAll reports whether the whole snapshot is restored.
func (o *Options) selectsAll() bool {
	return o.Path == "" && o.Include == nil && o.Exclude == nil && len(o.Protected) == 0 && o.Newer.IsZero()
}

// amount reads the pages of what is selected and adds it up. With content, Bytes is a lower bound
// of what the target must hold: holes do not count, and each of n hard links counts an n-th.
func (r *restorer) amount(ctx context.Context, entry *backup.Entry, content bool) (a Amount, err error) {
	add := func(e *backup.Entry) error {
		a.Files++
		bytes := e.Size
		if content {
			if bytes, err = r.contentBytes(ctx, e); err != nil {
				return err
			}
		}
		a.Bytes += bytes
		return nil
	}
	if entry.Kind != backup.Directory {
		if !r.isNewer(entry) {
			return a, nil
		}
		return a, add(entry)
	}
	s := selected{r: r}
	for v, err := range r.cat.Pages(ctx, r.o.Snapshot, r.o.Path) {
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return a, err
		}
		page, err := listing.DecodePage(v)
		path, ok := r.relative(v.Path)
		if err != nil || !ok || !s.enter(path) {
			continue // the restore reports it
		}
		for i := range page.Entries {
			if e := &page.Entries[i]; s.has(e) {
				if err := add(e); err != nil {
					return a, err
				}
			}
		}
	}
	return a, nil
}

// contentBytes returns the bytes of the file's chunks, divided by its links.
func (r *restorer) contentBytes(ctx context.Context, e *backup.Entry) (bytes int64, err error) {
	if e.Kind != backup.File {
		return 0, nil
	}
	refs := fetch.NewRefs(e.Size, e.Content)
	for {
		ref, _, list, ok, err := refs.Peek()
		switch {
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case err != nil || !ok:
			return bytes / int64(max(e.Nlink, 1)), nil //nolint:nilerr // the restore reports it
		case list:
			if err := r.fetch.Load(ctx, []*fetch.Refs{&refs}); err != nil {
				return 0, err
			}
			continue
		}
		bytes += ref.Length
		refs.Advance()
	}
}

// A selected reports which entries are selected, in walk order, as the planner does.
type selected struct {
	r       *restorer
	path    string
	wanted  bool   // the directory, with everything in it
	skipped string // directory that is left out with everything below it; "" is none
	whole   string // directory that is selected with everything below it
	inWhole bool   // whole is set
}

// enter makes path the current directory. It is false if nothing in it is restored.
func (s *selected) enter(path string) bool {
	if s.skipped != "" && (path == s.skipped || backup.IsBelow(path, s.skipped)) {
		return false
	}
	if path != "" && s.r.excluded(path, true) {
		s.skipped = path
		return false
	}
	s.path = path
	if s.inWhole && path != s.whole && !backup.IsBelow(path, s.whole) {
		s.inWhole = false
	}
	include := s.r.o.Include
	if !s.inWhole && include != nil && path != "" && include.Matches(path, true) {
		s.whole, s.inWhole = path, true
	}
	s.wanted = include == nil || s.inWhole
	return true
}

func (s *selected) has(e *backup.Entry) bool {
	if e.Kind == backup.Directory || !s.r.isNewer(e) {
		return false
	}
	path := backup.Join(s.path, e.Name)
	return !s.r.excluded(path, false) && (s.wanted || s.r.included(path))
}

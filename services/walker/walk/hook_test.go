package walk

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// A hookedSource calls a hook before each call that it forwards. A hook that blocks acts as a filer
// that hangs: contexts do not end it.
type hookedSource struct {
	source.Source
	onOpen      func(url string) error
	onDirectory func(url, path string)
	onRead      func(path string)
}

func (s *hookedSource) Open(ctx context.Context, url string) (source.Tree, error) {
	if s.onOpen != nil {
		if err := s.onOpen(url); err != nil {
			return nil, err
		}
	}
	tree, err := s.Source.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	return &hookedTree{tree, url, s}, nil
}

type hookedTree struct {
	source.Tree
	url   string
	hooks *hookedSource
}

func (t *hookedTree) OpenDirectory(ctx context.Context, path string) (source.Directory, error) {
	if t.hooks.onDirectory != nil {
		t.hooks.onDirectory(t.url, path)
	}
	d, err := t.Tree.OpenDirectory(ctx, path)
	if err != nil {
		return nil, err
	}
	return &hookedDirectory{d, path, t.hooks}, nil
}

type hookedDirectory struct {
	source.Directory
	path  string
	hooks *hookedSource
}

func (d *hookedDirectory) Read(ctx context.Context, dst []backup.Entry, problem func(name, op string, err error)) ([]backup.Entry, int, error) {
	if d.hooks.onRead != nil {
		d.hooks.onRead(d.path)
	}
	return d.Directory.Read(ctx, dst, problem)
}

// A hang makes calls wait until it ends.
type hang struct {
	asked chan struct{} // has a token for the first call that waits
	over  chan struct{}
	calls atomic.Int32
	end   func()
}

func newHang() *hang {
	h := &hang{asked: make(chan struct{}, 1), over: make(chan struct{})}
	h.end = sync.OnceFunc(func() { close(h.over) })
	return h
}

func (h *hang) wait() {
	h.calls.Add(1)
	select {
	case h.asked <- struct{}{}:
	default:
	}
	<-h.over
}

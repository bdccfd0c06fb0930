//go:build linux

package nfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/nfs3"
	"github.com/bctl/bctl/internal/source"
)

// Options tune a Source. The zero Options are the defaults.
type Options struct {
	// Behind is by how much the clock of a server may be behind this machine's, including its
	// granularity; 0: DefaultBehind.
	Behind time.Duration
}

// DefaultBehind is the default of Options.Behind.
const DefaultBehind = 5020 * time.Millisecond

// A Source opens trees of NFS servers. It may be used concurrently.
type Source struct {
	options Options
	servers servers
}

var _ source.Source = (*Source)(nil)

// New returns a Source.
func New(options Options) *Source {
	options.Behind = cmp.Or(max(options.Behind, 0), DefaultBehind)
	return &Source{options: options, servers: servers{uses: map[string]*use{}}}
}

// Open implements source.Source.
func (s *Source) Open(ctx context.Context, rawURL string) (source.Tree, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	top, snapshot, err := source.CutSnapshot(rawURL)
	if err != nil {
		return nil, err
	}
	t, err := s.open(ctx, top)
	if err != nil {
		return nil, err
	}
	if snapshot == nil {
		return t, nil
	}
	if err := t.enter(ctx, snapshot); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// open opens the tree at a URL without a source snapshot.
func (s *Source) open(ctx context.Context, rawURL string) (*tree, error) {
	a, err := parse(rawURL)
	if err != nil {
		return nil, err
	}
	srv, err := s.servers.get(ctx, &a)
	if err != nil {
		return nil, rootError(&a, err)
	}
	root, err := srv.mount(ctx, a.path)
	if err != nil {
		s.servers.put(a.key)
		return nil, rootError(&a, err)
	}
	t := &tree{
		source: s, server: srv, address: a, root: root, behind: s.options.Behind,
		identity: backup.Root{FileSystem: Scheme, Inode: root.attr.FileID}, readBytes: nfs3.MaxTransferBytes,
	}
	if info, err := srv.nfs.FSInfo(ctx, root.handle); err == nil && info.MaxRead > 0 {
		t.readBytes = int(min(info.MaxRead, nfs3.MaxTransferBytes))
	}
	return t, nil
}

func rootError(a *address, err error) error {
	err = asError(err)
	kind := backup.ErrUnavailable
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("open %q on %s: %w; is it exported to this machine, and to this user?", a.path, a.server.Host, err)
	case errors.Is(err, backup.ErrUnavailable), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("open %q on %s: %w", a.path, a.server.Host, err)
	case errors.Is(err, fs.ErrNotExist):
		kind = backup.ErrNotFound
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, backup.ErrOutside):
		kind = backup.ErrInvalid
	}
	return fmt.Errorf("open %q on %s: %w: %w", a.path, a.server.Host, err, kind)
}

package open

import (
	"context"
	"strings"

	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/nfs"
	"github.com/bctl/bctl/internal/source/posix"
)

// sources opens the trees of shards with the source of their URL's scheme.
type sources struct {
	local *posix.Source
	nfs   *nfs.Source
}

var _ source.Source = sources{}

// Source opens the trees of all shards: file systems of this machine, and exports of NFS servers.
func Source(c *config.Config) source.Source {
	return sources{LocalSource(c), nfs.New(nfs.Options{Behind: c.Worker.Grain + c.Worker.Skew})}
}

// LocalSource opens the file systems of this machine.
func LocalSource(c *config.Config) *posix.Source {
	return posix.New(posix.Options{Grain: c.Worker.Grain, Skew: c.Worker.Skew})
}

// of returns the source of a URL. That of this machine refuses unknown schemes.
func (s sources) of(url string) source.Source {
	if strings.HasPrefix(url, nfs.Scheme+"://") {
		return s.nfs
	}
	return s.local
}

// Open implements source.Source.
func (s sources) Open(ctx context.Context, url string) (source.Tree, error) {
	return s.of(url).Open(ctx, url)
}

// Resolve implements source.Source.
func (s sources) Resolve(ctx context.Context, url, pattern string) (string, error) {
	return s.of(url).Resolve(ctx, url, pattern)
}

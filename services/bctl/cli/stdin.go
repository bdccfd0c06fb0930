package cli

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/source/stdin"
	"github.com/bctl/bctl/services/bctl/embedded"
	"github.com/bctl/bctl/services/bctl/open"
)

// A stream is the standard input that is backed up, as a shard with one file.
type stream struct {
	wanted bool
	name   string // of the file
	in     io.Reader
}

func (s *stream) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.wanted, "stdin", false, "on one machine: back up the standard input as one file")
	cmd.Flags().StringVar(&s.name, "stdin-filename", "stdin", "with --stdin: the `NAME` of the file")
}

// checkStream fails if other arguments contradict --stdin.
func (c *backupCommand) checkStream(paths []string) error {
	switch {
	case !c.stream.wanted && c.stream.name != "stdin":
		return usage("--stdin-filename needs --stdin")
	case !c.stream.wanted:
		return nil
	case c.app.cfg.Fleet():
		return usage("--stdin is not available in a fleet, where the services read the files")
	case len(paths) > 0 || c.list.file != "" || c.all || len(c.labels)+len(c.shards) > 0:
		return usage("--stdin backs up only the standard input and cannot be combined with PATH, --files-from, --shard, --label or --all")
	case c.dryRun:
		return usage("--dry-run cannot be combined with --stdin, which can be read only once")
	case len(c.selection.Exclude)+len(c.selection.ExcludeIfPresent) > 0 || c.selection.OneFileSystem || c.selection.ExcludeLargerBytes > 0:
		return usage("--exclude and the related flags cannot be combined with --stdin")
	}
	if err := stdin.CheckName(c.stream.name); err != nil {
		return usage("--stdin-filename %v", err)
	}
	return nil
}

// ofStream returns the shard for the standard input, and creates it on first use.
func (c *backupCommand) ofStream(ctx context.Context, i index.Catalog) ([]target, error) {
	url := stdin.URL(c.stream.name)
	name, err := c.filerName(url)
	if err != nil {
		return nil, err
	}
	filer, err := c.filerNamed(ctx, i, name, nil)
	if err != nil {
		return nil, err
	}
	shard, err := c.shardOfSource(ctx, i, &filer, backup.Shard{Name: url, Source: url})
	return []target{{filer: filer.Name, shard: shard}}, err
}

// spool reads the standard input to its end, and makes it the source. release removes the copy.
func (c *backupCommand) spool(ctx context.Context, o *embedded.Options, shard backup.Shard) (release func(), err error) {
	in := &countedReader{in: c.stream.in}
	stop := c.app.animate(func() string { return fmt.Sprintf("reading standard input: %s", size(in.bytes.Load())) })
	defer stop()
	s, release, err := embedded.Spool(ctx, o.LockDir, shard, open.LocalSource(c.app.cfg), c.stream.name, in)
	if err != nil {
		return nil, err
	}
	o.Source = s
	return release, nil
}

// A countedReader counts what is read from it.
type countedReader struct {
	in    io.Reader
	bytes atomic.Int64
}

func (r *countedReader) Read(p []byte) (n int, err error) {
	n, err = r.in.Read(p)
	r.bytes.Add(int64(n))
	return n, err
}

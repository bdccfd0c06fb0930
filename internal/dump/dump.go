package dump

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/hardlink"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/seal"
)

// A Format is the form in which a dump writes.
type Format string

const (
	// Tar is an archive in the pax format, with all attributes of a restore except holes.
	Tar Format = "tar"
	// Zip has names, types, permissions, numbers of owners, and times in whole seconds.
	Zip Format = "zip"
	// Content is the content of one file, without an archive.
	Content Format = "content"
)

// Options select what to dump, and how.
type Options struct {
	Snapshot backup.SnapshotID
	Path     string // within the shard; "" is all of it
	Format   Format
	// Pages is the page set that the snapshot was committed with; zero if it is not known. When the
	// whole shard is dumped, it reveals pages of the index that are missing or foreign.
	Pages backup.PageSet
	// Compare is what the snapshot's backup compared (hardlink.NewKeyer).
	Compare backup.Compare
	// User and Group return the names of a user and a group, or "" if they are not known. nil:
	// none is known.
	User, Group func(id uint32) string

	Concurrency int // maximum concurrent reads of pack ranges; 0: a few per CPU
}

// An Observer receives the events of a dump. Its methods are called from any goroutine.
type Observer interface {
	// Progress reports how much has been written.
	Progress(restore.Progress)
	// Problem reports one thing that the dump lacks. Its path is relative to what is dumped.
	Problem(backup.Problem)
}

// A Summary counts what a dump has written.
type Summary struct {
	Files       int64 // including symlinks and special files
	Links       int64 // further names of files
	Directories int64
	Bytes       int64 // of content, with holes
	Problems    int64
	// LeftOut counts what the format has no place for, by what it is, in the plural.
	LeftOut map[string]int64
}

// ErrCut reports that a file is damaged of which a part had been written. The stream ends there.
var ErrCut = errors.New("damaged in the middle, and the output ends there")

// A dumper is one run of Dump.
type dumper struct {
	o     Options
	obs   Observer
	cat   restore.Catalog
	key   seal.DedupKey
	fetch *fetch.Fetcher

	batches chan *batch
	out     archive
	sum     Summary // of the writer
	planned int64   // problems that the planner has found
}

// Dump writes what o selects. The Summary is also valid with an error. Errors are
// backup.ErrNotFound, ErrInvalid (the format does not suit the entry), ErrWrongKey, ErrUnavailable,
// ErrCut, those of out, or the context's. Problems are not errors.
func Dump(ctx context.Context, deps restore.Deps, o Options, out io.Writer, obs Observer) (Summary, error) {
	entry, err := browse.Lookup(ctx, deps.Catalog, o.Snapshot, o.Path)
	if err != nil {
		return Summary{}, err
	}
	d := &dumper{
		o: o, obs: obs, cat: deps.Catalog, key: deps.HashKey, batches: make(chan *batch, batchesInFlight),
		fetch: fetch.New(fetch.Options{
			Index: deps.Catalog, Store: deps.Store, Repository: deps.Repository, Opener: deps.Opener, HashKey: deps.HashKey, Concurrency: o.Concurrency,
		}),
		sum: Summary{LeftOut: map[string]int64{}},
	}
	if d.out, err = newArchive(&o, out, &entry); err != nil {
		return Summary{}, err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(d.batches)
		return d.plan(ctx, g, &entry)
	})
	g.Go(func() error { return d.write(ctx) })
	if err = g.Wait(); err == nil {
		err = d.out.close()
	}
	d.sum.Problems += d.planned
	return d.sum, err
}

// newArchive returns the archive that writes the format.
func newArchive(o *Options, out io.Writer, entry *backup.Entry) (archive, error) {
	switch {
	case o.Format == Tar:
		return newTar(out, o), nil
	case o.Format == Zip:
		return newZip(out), nil
	case o.Format != Content:
		return nil, fmt.Errorf("format %q: %w", o.Format, backup.ErrInvalid)
	case entry.Kind != backup.File:
		return nil, fmt.Errorf("%q is a %v, which has no content: %w", o.Path, entry.Kind, backup.ErrInvalid)
	case entry.Flags&hardlink.Missing != 0:
		return nil, fmt.Errorf("%q: %w: %w", o.Path, browse.ErrContentMissing, backup.ErrNotFound)
	}
	return &content{out: out}, nil
}

// problem reports what the dump lacks.
func (d *dumper) problem(count *int64, path, op string, err error) {
	*count++
	d.obs.Problem(backup.Problem{Path: path, Op: op, Err: err.Error()})
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/index"
)

// A PATH that is a file has a shard of its own, which has the name of the file. Its source is the
// file's directory, and its selection excludes all other entries. So no snapshot of the directory
// is compared with one of the file, and bctl backup --all backs up the file, too.

// A target is a shard to back up.
type target struct {
	filer string
	shard backup.Shard
	// only, if not empty, are the patterns that exclude everything but the file that was given as
	// PATH.
	only []string
}

func (t *target) String() string { return display(t.filer) + " " + display(t.shard.Name) }

// root returns the path of the tree on this machine.
func (t *target) root() string {
	if len(t.only) > 0 {
		return filepath.Dir(t.shard.Name)
	}
	return t.shard.Name
}

// absolute returns the absolute path of what exists at path.
func absolute(path string, info fs.FileInfo) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if !utf8.ValidString(abs) {
		return "", fmt.Errorf("the path %s is not UTF-8, and cannot be the name of a shard: rename it, or register its directory by another name "+
			"(bctl filer add FILER, bctl shard add FILER NAME --source PATH) and back that up (bctl backup --filer FILER --shard NAME): %w", display(abs), backup.ErrInvalid)
	}
	if named, err := os.Stat(abs); err == nil && os.SameFile(named, info) {
		return abs, nil
	}
	// The path contains ".." after a symbolic link, so it cannot be simplified without resolving
	// the link.
	wd, err := unix.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the current directory: %w", err)
	}
	if !filepath.IsAbs(path) {
		path = wd + "/" + path
	}
	return filepath.EvalSymlinks(path)
}

// shardAt returns the shard of a PATH. It follows symbolic links.
func (c *backupCommand) shardAt(path string) (s backup.Shard, err error) {
	if isNFS(path) {
		return nfsShard(path)
	}
	if path, err = config.ExpandHome(path, c.app.env); err != nil {
		return s, err
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, absent("%s does not exist", display(path))
	case err != nil:
		return s, err
	case !info.IsDir() && !info.Mode().IsRegular():
		return s, fmt.Errorf("%s is neither a directory nor a regular file; to back up what it contains: bctl backup --stdin", display(path))
	}
	if s.Name, err = absolute(path, info); err != nil {
		return s, err
	}
	if info.IsDir() {
		s.Source = sourceURL(s.Name)
		return s, nil
	}
	file := s.Name
	if linked, err := os.Lstat(file); err == nil && linked.Mode()&fs.ModeSymlink != 0 {
		if file, err = filepath.EvalSymlinks(file); err != nil {
			return s, err
		}
	}
	name, err := listedPath("/", filepath.Base(file))
	if err != nil {
		return s, err
	}
	s.Source = sourceURL(filepath.Dir(file))
	s.Selection.Exclude, _ = onlyPaths([]string{name})
	return s, nil
}

// ofPaths returns the shards of paths on this machine, and creates them on first use. A path
// without a directory or file is reported, and does not prevent the backup of the others.
func (c *backupCommand) ofPaths(ctx context.Context, i index.Catalog, paths []string, r *report) ([]target, error) {
	var shards []backup.Shard
	for _, path := range paths {
		s, err := c.shardAt(path)
		if err == nil {
			shards = append(shards, s)
		} else if err := r.notBegun(path, err); err != nil {
			return nil, err
		}
	}
	if len(shards) == 0 {
		return nil, nil
	}
	filers, err := c.filersOf(ctx, i, shards)
	if err != nil {
		return nil, err
	}
	var targets []target
	for n, s := range shards {
		filer := &filers[n]
		shard, err := c.shardOfSource(ctx, i, filer, s)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err == nil:
			targets = append(targets, target{filer.Name, shard, s.Selection.Exclude})
		default:
			if err := r.notBegun(s.Name, err); err != nil {
				return nil, err
			}
		}
	}
	return targets, nil
}

// filersOf returns the filer of each shard.
func (c *backupCommand) filersOf(ctx context.Context, i index.Catalog, shards []backup.Shard) ([]backup.Filer, error) {
	of := map[string][]backup.Shard{}
	names := make([]string, len(shards))
	for n := range shards {
		name, err := c.filerName(shards[n].Source)
		if err != nil {
			return nil, err
		}
		names[n], of[name] = name, append(of[name], shards[n])
	}
	filers := make([]backup.Filer, len(shards))
	for n, name := range names {
		var err error
		if filers[n], err = c.filerNamed(ctx, i, name, of[name]); err != nil {
			return nil, err
		}
	}
	return filers, nil
}

// filerName returns the name of the filer of a source: the one that --filer gives, the NFS server,
// or this machine.
func (c *backupCommand) filerName(source string) (name string, err error) {
	switch {
	case c.filer != "":
		return c.filer, nil
	case isNFS(source):
		name, _, err = treeAt(source)
		return name, err
	}
	if name, err = os.Hostname(); err != nil {
		return "", fmt.Errorf("find this machine's name (--filer sets one): %w", err)
	}
	return name, nil
}

// filerNamed returns the filer of shards, and creates it on first use. A filer that was removed is
// not restored, because its removal was meant to end its backups.
func (c *backupCommand) filerNamed(ctx context.Context, i index.Catalog, name string, shards []backup.Shard) (backup.Filer, error) {
	found, err := i.ListFilers(ctx, index.FilerFilter{Name: name, Retired: true})
	if err != nil {
		return backup.Filer{}, err
	}
	if len(found) > 0 && found[0].Retired {
		again := fmt.Sprintf("bctl filer add %s", argument(name))
		for n := range shards {
			again += " && " + addShard(name, &shards[n])
		}
		return backup.Filer{}, fmt.Errorf("filer %s was removed (bctl filer rm), so it is not backed up; to register it again: %s", display(name), again)
	}
	if c.filer != "" {
		if err := checkFilerName(ctx, i, name); err != nil {
			return backup.Filer{}, err
		}
	}
	if c.dryRun {
		return backup.Filer{Name: name}, nil
	}
	return i.EnsureFiler(ctx, name)
}

// addShard returns the command that registers a shard.
func addShard(filer string, s *backup.Shard) string {
	command := fmt.Sprintf("bctl shard add %s %s", argument(filer), argument(s.Name))
	if s.Source != sourceURL(s.Name) {
		command += " --source " + argument(s.Source)
	}
	for _, pattern := range s.Selection.Exclude {
		command += " --exclude " + argument(pattern)
	}
	return command
}

// shardOfSource returns the shard with the name of want, and creates it on first use. A shard that
// was removed is not restored either.
func (c *backupCommand) shardOfSource(ctx context.Context, i index.Catalog, filer *backup.Filer, want backup.Shard) (backup.Shard, error) {
	found, err := i.ListShards(ctx, index.ShardFilter{Filer: filer.Name, Name: want.Name, Retired: true})
	if err != nil {
		return backup.Shard{}, err
	}
	file := len(want.Selection.Exclude) > 0
	if len(found) > 0 {
		was := &found[0]
		switch {
		case was.Retired:
			return backup.Shard{}, fmt.Errorf("shard %s of filer %s was removed (bctl shard rm), so it is not backed up; to register it again: %s",
				display(want.Name), display(filer.Name), addShard(filer.Name, &want))
		case was.Source != want.Source && (file || slices.Contains(was.Selection.Exclude, allElse)):
			return backup.Shard{}, fmt.Errorf("shard %s of filer %s has the source %s, and not %s; use a separate filer: --filer NAME",
				display(want.Name), display(filer.Name), display(was.Source), display(want.Source))
		case c.dryRun || file:
			return was.Shard, nil
		}
	}
	want.Filer = filer.ID
	switch {
	case c.dryRun:
		return want, nil
	case file:
		return i.AddShard(ctx, want)
	}
	return i.EnsureShard(ctx, filer.ID, want.Name, want.Source)
}

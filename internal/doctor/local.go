package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source/posix"
)

// Checks of this machine's SQLite index, and of a store in a directory.

// leastFree is the recommended free space: some packs, and an index's log.
const leastFree = 1 << 30

// noSpace is the free space below which nothing can be written.
const noSpace = 1 << 20

// place checks the file system of a directory: whether it is writable and has free space. shared is
// the consequence if it belongs to another machine.
func place(path, shared string) Result {
	m, err := posix.MountOf(path)
	if err != nil {
		return fail("make it, or correct the settings", "%s", oneLine(err))
	}
	var v verdict
	text := fmt.Sprintf("%s is on %s (%s), %s free", path, m.FileSystem, m.Device, size(m.FreeBytes))
	switch {
	case m.FreeBytes < noSpace:
		v.add(fail("make space: nothing can be backed up until then; what is there can be restored", "%s", text))
	case m.FreeBytes < leastFree:
		v.add(warn("make space", "%s", text))
	default:
		v.ok("%s", text)
	}
	switch err := writable(path); {
	case errors.Is(err, unix.EROFS):
		v.add(fail("mount it so that it can be written: nothing can be backed up until then; what is there can be restored", "%s", oneLine(err)))
	case err != nil:
		v.add(fail("run bctl as the user who made the repository", "%s", oneLine(err)))
	}
	if m.Network() {
		v.add(warn(shared, "that is a network file system"))
	}
	if m.FileSystem == "tmpfs" || m.FileSystem == "ramfs" {
		v.add(warn("put it on a disk", "that is memory, and empty after a restart"))
	}
	return v.result()
}

// writable returns the reason why a directory cannot be written to; nil if it can. It writes
// nothing.
func writable(dir string) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("user %d may not write to %s: %w", os.Getuid(), dir, err)
	}
	return nil
}

func sqliteGroup(p *Parts) Group {
	path, _ := p.Config.IndexPath()
	g := Group{Name: "index"}
	add := func(id string, timeout time.Duration, run func(context.Context) Result) {
		c := Check{ID: id, Timeout: timeout, Run: run}
		if id != "index.file" {
			c.Needs = []string{"index.file"}
		}
		g.Checks = append(g.Checks, c)
	}
	add("index.file", 0, func(ctx context.Context) Result { return indexFile(ctx, p, path) })
	add("index.place", 0, func(context.Context) Result {
		return place(filepath.Dir(path), "put the index on a disk of this machine: SQLite's locks are not safe over a network")
	})
	add("index.schema", 0, func(ctx context.Context) Result { return schema(ctx, p) })
	add("index.integrity", 10*time.Minute, func(ctx context.Context) Result { return withSQLite(ctx, p, indexFailure, integrity) })
	add("index.current", 0, func(ctx context.Context) Result {
		return withSQLite(ctx, p, func(error) Result { return skip("the index cannot be opened") }, current)
	})
	add("index.pages", 10*time.Minute, func(ctx context.Context) Result { return withSQLite(ctx, p, indexFailure, pages) })
	add("index.worker_key", 0, func(ctx context.Context) Result { return workerKey(ctx, p) })
	add("index.committer_key", 0, func(ctx context.Context) Result { return committerKey(ctx, p) })
	return g
}

func indexFile(ctx context.Context, p *Parts, path string) Result {
	info, err := os.Stat(path)
	if err != nil {
		if p.indexIsLost(ctx) {
			return fail(rebuildAdvice, "%s: the index of the backups in the store is lost", oneLine(err))
		}
		return fail("bctl init makes a repository; or correct --repo or index.url", "%s", oneLine(err))
	}
	if err := unix.Access(path, unix.R_OK); err != nil {
		return fail("run bctl as the user who made the repository", "user %d may not read %s: %s", os.Getuid(), path, oneLine(err))
	}
	// The check index.place reports a read-only file system.
	if err := unix.Access(path, unix.W_OK); err != nil && !errors.Is(err, unix.EROFS) {
		return fail("run bctl as the user who made the repository", "user %d may not write to %s: %s", os.Getuid(), path, oneLine(err))
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return warn("chmod o= "+path, "everybody on this machine can read or change %s, which has the names of all files (mode %04o)", path, mode)
	}
	return ok("%s has %s", path, size(uint64(info.Size())))
}

// withSQLite runs a check of the index's file. If the index cannot be opened, it returns the result
// of notOpened for the error.
func withSQLite(ctx context.Context, p *Parts, notOpened func(error) Result, check func(context.Context, *Parts, *sqliteindex.Index) Result) Result {
	i, err := p.OpenIndex(ctx)
	if err != nil {
		return notOpened(err)
	}
	defer i.Close()
	x, is := i.(*sqliteindex.Index)
	if !is {
		return skip("the index is not a SQLite file")
	}
	return check(ctx, p, x)
}

// integrity reads all of the index.
func integrity(ctx context.Context, _ *Parts, x *sqliteindex.Index) Result {
	f, err := x.Inspect(ctx)
	switch {
	case ctx.Err() != nil:
		return skip("it is so large that reading it takes longer than this check may")
	case err != nil:
		return indexFailure(err)
	case len(f.Damage) > 0:
		return fail(damagedAdvice, "it is damaged: %s", oneLine(errors.New(strings.Join(f.Damage, "; "))))
	case f.Journal != "wal":
		return warn("let nothing else but bctl change it", "its journal is %s, not wal", f.Journal)
	}
	return ok("%s read, and whole (SQLite %s)", size(uint64(max(f.SizeBytes, 0))), f.Version)
}

// current checks whether the index knows all snapshots in the store.
func current(ctx context.Context, p *Parts, x *sqliteindex.Index) Result {
	r, err := x.Repository(ctx)
	if err != nil {
		return skip("the repository's identity is not known: %s", oneLine(err))
	}
	if p.Config.Store.URL == "" {
		return skip("no store is named")
	}
	s, err := p.OpenStore(ctx)
	if err != nil {
		return skip("the store cannot be opened: %s", oneLine(err))
	}
	defer s.Close()
	switch err := repo.CheckCurrent(ctx, s, x, &r); {
	case errors.Is(err, repo.ErrIndexOld):
		return fail("bctl index rebuild", "%s", oneLine(err))
	case errors.Is(err, backup.ErrCorrupt):
		return indexFailure(err)
	case err != nil:
		return skip("it cannot be compared with the store: %s", oneLine(err))
	}
	return ok("it knows all snapshots that the store has")
}

// pages compares each page of the index with its digest.
func pages(ctx context.Context, _ *Parts, x *sqliteindex.Index) Result {
	if x.CheckSchema(ctx) != nil {
		return skip("the index cannot be read: see index.schema")
	}
	read, damaged, directories, err := x.CheckPages(ctx)
	switch {
	case damaged > 0:
		return fail("restore finds what other pages have. "+damagedAdvice, "%d of %s do not agree with their digests, of %s", damaged, plural(read, "page"), some(directories))
	case ctx.Err() != nil:
		return skip("there are so many that reading them takes longer than this check may; %s are as they were committed", plural(read, "page"))
	case err != nil:
		return indexFailure(err)
	}
	return ok("all (%d) are as they were committed", read)
}

// workerKey checks whether the worker key belongs to this repository.
func workerKey(ctx context.Context, p *Parts) Result {
	return keyFile(ctx, p, p.Config.WorkerKey, func(r *backup.Repository) error {
		_, err := repo.ReadWorkerKey(p.Config.WorkerKey, r.ID)
		return err
	})
}

// committerKey checks whether the committer key belongs to this repository.
func committerKey(ctx context.Context, p *Parts) Result {
	return keyFile(ctx, p, p.Config.CommitterKey, func(r *backup.Repository) error {
		key, err := repo.ReadCommitterKey(p.Config.CommitterKey, r.ID)
		if err == nil && key.Signing.Signer() != seal.Signer(r.Signer) {
			err = fmt.Errorf("%s: the index names another signer: %w", p.Config.CommitterKey, backup.ErrInvalid)
		}
		return err
	})
}

// keyFile reads the key file at path for the repository in the index.
func keyFile(ctx context.Context, p *Parts, path string, read func(*backup.Repository) error) Result {
	i, err := p.OpenIndex(ctx)
	if err != nil {
		return skip("the index cannot be opened")
	}
	defer i.Close()
	r, err := i.Repository(ctx)
	if err != nil {
		return skip("the repository's identity is not known: %s", oneLine(err))
	}
	if err := read(&r); err != nil {
		return fail("put the right file there, or take the wrong one away and run bctl init where the identity is: without it nothing can be backed up", "%s", oneLine(err))
	}
	return ok("%s is this repository's", path)
}

// A directoryDoctor checks a store in a directory.
type directoryDoctor struct {
	objectDoctor
	path string
}

func directoryGroup(p *Parts) Group {
	path, _ := p.Config.StorePath()
	d := &directoryDoctor{objectDoctor{p: p, places: []string{"doctor-" + backup.NewPackID().String()}}, path}
	g := Group{Name: "store", Close: d.close}
	const directory = "store.directory"
	g.Checks = []Check{
		{ID: directory, Run: d.directory},
		{ID: "store.place", Needs: []string{directory}, Run: func(context.Context) Result {
			return place(path, "fine where the server syncs what it is told to (no async export), and one machine backs up at a time")
		}},
		{ID: "store.repository", Needs: []string{directory}, Run: d.repository},
	}
	d.addObjectChecks(&g, directory, Check{ID: "store.overwrite", Needs: []string{"store.object"}, Run: d.overwrite})
	return g
}

func (d *directoryDoctor) directory(ctx context.Context) Result {
	var err error
	if d.s, err = d.p.OpenStore(ctx); err != nil {
		if id, known := d.p.indexed(ctx); known {
			return fail("mount the store, or correct --repo or store.url", "%s, and the index is of repository %v: it is not mounted, or elsewhere", oneLine(err), id)
		}
		return fail("bctl init makes a repository; or correct --repo or store.url", "%s", oneLine(err))
	}
	return ok("%s is there", d.path)
}

func (d *directoryDoctor) repository(ctx context.Context) Result {
	object, err := repo.ReadObject(ctx, d.s)
	if errors.Is(err, backup.ErrNoRepository) {
		if id, known := d.p.indexed(ctx); known {
			return fail("mount the store, or correct --repo or store.url: nothing can be backed up or restored until then",
				"there is no repository in it, and the index is of repository %v: it is not mounted, or another store", id)
		}
		return warn("bctl init", "there is no repository in it")
	}
	if err != nil {
		return storeFailure(err)
	}
	return d.p.sameRepository(ctx, object.ID, fmt.Sprintf("it holds repository %v", object.ID))
}

func (d *directoryDoctor) overwrite(ctx context.Context) Result {
	switch err := d.s.PutNew(ctx, d.name, d.data); {
	case errors.Is(err, backup.ErrExists):
		return ok("an object that is there is not overwritten")
	case err != nil:
		return storeFailure(err)
	}
	return fail("put the store on another file system", "an object that is there can be made a second time: the file system has no exclusive names")
}

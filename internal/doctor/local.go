package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// readAll is the time limit of checks that read the whole index.
const readAll = 10 * time.Minute

// noSpace is the free space below which nothing can be written.
const noSpace = 1 << 20

// place checks the file system of a directory: whether it is writable and has free space. shared is
// the consequence if it belongs to another machine.
func place(path, shared string) Finding {
	m, err := posix.MountOf(path)
	if err != nil {
		return failWith("create it, or correct the settings", err)
	}
	var v verdict
	text := fmt.Sprintf("%s is on %s (%s), %s free", path, m.FileSystem, m.Device, size(m.FreeBytes))
	switch {
	case m.FreeBytes < noSpace:
		v.add(fail("free space: backups fail until then; existing snapshots can be restored", "%s", text))
	case m.FreeBytes < leastFree:
		v.add(warn("free space", "%s", text))
	default:
		v.ok("%s", text)
	}
	switch err := writable(path); {
	case errors.Is(err, unix.EROFS):
		v.add(failWith("mount it read-write: backups fail until then; existing snapshots can be restored", err))
	case err != nil:
		v.add(failWith("run bctl as the user who created the repository", err))
	}
	if m.Network() {
		v.add(warn(shared, "it is a network file system"))
	}
	if m.FileSystem == "tmpfs" || m.FileSystem == "ramfs" {
		v.add(warn("put it on a disk", "it is in memory, and lost at a restart"))
	}
	return v.finding()
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
	const file = "index.file"
	g.add(file, func(ctx context.Context) Finding { return indexFile(ctx, p, path) })
	g.add("index.place", func(context.Context) Finding {
		return place(filepath.Dir(path), "put the index on a disk of this machine: SQLite's locks are not safe over a network")
	}, file)
	g.add("index.schema", func(ctx context.Context) Finding { return schema(ctx, p) }, file)
	g.add("index.alarms", func(ctx context.Context) Finding { return alarms(ctx, p) }, "index.schema")
	g.add("index.brake", func(ctx context.Context) Finding { return brake(ctx, p) }, "index.schema")
	g.add("index.purges", func(ctx context.Context) Finding { return purges(ctx, p) }, "index.schema")
	g.add("index.scrub", func(ctx context.Context) Finding { return scrubbed(ctx, p) }, "index.schema")
	g.add("index.integrity", func(ctx context.Context) Finding { return withSQLite(ctx, p, indexFailure, integrity) }, file).Timeout = readAll
	g.add("index.current", func(ctx context.Context) Finding {
		return withSQLite(ctx, p, func(error) Finding { return skip("the index cannot be opened") }, current)
	}, file)
	g.add("index.pages", func(ctx context.Context) Finding { return withSQLite(ctx, p, indexFailure, pages) }, file).Timeout = readAll
	g.add("index.worker_key", func(ctx context.Context) Finding { return workerKey(ctx, p) }, file)
	g.add("index.committer_key", func(ctx context.Context) Finding { return committerKey(ctx, p) }, file)
	g.add("index.recipients", func(ctx context.Context) Finding { return recipients(ctx, p) }, file)
	return g
}

func indexFile(ctx context.Context, p *Parts, path string) Finding {
	info, err := os.Stat(path)
	if err != nil {
		if p.indexIsLost(ctx) {
			return fail(rebuildAdvice, "%s: the index of the backups in the store is lost", oneLine(err))
		}
		return failWith("create a repository with bctl init, or correct --repo or index.url", err)
	}
	if err := unix.Access(path, unix.R_OK); err != nil {
		return fail("run bctl as the user who created the repository", "user %d may not read %s: %s", os.Getuid(), path, oneLine(err))
	}
	// The check index.place reports a read-only file system.
	if err := unix.Access(path, unix.W_OK); err != nil && !errors.Is(err, unix.EROFS) {
		return fail("run bctl as the user who created the repository", "user %d may not write to %s: %s", os.Getuid(), path, oneLine(err))
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return warn("chmod o= "+path, "every user of this machine can read or change %s, which contains the names of all files (mode %04o)", path, mode)
	}
	return ok("%s has %s", path, size(info.Size()))
}

// withSQLite runs a check of the index's file. If the index cannot be opened, it returns the result
// of notOpened for the error.
func withSQLite(ctx context.Context, p *Parts, notOpened func(error) Finding, check func(context.Context, *Parts, *sqliteindex.Index) Finding) Finding {
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
func integrity(ctx context.Context, _ *Parts, x *sqliteindex.Index) Finding {
	f, err := x.Inspect(ctx)
	switch {
	case ctx.Err() != nil:
		return skip("it is too large to be read within the time limit of this check")
	case err != nil:
		return indexFailure(err)
	case len(f.Damage) > 0:
		return fail(damagedAdvice, "it is damaged: %s", oneLine(errors.New(strings.Join(f.Damage, "; "))))
	case f.Journal != "wal":
		return warn("let only bctl change it", "its journal mode is %s, not wal", f.Journal)
	}
	return ok("%s read, no damage (SQLite %s)", size(f.SizeBytes), f.Version)
}

// current checks whether the index knows all snapshots in the store.
func current(ctx context.Context, p *Parts, x *sqliteindex.Index) Finding {
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
		return failWith("bctl index rebuild", err)
	case errors.Is(err, backup.ErrCorrupt):
		return indexFailure(err)
	case err != nil:
		return skip("it cannot be compared with the store: %s", oneLine(err))
	}
	return ok("it has all snapshots that the store has")
}

// pages compares each page of the index with its digest.
func pages(ctx context.Context, _ *Parts, x *sqliteindex.Index) Finding {
	if x.CheckSchema(ctx) != nil {
		return skip("the index cannot be read: see index.schema")
	}
	read, damaged, directories, err := x.CheckPages(ctx)
	switch {
	case damaged > 0:
		return fail("a restore still returns the content of the other pages. "+damagedAdvice, "%d of %s do not match their digests, in %s", damaged, plural(read, "page"), some(directories))
	case ctx.Err() != nil:
		return skip("there are too many to be read within the time limit of this check; %s match their digests", plural(read, "page"))
	case err != nil:
		return indexFailure(err)
	}
	return ok("all %d match their digests", read)
}

// workerKey checks whether the worker key belongs to this repository.
func workerKey(ctx context.Context, p *Parts) Finding {
	return keyFile(ctx, p, p.Config.WorkerKey, func(r *backup.Repository) error {
		_, err := repo.ReadWorkerKey(p.Config.WorkerKey, r.ID)
		return err
	})
}

// recipients checks whether the worker key seals to the recipients in force.
func recipients(ctx context.Context, p *Parts) Finding {
	i, err := p.OpenIndex(ctx)
	if err != nil {
		return skip("the index cannot be opened")
	}
	defer i.Close()
	r, err := i.Repository(ctx)
	if err != nil {
		return skip("the repository's identity is not known: %s", oneLine(err))
	}
	key, err := repo.ReadWorkerKey(p.Config.WorkerKey, r.ID)
	if err != nil {
		return skip("the worker key cannot be read")
	}
	if !slices.Equal(slices.Sorted(slices.Values(key.Recipients)), slices.Sorted(slices.Values(r.Recipients))) {
		advice := "run bctl key rm or bctl key add again: one was interrupted"
		if p.Config.Fleet() {
			advice = "copy the admin's worker key there, and restart the service (docs/keys.md)"
		}
		if s, err := p.OpenStore(ctx); err == nil {
			if first := p.oldAdvice(ctx, s, i); first != "" {
				advice = first
			}
			_ = s.Close() // it was only read
		}
		return fail(advice, "%s seals to other recipients than those in force", p.Config.WorkerKey)
	}
	return ok("the worker key seals to all %d in force", len(r.Recipients))
}

// committerKey checks whether the committer key belongs to this repository.
func committerKey(ctx context.Context, p *Parts) Finding {
	return keyFile(ctx, p, p.Config.CommitterKey, func(r *backup.Repository) error {
		key, err := repo.ReadCommitterKey(p.Config.CommitterKey, r.ID)
		if err == nil && key.Signing.Signer() != seal.Signer(r.Signer) {
			err = fmt.Errorf("%s: the index names another signer: %w", p.Config.CommitterKey, backup.ErrInvalid)
		}
		return err
	})
}

// keyFile reads the key file at path for the repository in the index.
func keyFile(ctx context.Context, p *Parts, path string, read func(*backup.Repository) error) Finding {
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
		return failWith("replace it by the right file, or remove it and run bctl init where the identity is: without it, no backup is possible", err)
	}
	return ok("%s belongs to this repository", path)
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
	g.add(directory, d.directory)
	g.add("store.place", func(context.Context) Finding {
		return place(path, "this is safe if the server syncs writes (no async export) and only one machine at a time backs up")
	}, directory)
	g.add("store.repository", d.repository, directory)
	d.addObjectChecks(&g, directory, func() { g.add("store.overwrite", d.overwrite, object) })
	return g
}

func (d *directoryDoctor) directory(ctx context.Context) Finding {
	var err error
	if d.s, err = d.p.OpenStore(ctx); err != nil {
		if id, known := d.p.indexed(ctx); known {
			return fail("mount the store, or correct --repo or store.url", "%s, and the index is of repository %v: it is not mounted, or elsewhere", oneLine(err), id)
		}
		return failWith("create a repository with bctl init, or correct --repo or store.url", err)
	}
	return ok("%s exists", d.path)
}

func (d *directoryDoctor) repository(ctx context.Context) Finding {
	object, err := repo.ReadObject(ctx, d.s)
	if errors.Is(err, backup.ErrNoRepository) {
		if id, known := d.p.indexed(ctx); known {
			return fail("mount the store, or correct --repo or store.url: until then, neither backup nor restore is possible. If it is lost: docs/disaster-recovery.md",
				"it holds no repository, but the index is of repository %v: it is not mounted, or it is another store", id)
		}
		return warn("bctl init", "it contains no repository")
	}
	if err != nil {
		return storeFailure(err)
	}
	return d.p.sameRepository(ctx, object.ID, fmt.Sprintf("it holds repository %v", object.ID))
}

func (d *directoryDoctor) overwrite(ctx context.Context) Finding {
	switch err := d.s.PutNew(ctx, d.name, d.data); {
	case errors.Is(err, backup.ErrExists):
		return ok("an existing object is not overwritten")
	case err != nil:
		return storeFailure(err)
	}
	return fail("move the store to another file system", "an existing object is overwritten: the file system does not support exclusive creation")
}

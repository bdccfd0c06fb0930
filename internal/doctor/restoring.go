package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// What restoring needs, and nothing else notices until then: the identity, and packs that are
// still where they were put.

// A restoreDoctor looks at what restoring needs.
type restoreDoctor struct{ p *Parts }

func restoringGroup(p *Parts) Group {
	d := &restoreDoctor{p}
	return Group{Name: "restoring", Checks: []Check{
		{ID: "restoring.identity", Run: d.identity},
		{ID: "restoring.packs", Timeout: 2 * packsWithin, Run: d.packs},
	}}
}

// restores reports whether whoever is tested for restores: an operator, and everybody on one machine.
func (p *Parts) restores() bool { return p.is(installation.Operator) }

func (d *restoreDoctor) identity(ctx context.Context) Result {
	if d.p.Config.Fleet() && d.p.Role == "" {
		return skip("services have none, and must not; --as operator looks for it")
	}
	s, err := d.p.OpenStore(ctx)
	if err != nil {
		return skip("the store cannot be opened")
	}
	defer s.Close()
	object, err := repo.ReadObject(ctx, s)
	if err != nil {
		return skip("the store's repository cannot be read: %s", oneLine(err))
	}
	identity, err := repo.FindIdentity(d.p.Config.Identity, object.ID)
	if err == nil {
		err = identity.Check(&object)
	}
	if err == nil {
		_, err = object.WorkerKey(identity.Opener)
	}
	switch {
	case err != nil && d.p.Config.Fleet(): // others may have it
		return warn("put its copy there, or name it (identity), where snapshots are to be restored", "%s", oneLine(err))
	case err != nil:
		return fail("put its copy there, or name it (--identity): without it nothing can be restored, whatever is backed up", "%s", oneLine(err))
	}
	path := identity.Path
	info, err := os.Stat(path)
	if err == nil && info.Mode().Perm()&0o007 != 0 {
		return fail("chmod o= "+path, "everybody on this machine can read %s, and with it all backups", path)
	}
	if identity.Signer == (seal.Signer{}) {
		return warn("add this line to it: "+seal.SignerComment(object.ID, object.Signer()), "%s opens the backups, but does not say who signs them: without the index, a store that somebody has replaced would be believed", path)
	}
	return ok("%s opens the backups", path)
}

const (
	// maxSampled is how many packs are looked for, and maxSampledPages how much of the listings is read for them.
	maxSampled      = 1000
	maxSampledPages = 10_000
	// packsWithin is how long that may take; then what was seen counts.
	packsWithin = 30 * time.Second
	// locateAtATime is how many chunks the index is asked for, and statsAtATime how many packs the store is.
	locateAtATime = 1000
	statsAtATime  = 8
)

// A sample is the packs of the shards' last snapshots, those of the newest snapshot first.
type sample struct {
	names     []string
	snapshots int
	homeless  int  // chunks that are in no pack
	cut       bool // there are more
	known     map[string]bool
}

func (d *restoreDoctor) packs(ctx context.Context) Result {
	i, err := d.p.OpenIndex(ctx)
	if err != nil {
		return skip("the index cannot be opened")
	}
	defer i.Close()
	st, err := d.p.OpenStore(ctx)
	if err != nil {
		return skip("the store cannot be opened")
	}
	defer st.Close()
	ctx, cancel := context.WithTimeout(ctx, packsWithin)
	defer cancel()
	s := &sample{known: map[string]bool{}}
	if err := s.collect(ctx, i); err != nil && ctx.Err() == nil {
		return indexFailure(err)
	}
	missing, looked, err := s.missing(ctx, st)
	need := fmt.Sprintf("that the last snapshots of %s need", plural(s.snapshots, "shard"))
	var v verdict
	switch {
	case len(missing) > 0:
		v.add(fail("find out what deletes there; bctl restore names the files that are lost with them", "%d of %d packs %s are not in the store: %s", len(missing), looked, need, some(missing)))
	case errors.Is(err, fs.ErrPermission):
		return skip("this user may not look at packs")
	case err != nil && (ctx.Err() == nil || looked == 0):
		return storeFailure(err)
	case s.snapshots == 0:
		return skip("there is no snapshot yet")
	case s.cut || ctx.Err() != nil:
		v.ok("%s %s are in the store; there are more, which were not looked for", plural(looked, "pack"), need)
	default:
		v.ok("all packs (%d) %s are in the store", looked, need)
	}
	if s.homeless > 0 {
		advice := "restore the database from its last good dump"
		if path, local := d.p.Config.IndexPath(); local {
			advice = "move " + path + " away and run bctl index rebuild: the copy in the store may be whole"
		}
		v.add(fail(advice, "the index has no pack for %s %s", plural(s.homeless, "chunk"), need))
	}
	return v.result()
}

// collect finds the packs, until there are enough.
func (s *sample) collect(ctx context.Context, i index.Index) error {
	shards, err := i.ListShards(ctx, index.ShardFilter{})
	if err != nil {
		return err
	}
	shards = slices.DeleteFunc(shards, func(s index.ShardStatus) bool { return s.LastGood == backup.SnapshotID{} })
	slices.SortStableFunc(shards, func(a, b index.ShardStatus) int { return b.Time.Compare(a.Time) })
	pages := 0
	for n := range shards {
		if s.cut {
			return nil
		}
		s.snapshots++
		var chunks []backup.ChunkID
		for v, err := range i.Pages(ctx, shards[n].LastGood, "") {
			if err != nil {
				return err
			}
			page, err := listing.DecodePage(v)
			if err != nil {
				return err
			}
			chunks = appendChunks(chunks, &page)
			if len(chunks) >= locateAtATime {
				if err := s.locate(ctx, i, chunks); err != nil {
					return err
				}
				chunks = chunks[:0]
			}
			if pages++; pages >= maxSampledPages || len(s.names) >= maxSampled {
				s.cut = true
				break
			}
		}
		if err := s.locate(ctx, i, chunks); err != nil {
			return err
		}
	}
	return nil
}

// appendChunks appends the chunks that a page names.
func appendChunks(chunks []backup.ChunkID, page *backup.Page) []backup.ChunkID {
	for n := range page.Entries {
		e := &page.Entries[n]
		if e.XattrChunk.Length > 0 {
			chunks = append(chunks, e.XattrChunk.Chunk)
		}
		for _, ref := range e.Content.Refs {
			chunks = append(chunks, ref.Chunk)
		}
	}
	return chunks
}

func (s *sample) locate(ctx context.Context, i index.Index, chunks []backup.ChunkID) error {
	for group := range slices.Chunk(chunks, locateAtATime) {
		locations, err := i.LocateAll(ctx, group)
		if err != nil {
			return err
		}
		for _, l := range locations {
			if l == (index.Location{}) {
				s.homeless++
				continue
			}
			if name := store.PackName(l.Snapshot, l.Object); !s.known[name] {
				s.known[name] = true
				s.names = append(s.names, name)
			}
		}
	}
	return nil
}

// missing returns the packs that the store does not have, and how many it was asked for.
func (s *sample) missing(ctx context.Context, st store.Store) (names []string, looked int, err error) {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(statsAtATime)
	for _, name := range s.names[:min(len(s.names), maxSampled)] {
		g.Go(func() error {
			_, err := st.Stat(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if errors.Is(err, backup.ErrNotFound) {
				names, err = append(names, name), nil
			}
			if err == nil {
				looked++
			}
			return err
		})
	}
	err = g.Wait()
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(slices.Index(s.names, a), slices.Index(s.names, b)) })
	return names, looked, err
}

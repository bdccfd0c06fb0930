package doctor

import (
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
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// Checks of the requirements of restoring that no other operation tests: the identity, and the
// presence of the packs in the store.

// A restoreDoctor checks the requirements of restoring.
type restoreDoctor struct{ p *Parts }

func restoringGroup(p *Parts) Group {
	d := &restoreDoctor{p}
	g := Group{Name: "restoring"}
	g.add("restoring.identity", d.identity)
	g.add("restoring.packs", d.packs).Timeout = 2 * packsWithin
	return g
}

// restores reports whether the tested role restores: an operator, or any user on one machine.
func (p *Parts) restores() bool { return p.is(installation.Operator) }

func (d *restoreDoctor) identity(ctx context.Context) Finding {
	if d.p.Config.Fleet() && d.p.Role == "" {
		return skip("services must not have it; --as operator looks for it")
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
	identity, err := repo.FindIdentity(d.p.Config.Identity, object.ID, d.p.Ask)
	if err == nil {
		err = identity.Check(&object)
	}
	if err == nil {
		err = object.LoadRecipients(ctx, s)
	}
	if err == nil {
		_, err = object.WorkerKey(identity.Opener)
	}
	switch {
	case err != nil && d.p.Config.Fleet(): // other people may have it
		return warn("copy it there, or set identity, on machines that restore", "%s", oneLine(err))
	case err != nil:
		return failWith("copy it there, or name it with --identity: without it, no backup can be restored", err)
	}
	path := identity.Path
	info, err := os.Stat(path)
	if err == nil && info.Mode().Perm()&0o007 != 0 {
		return fail("chmod o= "+path, "every user of this machine can read %s, and therefore all backups", path)
	}
	if identity.Signer == (seal.Signer{}) {
		return warn("add this line to it: "+seal.SignerComment(object.ID, object.Signer()), "%s opens the backups, but does not name their signer: if the index is lost, a replaced store would not be detected", path)
	}
	return ok("%s opens the backups", path)
}

const (
	// maxSampled is the maximum number of packs to look for, and maxSampledPages the maximum number
	// of pages read to find them.
	maxSampled      = 1000
	maxSampledPages = 10_000
	// packsWithin is the time limit of the search. After it the findings so far are used.
	packsWithin = 30 * time.Second
	// locateAtATime is the number of chunks per query of the index; statsAtATime is the number of
	// concurrent requests to the store.
	locateAtATime = 1000
	statsAtATime  = 8
)

// A sample holds the packs of the shards' last snapshots, starting with the newest snapshot.
type sample struct {
	store     store.Store
	snapshots int
	homeless  int  // chunks without a pack
	cut       bool // there are more packs
	looked    int
	packs     map[string]*seenPack // by name
	// missing are the packs that are missing from the store, and have the only copy of a chunk.
	missing []string
	short   []string // likewise, but the pack is incomplete
}

// A seenPack is the state of a pack in the store.
type seenPack struct {
	needBytes, bytes  int64
	missing, reported bool
}

func (p *seenPack) good() bool { return !p.missing && p.bytes >= p.needBytes }

// lostAdvice is advice on recovering the content of lost packs.
const lostAdvice = "find the cause of the loss in the store. Then run bctl check, which names the affected files, and bctl repair: " +
	"the next backups then store again the content that the trees still have"

func (d *restoreDoctor) packs(ctx context.Context) Finding {
	i, err := d.p.OpenIndex(ctx)
	if err != nil {
		return skip("the index cannot be opened")
	}
	defer i.Close()
	if i.CheckSchema(ctx) != nil {
		return skip("the index cannot be read: see index.schema")
	}
	st, err := d.p.OpenStore(ctx)
	if err != nil {
		return skip("the store cannot be opened")
	}
	defer st.Close()
	if _, err := repo.Check(ctx, st, i); errors.Is(err, backup.ErrWrongKey) {
		return skip("index and store belong to different repositories")
	}
	looking := ctx
	ctx, cancel := context.WithTimeout(ctx, packsWithin)
	defer cancel()
	s := &sample{store: st, packs: map[string]*seenPack{}}
	if err := s.collect(ctx, i); err != nil && (ctx.Err() == nil || s.looked == 0) {
		if errors.Is(err, fs.ErrPermission) {
			return skip("this user has no permission to examine packs")
		}
		var failed *store.Error
		switch {
		case errors.As(err, &failed):
			return storeFailure(err)
		case errors.Is(err, backup.ErrCorrupt):
			return skip("the index has damaged pages: see index.pages")
		}
		return indexFailure(err)
	}
	interrupted := ctx.Err() != nil
	lost, lostRows := lostAdvice, d.p.lostRowsAdvice()
	if len(s.missing)+len(s.short)+s.homeless > 0 {
		if first := d.p.oldAdvice(looking, st, i); first != "" {
			lost, lostRows = first, first
		}
	}
	return s.verdict(interrupted, lost, lostRows)
}

// oldAdvice returns advice about what an index lacks because it is older than its store, or nothing
// if it is not.
func (p *Parts) oldAdvice(ctx context.Context, s store.Store, i index.Index) string {
	r, err := i.Repository(ctx)
	if err != nil {
		return ""
	}
	command := "bctl index catchup"
	if x, local := i.(*sqliteindex.Index); local {
		command = "bctl index rebuild"
		err = repo.CheckCurrent(ctx, s, x, &r)
	} else {
		err = repo.Compare(ctx, s, i, &r)
	}
	if !errors.Is(err, repo.ErrIndexOld) {
		return ""
	}
	return "the index is older than its store, and this may only be due to that: run " + command + ", and then bctl doctor again"
}

// lostRowsAdvice returns advice on recovering rows that the index has lost.
func (p *Parts) lostRowsAdvice() string {
	if path, local := p.Config.IndexPath(); local {
		return "move " + path + " away and run bctl index rebuild: the copy in the store may be whole"
	}
	return "restore the database from its last good dump"
}

// verdict returns the result for the packs examined.
func (s *sample) verdict(interrupted bool, lostAdvice, lostRowsAdvice string) Finding {
	need := fmt.Sprintf("that the last snapshots of %s need", plural(s.snapshots, "shard"))
	var v verdict
	if len(s.missing) > 0 {
		v.add(fail(lostAdvice, "%d of %d packs %s are not in the store: %s", len(s.missing), s.looked, need, some(s.missing)))
	}
	if len(s.short) > 0 {
		v.add(fail(lostAdvice, "%d of %d packs %s are truncated in the store: %s", len(s.short), s.looked, need, some(s.short)))
	}
	switch {
	case len(s.missing)+len(s.short) > 0:
	case s.snapshots == 0:
		return skip("there is no snapshot yet")
	case s.cut || interrupted:
		v.ok("%s %s are in the store; there are more, which were not checked", plural(s.looked, "pack"), need)
	default:
		v.ok("all packs (%d) %s are in the store", s.looked, need)
	}
	if s.homeless > 0 {
		v.add(fail(lostRowsAdvice, "the index has no pack for %s %s", plural(s.homeless, "chunk"), need))
	}
	return v.finding()
}

// collect finds the packs, up to the maximum.
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
			if pages++; pages >= maxSampledPages || len(s.packs) >= maxSampled {
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

// appendChunks appends the chunks to which a page refers.
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

// locate examines the packs that hold chunks. A lost pack counts only if no other pack has the
// chunk.
func (s *sample) locate(ctx context.Context, i index.Index, chunks []backup.ChunkID) error {
	for group := range slices.Chunk(chunks, locateAtATime) {
		locations, err := i.LocateReadable(ctx, group)
		if err != nil {
			return err
		}
		if err := s.look(ctx, locations); err != nil {
			return err
		}
		var again []backup.ChunkID
		for n, l := range locations {
			switch pack := s.packs[objectOf(l)]; {
			case l == index.Location{}:
				s.homeless++
			case pack != nil && !pack.good():
				again = append(again, group[n])
			}
		}
		if err := s.elsewhere(ctx, i, again); err != nil {
			return err
		}
	}
	return nil
}

// elsewhere looks for the chunks in other packs.
func (s *sample) elsewhere(ctx context.Context, i index.Index, chunks []backup.ChunkID) error {
	if len(chunks) == 0 {
		return nil
	}
	places, err := i.LocateReadableCopies(ctx, chunks)
	if err != nil {
		return err
	}
	if err := s.look(ctx, slices.Concat(places...)); err != nil {
		return err
	}
	for _, places := range places {
		if !slices.ContainsFunc(places, func(l index.Location) bool { p := s.packs[objectOf(l)]; return p == nil || p.good() }) {
			for _, l := range places {
				s.report(objectOf(l))
			}
		}
	}
	return nil
}

func (s *sample) report(name string) {
	switch p := s.packs[name]; {
	case p.reported:
	case p.missing:
		s.missing = append(s.missing, name)
	default:
		s.short = append(s.short, name)
	}
	s.packs[name].reported = true
}

func objectOf(l index.Location) string { return store.PackName(l.Snapshot, l.Object) }

// look requests the state of new packs from the store, up to the maximum.
func (s *sample) look(ctx context.Context, at []index.Location) error {
	asked := map[string]*seenPack{}
	for _, l := range at {
		name := objectOf(l)
		if l == (index.Location{}) || s.packs[name] != nil || asked[name] != nil {
			continue
		}
		if len(s.packs)+len(asked) >= maxSampled {
			s.cut = true
			break
		}
		asked[name] = &seenPack{needBytes: l.Offset + l.Bytes}
	}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(statsAtATime)
	for name, p := range asked {
		g.Go(func() (err error) {
			p.bytes, err = s.store.Stat(ctx, name)
			if errors.Is(err, backup.ErrNotFound) {
				p.missing, err = true, nil
			}
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				s.packs[name] = p
				s.looked++
			}
			return err
		})
	}
	return g.Wait()
}

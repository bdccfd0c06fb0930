package prune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/store"
)

// ErrBusy reports that another process prunes this repository.
var ErrBusy = errors.New("another prune of this repository is running")

// An Index is the part of the index that pruning uses.
type Index interface {
	index.Pruning
	index.Sweeping
	index.Locking
	index.Leading
	index.Parity
	Repository(ctx context.Context) (backup.Repository, error)
	DamagedPacks(ctx context.Context) ([]index.PackToProve, error)
	MayDelete(ctx context.Context, d index.Deletion) error
	Deleted(ctx context.Context, d index.Deletion, complete bool) error
	Stops(ctx context.Context) ([]index.Stop, error)
	ListShards(ctx context.Context, f index.ShardFilter) ([]index.ShardStatus, error)
	ListPolicies(ctx context.Context) ([]backup.Policy, error)
	Snapshots(ctx context.Context, f index.SnapshotFilter) ([]backup.Snapshot, error)
	Holds(ctx context.Context) ([]index.Hold, error)
	HeldByPaths(ctx context.Context, shard backup.ShardID) (map[backup.SnapshotID]int64, error)
	CollectNames(ctx context.Context, shard backup.ShardID) (bool, error)
}

// Options are the settings of a Run.
type Options struct {
	Index  Index
	Store  store.Store
	Holder string // name of this process, which no other has
	By     string // who prunes, for the log; empty: the pruner
	Log    *slog.Logger
	// MemoryBytes bounds the filters; 0: 256 MiB.
	MemoryBytes int64
	// MaxUnused is the share of the stored bytes that may stay unused, in packs that are needed in
	// part. If more is unused, such packs are thinned. With 1, no pack is thinned.
	MaxUnused float64
	// Parity is the layout of new parity groups (parity.go). With the zero Layout, groups that
	// exist are kept, and no objects get parity that have none.
	Parity parity.Layout
	// NoParity ends all parity groups, and deletes their objects.
	NoParity bool
	// ObjectLock: objects are locked (locks.go).
	ObjectLock bool
	// DryRun deletes nothing, and only returns what Run would delete.
	DryRun bool
	// Without are snapshots that a DryRun treats as forgotten.
	Without []backup.SnapshotID
	// Sweep makes Run also sweep the whole store (sweep.go).
	Sweep bool
	// BeforeDelete, if not nil, is called after the index has recorded which objects are to be
	// deleted, and before they are deleted: once for those that an earlier run left, if any, and
	// once for those of this run.
	BeforeDelete func(ctx context.Context) error
	// BeforeRemove, if not nil, is called before the journals of forgotten snapshots are deleted,
	// if BeforeDelete was not called in this run.
	BeforeRemove func(ctx context.Context) error
	// Found, if not nil, is called with what a pass has found to be kept, unused and deletable,
	// before the brake decides and anything is deleted.
	Found func(Summary)
	// Progress, if not nil, is called when a step begins.
	Progress func(step string)
}

// A Summary is what a Run deleted, or would delete.
type Summary struct {
	Packs     int   // deleted packs
	Bytes     int64 // stored bytes of these
	Chunks    int64 // chunks in these
	Versions  int64 // versions of pages; 0 in a dry run
	Snapshots int   // forgotten snapshots that were removed with their journals
	Catalogs  int   // that newer ones had replaced
	Thinned   int   // packs that were replaced by copies without unneeded frames
	Freed     int64 // stored bytes by which the copies are smaller
	Copied    int64 // stored bytes of the copies
	KeptPacks int   // packs that remain
	KeptBytes int64 // stored bytes of these
	Stored    int64 // stored bytes of all packs before
	Unused    int64 // the part of KeptBytes that is in frames without a needed chunk

	Extended    int   // objects whose locks were extended
	Locked      int   // packs and journals that nothing needs, and that stay until their locks end
	LockedBytes int64 // stored bytes of these packs
	LockedKept  int64 // the part of LockedBytes that is in KeptBytes: no deletion of these packs has begun

	// Again reports that more has become free while the pass ran, or because of it.
	Again     bool
	Deletable int64 // what the pass found to delete and to free, before the brake decided
	Swept     Swept
	Parity    ParityMade
	Requests  Requests
}

// Role is the role of the process that prunes.
const Role = "pruner"

const (
	defaultMemory = 256 << 20
	// objectsAtOnce is how many objects one request deletes at most.
	objectsAtOnce = 1000
)

// Run deletes what no snapshot needs, in one pass. It fails with ErrBusy while another process
// prunes, and with an index.StoppedError if it would delete so much that operators must confirm it.
// After any other error, Run can be called again at once: it continues what was left.
func Run(ctx context.Context, o Options) (Summary, error) {
	o.limitMemory()
	o.By = cmp.Or(o.By, Role)
	counted := &countedStore{Store: o.Store}
	o.Store = counted
	p := &pass{Options: o}
	if o.DryRun {
		err := p.dryRun(ctx)
		p.result.Requests = counted.requests()
		return p.result, err
	}
	err := p.lead(ctx, func(ctx context.Context) error {
		started := time.Now()
		work, err := p.Index.PruneWork(ctx) // before anything else is read
		if err == nil {
			err = p.run(ctx, work.State)
		}
		// A lock can end, or require an extension, although nothing else has happened.
		complete := err == nil && !p.incomplete && !p.result.Again && !p.ObjectLock && p.result.Locked == 0
		// The space that was freed before an error is noted, too, if this process still leads.
		if noteErr := p.note(context.WithoutCancel(ctx), time.Since(started), work.State, complete); err == nil {
			err = noteErr
		}
		return err
	})
	p.result.Requests = counted.requests()
	return p.result, err
}

// Idle reports whether a pass with these options would find nothing: since the last complete pass,
// nothing has happened by which anything can have become free.
func Idle(work index.PruneWork, o Options) bool {
	return work.Condemned == 0 && work.Done == doneState(work.State, o)
}

// doneState is what a complete pass notes. It has MaxUnused and the layout of parity groups,
// because a pass with others may find more.
func doneState(s index.PruneState, o Options) string {
	state := fmt.Sprintf("%s, %g", s, o.MaxUnused)
	switch {
	case o.NoParity:
		state += ", no parity"
	case o.Parity.Parity > 0:
		state += ", parity " + o.Parity.String()
	}
	return state
}

// limitMemory sets the default of MemoryBytes.
func (o *Options) limitMemory() {
	if o.MemoryBytes <= 0 {
		o.MemoryBytes = defaultMemory
	}
}

// A pass is one Run.
type pass struct {
	Options
	term   index.Term
	result Summary

	needed map[backup.ShardID][]backup.SnapshotNumber
	lists  int64 // number of list chunks that the index knows
	packs  []packState
	rows   map[int64]int // position in packs, by row
	frames []uint64      // a bit for each frame of each pack: it has a marked chunk
	free   *freePlaces   // nil: not known

	lacks      *bool // as lacksContent reports; nil: not known yet
	announced  bool  // BeforeDelete or BeforeRemove was called
	refused    bool  // the store does not let packs be copied
	incomplete bool  // another pass may find more, although nothing has changed
	locks      index.Locks
	known      map[backup.SnapshotID]*backup.Snapshot // of all shards, if objects are locked
	wanted     []wanted                               // locks that are not long enough
	endOf      []uint8                                // for each frame: the position in until, from 1, of the end until which it must be locked; 0: none
	until      []time.Time                            // the ends of classes, the latest one first
	stays      map[backup.PackID]bool                 // objects of which packs were replaced by themselves
	lost       map[backup.PackID]bool                 // objects of packs that repairs have dropped
	fresh      []candidate                            // objects that this pass has written
}

// A packState is a pack, with what a pass has found out about it.
type packState struct {
	index.Pack
	marked int64 // chunks
	frame  int   // position of its first frame in pass.frames
	frames int
	unused int64 // bytes of its frames without a marked chunk; of a pack without any, all bytes
	chosen bool  // to be thinned, in this pass

	locked  bool      // now
	need    time.Time // until when it must be locked; zero: its lock is long enough
	split   bool      // copying frames costs less than locking all of it
	rest    time.Time // of a pack that is split: until when the other frames must be locked; zero: not for longer
	counted bool      // as deleted, in the result
}

// note records in the index what this pass has freed and, if it is complete, what the index had
// before.
func (p *pass) note(ctx context.Context, took time.Duration, before index.PruneState, complete bool) error {
	r := &p.result
	noted := index.Prune{
		Took: took, Packs: r.Packs, Bytes: r.Bytes, Freed: r.Freed, Copied: r.Copied, Snapshots: r.Snapshots, Kept: r.KeptBytes, Unused: r.Unused,
	}
	if complete {
		before.Forgotten -= int64(r.Snapshots)
		noted.State = doneState(before, p.Options)
	}
	return p.Index.NotePrune(ctx, p.term, noted)
}

func (p *pass) step(name string) {
	if p.Progress != nil {
		p.Progress(name)
	}
}

// run is a pass over an index that had the state before.
func (p *pass) run(ctx context.Context, before index.PruneState) error {
	p.step("finishing the last run")
	if err := p.load(ctx); err != nil {
		return err
	}
	if err := p.finish(ctx); err != nil {
		return err
	}
	fence, err := p.Index.Fence(ctx)
	if err != nil {
		return err
	}
	candidates, err := p.candidates(ctx, nil)
	if err != nil {
		return err
	}
	if err := p.lock(ctx); err != nil {
		return err
	}
	would := p.wouldDelete(candidates)
	p.result.Deletable = would.Bytes
	if p.Found != nil {
		p.Found(p.result)
	}
	if err := p.Index.MayDelete(ctx, would); err != nil {
		return errors.Join(err, p.lockRest(ctx))
	}
	err = p.carryOut(ctx, fence, candidates)
	if err == nil {
		p.result.Again, err = p.lessIsNeeded(ctx, before)
	}
	return errors.Join(err, p.Index.Deleted(context.WithoutCancel(ctx), index.Deletion{By: p.By, Bytes: p.result.Bytes + p.result.Freed}, err == nil))
}

// lessIsNeeded reports whether snapshots, or pages of interrupted ones, that this pass has marked
// are not needed any more. The pass itself causes that when it closes a retired shard.
func (p *pass) lessIsNeeded(ctx context.Context, before index.PruneState) (bool, error) {
	if before.Interrupted > 0 {
		work, err := p.Index.PruneWork(ctx)
		if err != nil || work.State.Interrupted < before.Interrupted {
			return err == nil, err
		}
	}
	now, err := p.Index.Needed(ctx, nil)
	if err != nil {
		return false, err
	}
	for shard, numbers := range p.needed {
		for _, n := range numbers {
			if _, ok := slices.BinarySearch(now[shard], n); !ok {
				return true, nil
			}
		}
	}
	return false, nil
}

// wouldDelete returns what the pass would delete and free, for the brake. The pass itself is not
// changed.
func (p *pass) wouldDelete(candidates []int) index.Deletion {
	would := *p
	would.packs = slices.Clone(p.packs)
	for _, i := range candidates {
		would.deleted(&would.packs[i])
	}
	would.wouldCompact()
	return index.Deletion{By: p.By, Bytes: would.result.Bytes + would.result.Freed, OfBytes: p.result.Stored}
}

// carryOut deletes unneeded versions and the candidates, thins packs, and deletes unneeded journals
// and orphans.
func (p *pass) carryOut(ctx context.Context, fence map[backup.ShardID]backup.SnapshotNumber, candidates []int) error {
	if err := p.versions(ctx); err != nil {
		return err
	}
	if err := p.condemn(ctx, fence, candidates); err != nil {
		return err
	}
	if err := p.compact(ctx); err != nil {
		return err
	}
	if err := p.split(ctx); err != nil {
		return err
	}
	if err := p.lockRest(ctx); err != nil {
		return err
	}
	if err := p.journals(ctx); err != nil {
		return err
	}
	if _, err := p.tendParity(ctx); err != nil || !p.Sweep {
		return err
	}
	return p.sweepSections(ctx, Sections)
}

// dryRun finds what Run would delete.
func (p *pass) dryRun(ctx context.Context) error {
	if err := p.load(ctx); err != nil {
		return err
	}
	candidates, err := p.candidates(ctx, p.Without)
	if err != nil {
		return err
	}
	if err := p.planLocks(ctx); err != nil {
		return err
	}
	for i := range p.packs {
		if k := &p.packs[i]; k.Deleting && k.locked {
			p.staysLocked(k)
		}
	}
	for _, i := range candidates {
		p.deleted(&p.packs[i])
	}
	p.wouldCompact()
	p.result.Deletable = p.result.Bytes + p.result.Freed
	if !p.Sweep {
		return nil
	}
	return p.sweepSections(ctx, Sections)
}

func (p *pass) deleted(k *packState) {
	k.Deleting, k.counted = true, true
	p.result.Packs++
	p.result.Bytes += k.Bytes
	p.result.Chunks += k.Chunks
	p.result.KeptPacks--
	p.result.KeptBytes -= k.Bytes
	p.result.Unused -= k.unused
}

// load reads the packs and what is locked, and counts their frames and the list chunks.
func (p *pass) load(ctx context.Context) error {
	if err := p.loadLocks(ctx); err != nil {
		return err
	}
	lost, err := p.Index.LostObjects(ctx)
	if err != nil {
		return err
	}
	p.lost = make(map[backup.PackID]bool, len(lost))
	for _, o := range lost {
		p.lost[o.ID] = true
	}
	p.rows = map[int64]int{}
	for k, err := range p.Index.Packs(ctx) {
		if err != nil {
			return err
		}
		p.rows[k.Row] = len(p.packs)
		p.packs = append(p.packs, packState{Pack: k, locked: p.isLocked(&k)})
	}
	frames := 0
	for f, err := range p.Index.Frames(ctx) {
		if err != nil {
			return err
		}
		if i, ok := p.rows[f.Row]; ok {
			p.packs[i].frame, p.packs[i].frames = frames, len(f.Bytes)
			frames += len(f.Bytes)
		}
	}
	p.frames = make([]uint64, (frames+63)/64)
	return p.countLists(ctx)
}

func (p *pass) countLists(ctx context.Context) error {
	p.lists = 0
	for _, err := range p.Index.ChunkLists(ctx) {
		if err != nil {
			return err
		}
		p.lists++
	}
	return nil
}

// finish takes back what an earlier run has condemned, and finishes what it has begun to delete.
func (p *pass) finish(ctx context.Context) error {
	var acquit, deleting, gone []int
	for i := range p.packs {
		switch k := &p.packs[i]; {
		case k.Gone:
			gone = append(gone, i)
		case k.Deleting && k.locked:
			p.staysLocked(k)
		case k.Deleting:
			deleting = append(deleting, i)
		case k.Condemned:
			acquit = append(acquit, i)
			k.Condemned = false
		}
	}
	if err := p.Index.Acquit(ctx, p.term, p.rowsOf(acquit)); err != nil {
		return err
	}
	if err := p.delete(ctx, deleting); err != nil {
		return err
	}
	if len(gone) > 0 {
		if _, err := p.Index.DropPacks(ctx, p.rowsOf(gone)); err != nil {
			return err
		}
	}
	return p.Index.DropLists(ctx)
}

// staysLocked counts a pack that nothing needs, and that stays until its lock ends.
func (p *pass) staysLocked(k *packState) {
	p.result.Locked++
	p.result.LockedBytes += k.Bytes
}

func (p *pass) rowsOf(packs []int) []int64 {
	rows := make([]int64, len(packs))
	for i, at := range packs {
		rows[i] = p.packs[at].Row
	}
	return rows
}

// candidates returns the packs without needed chunks, if their snapshots have ended. Either all
// packs of an object are candidates, or none is.
func (p *pass) candidates(ctx context.Context, without []backup.SnapshotID) ([]int, error) {
	p.step("finding needed chunks")
	needed, err := p.Index.Needed(ctx, without)
	if err != nil {
		return nil, err
	}
	p.needed = needed
	if err := p.markNeeded(ctx, needed); err != nil {
		return nil, err
	}
	if err := p.measure(ctx); err != nil {
		return nil, err
	}
	objects := map[backup.PackID]bool{} // true: it stays
	for i := range p.packs {
		k := &p.packs[i]
		objects[k.Object] = objects[k.Object] || k.marked > 0 || k.Running || k.Deleting || k.locked
		if k.Deleting {
			continue
		}
		p.result.KeptPacks++
		p.result.KeptBytes += k.Bytes
		if k.locked && k.marked == 0 && !k.Running {
			k.unused = 0
			p.staysLocked(k)
			p.result.LockedKept += k.Bytes
		}
		p.result.Unused += k.unused
	}
	p.result.Stored = p.result.KeptBytes
	var candidates []int
	for i := range p.packs {
		if !objects[p.packs[i].Object] {
			candidates = append(candidates, i)
		}
	}
	return candidates, nil
}

// markNeeded marks the chunks that the snapshots in needed need.
func (p *pass) markNeeded(ctx context.Context, needed map[backup.ShardID][]backup.SnapshotNumber) error {
	total := int64(0)
	for i := range p.packs {
		total += p.packs[i].Chunks
	}
	if setBytes(total) <= p.MemoryBytes/2 {
		if ok, err := p.countExactly(ctx, needed, total); ok || err != nil {
			return err
		}
	}
	parts := p.partsFor(total, func(chunks int64) int64 { return filterBytes(chunks + chunks/8) })
	for part := range parts {
		in := inPart(part, parts)
		if err := p.count(ctx, needed, in, newFilter(total/int64(parts))); err != nil {
			return err
		}
	}
	return p.verify(ctx, needed, p.suspects())
}

// condemn condemns candidates, acquits those that batches have come to rely on in the meantime, and
// deletes the others.
func (p *pass) condemn(ctx context.Context, fence map[backup.ShardID]backup.SnapshotNumber, candidates []int) error {
	if len(candidates) == 0 {
		return nil
	}
	p.step("condemning packs")
	rows := p.rowsOf(candidates)
	if err := p.Index.Condemn(ctx, p.term, rows); err != nil {
		return err
	}
	needed, err := p.neededSince(ctx, fence, rows)
	if err != nil {
		return err
	}
	var acquit, deleting []int
	for _, i := range candidates {
		if needed[p.packs[i].Object] {
			acquit = append(acquit, i)
		} else {
			deleting = append(deleting, i)
		}
	}
	if err := p.Index.Acquit(ctx, p.term, p.rowsOf(acquit)); err != nil {
		return err
	}
	if err := p.Index.Deleting(ctx, p.term, p.rowsOf(deleting)); err != nil {
		return err
	}
	for _, i := range deleting {
		p.deleted(&p.packs[i])
	}
	return p.delete(ctx, deleting)
}

// neededSince returns the objects of the condemned packs that are needed by versions of pages that
// may have appeared since the fence.
func (p *pass) neededSince(ctx context.Context, fence map[backup.ShardID]backup.SnapshotNumber, condemned []int64) (map[backup.PackID]bool, error) {
	p.step("checking new references of backups")
	chunks := int64(0)
	for _, row := range condemned {
		chunks += p.packs[p.rows[row]].Chunks
	}
	of := p.boundedFilter(chunks)
	if err := p.eachFreePlace(ctx, condemned, func(place index.PlaceOf) { of.add(&place.Chunk) }); err != nil {
		return nil, err
	}
	found := map[backup.ChunkID]bool{}
	limit := p.exactChunks()
	err := p.references(ctx, fence, nil, func(id *backup.ChunkID) error {
		if len(found) < limit && of.has(id) {
			found[*id] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// If there are too many, all packs stay: the next pass marks these references.
	all := len(found) >= limit
	p.incomplete = p.incomplete || all
	needed := map[backup.PackID]bool{}
	err = p.eachFreePlace(ctx, condemned, func(place index.PlaceOf) {
		if all || found[place.Chunk] {
			needed[p.packs[p.rows[place.Pack]].Object] = true
		}
	})
	return needed, err
}

package prune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// A PurgeIndex is what a Purge needs of the index.
type PurgeIndex interface {
	Index
	PurgeChunks(ctx context.Context, id backup.PackID, after backup.ChunkID, limit int) ([]backup.ChunkID, error)
	NotePurgeObjects(ctx context.Context, id backup.PackID, objects []index.StoredObject) error
	PurgeObjects(ctx context.Context, id backup.PackID) ([]index.StoredObject, error)
	LostIndex
}

// PurgeOptions are the settings of a Purge, which sets Options.Index itself.
type PurgeOptions struct {
	Options
	ID         backup.PackID  // of the purge
	Shard      backup.ShardID // whose path is purged
	Repository *backup.Repository
	// Opener opens packs, and Hasher verifies the chunks in them. Without an Opener, packs that
	// also have chunks that are needed stay.
	Opener *seal.Opener
	Hasher *chunk.Hasher
	Sealer *seal.Sealer
	Term   index.Term // in which the caller leads (Lead)
	// Unneeded makes Purge delete all content that no snapshot needs. ID and Shard are then zero.
	Unneeded bool
}

// Purged is what a Purge did, and the proof of it.
type Purged struct {
	Chunks  int64 // of the purge, or found that nothing needs
	Shared  int64 // of these, needed by other files, and so kept
	Objects int   // deleted objects that had the other chunks
	Sealed  int   // new objects, with the needed chunks of these
	Freed   int64 // stored bytes
	Copied  int64 // stored bytes of the new objects
	// Left is the number of objects that stay, although they have chunks that nothing needs, and
	// Why is the reason of one of them.
	Left int
	Why  error
	// Places is the number of places that the index still has of chunks that nothing needs, and
	// Present the number of deleted objects that the store still has. Both are 0 if Left is.
	Places, Present int64
	Orphans         Swept
}

// Purge deletes the chunks of a purge that nothing else needs. Unlike Run, it leaves nothing of a
// pack with such a chunk: what is needed of the pack is opened and sealed again, in a new pack
// whose table does not name the chunk. Like compaction, it condemns the packs before it finds out
// what is needed, so backups go on (I6). After an error, or a crash, it can be called again. It
// counts as one deletion that somebody has confirmed, and no brake stops it. The caller leads.
func Purge(ctx context.Context, idx PurgeIndex, o PurgeOptions) (Purged, error) {
	o.Index = idx
	o.limitMemory()
	u := &purge{pass: &pass{Options: o.Options}, o: &o, purges: idx}
	u.term = o.Term
	err := u.run(ctx)
	u.result.Orphans = u.pass.result.Swept
	return u.result, err
}

// A purge is one Purge.
type purge struct {
	*pass
	o      *PurgeOptions
	purges PurgeIndex
	result Purged
	left   map[backup.PackID]bool
	gone   []index.StoredObject // with Unneeded: that were deleted
}

func (u *purge) run(ctx context.Context) error {
	u.step("finishing the last run")
	u.left = map[backup.PackID]bool{}
	if err := u.load(ctx); err != nil {
		return err
	}
	if err := u.finish(ctx); err != nil {
		return err
	}
	remove, prove := u.ofPath, u.prove
	if u.o.Unneeded {
		remove, prove = u.unneeded, u.proveUnneeded
	}
	if err := remove(ctx); err != nil {
		return err
	}
	if u.Sweep {
		if err := u.sweepSections(ctx, Sections); err != nil {
			return err
		}
		if n := u.pass.result.Swept.Withheld; n > 0 {
			u.leave(backup.PackID{}, fmt.Errorf("%d objects that the index does not name may have it, and may have content that snapshots lack: run bctl repair first, or forget the snapshots that lack it", n))
		}
	}
	if u.result.Left = len(u.left); u.result.Left > 0 {
		return nil
	}
	return prove(ctx)
}

// ofPath deletes the chunks of a path.
func (u *purge) ofPath(ctx context.Context) error {
	if err := u.eachGroup(ctx, u.group); err != nil {
		return err
	}
	if err := u.lostPacks(ctx); err != nil {
		return err
	}
	return u.historyOf(ctx, u.o.Shard)
}

// lostPacks leaves the packs that have chunks of the purge, and that a repair has dropped because
// the store lacked them. The store may show them again, with other content that is needed: only
// when nothing lacks content any more, a repair forgets them.
func (u *purge) lostPacks(ctx context.Context) error {
	returned, missing, err := Returned(ctx, u.purges, u.Store, u.o.Repository.ID)
	if err != nil || len(returned)+len(missing) == 0 {
		return err
	}
	return u.eachGroup(ctx, func(ctx context.Context, ids map[backup.ChunkID]bool) error {
		u.leaveLost(returned, missing, func(p *index.RecoveredPack) bool {
			return slices.ContainsFunc(p.Chunks, func(c backup.ChunkPlace) bool { return ids[c.ID] })
		})
		return nil
	})
}

// leaveLost leaves the lost packs that are concerned.
func (u *purge) leaveLost(returned, missing []index.RecoveredPack, concerned func(*index.RecoveredPack) bool) {
	for i := range returned {
		if concerned(&returned[i]) {
			u.leave(returned[i].Object, errors.New("a repair has dropped it, and the store has it again: run bctl repair first"))
		}
	}
	for i := range missing {
		if concerned(&missing[i]) {
			u.leave(missing[i].Object, errors.New("a repair has dropped it, because the store lacked it. If the store gets it back, run bctl repair first. If it is lost for good, "+
				"forget the snapshots that lack its content, and run bctl repair"))
		}
	}
}

// eachGroup calls do with the chunks of the purge, as many at a time as memory allows.
func (u *purge) eachGroup(ctx context.Context, do func(context.Context, map[backup.ChunkID]bool) error) error {
	limit := u.exactChunks() / 4
	for after := (backup.ChunkID{}); ; {
		ids, err := u.purges.PurgeChunks(ctx, u.o.ID, after, limit)
		if err != nil || len(ids) == 0 {
			return err
		}
		group := make(map[backup.ChunkID]bool, len(ids))
		for _, id := range ids {
			group[id] = true
		}
		if err := do(ctx, group); err != nil {
			return err
		}
		after = ids[len(ids)-1]
	}
}

// group deletes those of the chunks that nothing needs.
func (u *purge) group(ctx context.Context, ids map[backup.ChunkID]bool) error {
	u.step("finding the packs of what was removed")
	has := map[backup.PackID]bool{} // objects
	for place, err := range u.Index.Places(ctx, nil) {
		if err != nil {
			return err
		}
		if i, ok := u.rows[place.Pack]; ok && ids[place.Chunk] && !u.packs[i].Deleting {
			has[u.packs[i].Object] = true
		}
	}
	return u.objects(ctx, has, ids)
}

// objects replaces or deletes those of the objects that have a chunk of ids that nothing needs; nil
// stands for all chunks.
func (u *purge) objects(ctx context.Context, has map[backup.PackID]bool, ids map[backup.ChunkID]bool) error {
	byID := map[backup.PackID]*object{}
	for i := range u.packs {
		k := &u.packs[i]
		if !has[k.Object] || k.Deleting {
			continue
		}
		if k.Running {
			u.leave(k.Object, errors.New("a backup that is running has written it"))
		}
		if byID[k.Object] == nil {
			byID[k.Object] = &object{}
		}
		o := byID[k.Object]
		o.packs, o.bytes, o.chunks = append(o.packs, i), o.bytes+k.Bytes, o.chunks+k.Chunks
	}
	var round []*object
	bytes, chunks := int64(0), int64(0)
	for _, id := range slices.SortedFunc(maps.Keys(byID), func(a, b backup.PackID) int {
		return cmp.Compare(u.packs[byID[a].packs[0]].Row, u.packs[byID[b].packs[0]].Row)
	}) {
		o := byID[id]
		if u.left[id] {
			continue
		}
		if len(round) > 0 && (bytes+o.bytes > roundBytes || chunks+o.chunks > int64(u.exactChunks()/4)) {
			if err := u.purgeRound(ctx, round, ids); err != nil {
				return err
			}
			round, bytes, chunks = nil, 0, 0
		}
		round, bytes, chunks = append(round, o), bytes+o.bytes, chunks+o.chunks
	}
	return u.purgeRound(ctx, round, ids)
}

func (u *purge) leave(object backup.PackID, why error) {
	u.left[object], u.result.Why = true, why
}

// purgeRound condemns the packs of objects, finds out what is needed of them, and replaces or
// deletes those that have chunks that nothing needs.
func (u *purge) purgeRound(ctx context.Context, objects []*object, ids map[backup.ChunkID]bool) error {
	if len(objects) == 0 {
		return nil
	}
	u.step("condemning the packs of what was removed")
	var all []int
	for _, o := range objects {
		all = append(all, o.packs...)
	}
	contents, _, ok, err := u.condemnContents(ctx, all)
	if err != nil {
		return err
	}
	if !ok {
		return errors.Join(fmt.Errorf("%d bytes of memory do not suffice for what is needed of these packs: %w", u.MemoryBytes, backup.ErrUnavailable),
			u.Index.Acquit(ctx, u.term, u.rowsOf(all)))
	}
	var stay, gone []int
	for _, o := range objects {
		dead, live := u.judge(o, contents, ids)
		if !dead {
			stay = append(stay, o.packs...)
			continue
		}
		replaced, err := u.replace(ctx, o, contents, live)
		if err != nil {
			return err
		}
		if !replaced {
			stay = append(stay, o.packs...)
			continue
		}
		gone = append(gone, o.packs...)
	}
	if err := u.Index.Acquit(ctx, u.term, u.rowsOf(stay)); err != nil {
		return err
	}
	for _, i := range gone {
		u.packs[i].Deleting = true
	}
	return u.delete(ctx, gone)
}

// judge reports whether an object has chunks of the purge that nothing needs, and whether it has
// chunks that are needed. If ids is nil, frames without a place count, too.
func (u *purge) judge(o *object, contents map[int64]*content, ids map[backup.ChunkID]bool) (dead, live bool) {
	for _, i := range o.packs {
		c := contents[u.packs[i].Row]
		for n, place := range c.places {
			live = live || c.live[n]
			dead = dead || !c.live[n] && (ids == nil || ids[place.Chunk])
		}
		for n, length := range c.frameBytes {
			dead = dead || ids == nil && length > 0 && !c.needed[n]
		}
	}
	return dead, live
}

// replace makes the packs of an object Deleting. Their needed chunks are sealed again first. It
// returns false if the object must stay.
func (u *purge) replace(ctx context.Context, o *object, contents map[int64]*content, live bool) (bool, error) {
	first := &u.packs[o.packs[0]]
	if live && u.o.Opener == nil {
		u.leave(first.Object, errors.New("it has files that are needed, too, and cannot be divided without an identity"))
		return false, nil
	}
	note := func() error {
		object := first.StoredObject()
		u.result.Objects++
		u.result.Freed += o.bytes
		if u.o.Unneeded {
			u.gone = append(u.gone, object)
			return nil
		}
		return u.purges.NotePurgeObjects(ctx, u.o.ID, []index.StoredObject{object})
	}
	if !live {
		if err := note(); err != nil {
			return false, err
		}
		return true, u.Index.Deleting(ctx, u.term, u.rowsOf(o.packs))
	}
	u.step("sealing again what is needed of packs")
	data, packs, err := u.seal(ctx, o, contents)
	switch {
	case isOfObject(err):
		u.leave(first.Object, fmt.Errorf("%w (bctl doctor says more)", err))
		return false, nil
	case err != nil:
		return false, err
	}
	id := backup.NewPackID()
	plan, err := u.Index.Plan(ctx, u.term, first.Snapshot, id)
	if err != nil {
		return false, err
	}
	if err := u.Store.Put(ctx, store.PackName(first.Snapshot, id), data); err != nil {
		return false, err
	}
	u.wrote(first.Snapshot, id, data)
	if err := note(); err != nil {
		return false, err
	}
	// Once this is durable, the needed chunks are at both places, and the old packs are not relied
	// on.
	if err := u.Index.Move(ctx, u.term, index.Move{Plan: plan, Dead: u.rowsOf(o.packs), New: packs}); err != nil {
		return false, err
	}
	u.result.Sealed++
	u.result.Copied += int64(len(data))
	return true, nil
}

// seal returns an object with the chunks of an object's packs that are needed: packs in a row, with
// keys of their own.
func (u *purge) seal(ctx context.Context, o *object, contents map[int64]*content) (data []byte, packs []index.NewPack, err error) {
	r := resealing{purge: u, done: map[backup.ChunkID]bool{}}
	if r.compress, err = pack.NewCompressor(u.o.Repository.Codec); err != nil {
		return nil, nil, err
	}
	for _, i := range o.packs {
		if err := r.add(ctx, &u.packs[i], contents[u.packs[i].Row]); err != nil {
			return nil, nil, err
		}
	}
	if err := r.end(); err != nil {
		return nil, nil, err
	}
	return r.data, r.packs, nil
}

// A resealing is one seal.
type resealing struct {
	*purge
	compress *pack.Compressor
	writer   *pack.Writer // nil: none is begun
	next     index.NewPack
	done     map[backup.ChunkID]bool

	data  []byte
	packs []index.NewPack
}

// add adds the needed chunks of a pack. All of them must be there.
func (r *resealing) add(ctx context.Context, k *packState, c *content) error {
	wanted := map[backup.ChunkID]bool{}
	for n, place := range c.places {
		if c.live[n] && !r.done[place.Chunk] {
			wanted[place.Chunk] = true
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	at := pack.Place{Object: store.PackName(k.Snapshot, k.Object), Offset: k.Offset, Bytes: k.Bytes}
	reader, err := pack.Open(ctx, r.Store, at, r.o.Repository.ID, cmp.Or(k.Sealed, k.PackPlace.Pack), r.o.Opener)
	if err != nil {
		return err
	}
	for n, f := range reader.Frames() {
		kept := slices.DeleteFunc(slices.Clone(f.Chunks), func(c pack.ChunkInfo) bool { return !wanted[c.Hash.ID()] })
		if f.Removed || len(kept) == 0 {
			continue
		}
		sealed, err := r.Store.GetRange(ctx, nil, at.Object, at.Offset+f.Offset, f.SealedLength)
		if err != nil {
			return err
		}
		raw, err := reader.DecodeFrame(nil, uint32(n), sealed, r.o.Hasher)
		if err != nil {
			return err
		}
		if err := r.frame(raw, kept, wanted); err != nil {
			return err
		}
	}
	if len(wanted) > 0 {
		return fmt.Errorf("pack %s lacks %d chunks that it should have: %w", k.PackPlace.Pack, len(wanted), backup.ErrCorrupt)
	}
	return nil
}

// frame adds the chunks of a frame, whose plaintext is raw. A chunk that a pack has twice is added
// once.
func (r *resealing) frame(raw []byte, chunks []pack.ChunkInfo, wanted map[backup.ChunkID]bool) error {
	var plain []byte
	var kept []pack.Chunk
	for _, c := range chunks {
		id := c.Hash.ID()
		if !wanted[id] {
			continue
		}
		delete(wanted, id)
		r.done[id] = true
		kept = append(kept, pack.Chunk{Hash: c.Hash, Offset: uint32(len(plain)), Length: c.Length})
		plain = append(plain, raw[c.Offset:][:c.Length]...)
	}
	if len(kept) == 0 {
		return nil
	}
	body, codec := r.compress.Compress(nil, plain)
	f := pack.Frame{Codec: codec, RawLength: len(plain), Body: body, Chunks: kept}
	if r.writer != nil && !r.writer.Fits(f) {
		if err := r.end(); err != nil {
			return err
		}
	}
	if r.writer == nil {
		r.next = index.NewPack{Pack: backup.NewPackID(), Sealed: backup.NewPackID(), Offset: int64(len(r.data))}
		var err error
		if r.writer, err = pack.NewWriter(pack.KindData, r.o.Repository.ID, r.next.Sealed, r.o.Sealer, nil); err != nil {
			return err
		}
	}
	n, err := r.writer.Add(f)
	for _, c := range kept {
		r.next.Chunks = append(r.next.Chunks, backup.ChunkPlace{ID: c.Hash.ID(), Frame: n, Offset: c.Offset, Length: c.Length})
	}
	return err
}

// end finishes the pack that was begun.
func (r *resealing) end() error {
	if r.writer == nil {
		return nil
	}
	r.next.FrameBytes = slices.Clone(r.writer.FrameBytes())
	data, err := r.writer.Finish()
	if err != nil {
		return err
	}
	if r.next.Sums, err = pack.SumsOf(data, r.next.FrameBytes); err != nil {
		return err
	}
	r.next.Bytes = int64(len(data))
	r.data, r.packs, r.writer = append(r.data, data...), append(r.packs, r.next), nil
	return nil
}

// prove counts what is left of the chunks of the purge that nothing needs.
func (u *purge) prove(ctx context.Context) error {
	needed, err := u.Index.Needed(ctx, nil)
	if err != nil {
		return err
	}
	u.step("looking for what was removed")
	err = u.eachGroup(ctx, func(ctx context.Context, ids map[backup.ChunkID]bool) error {
		u.result.Chunks += int64(len(ids))
		drop := func(id *backup.ChunkID) error {
			if ids[*id] {
				u.result.Shared++
				delete(ids, *id)
			}
			return nil
		}
		if err := u.references(ctx, nil, needed, drop); err != nil {
			return err
		}
		for place, err := range u.Index.Places(ctx, nil) {
			if err != nil {
				return err
			}
			if ids[place.Chunk] {
				u.result.Places++
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	objects, err := u.purges.PurgeObjects(ctx, u.o.ID)
	if err != nil {
		return err
	}
	u.result.Objects = len(objects)
	return u.countPresent(ctx, objects)
}

// countPresent counts the deleted objects that the store still has.
func (u *purge) countPresent(ctx context.Context, objects []index.StoredObject) error {
	for _, o := range objects {
		switch _, err := u.Store.Stat(ctx, store.PackName(o.Snapshot, o.ID)); {
		case err == nil:
			u.result.Present++
		case !errors.Is(err, backup.ErrNotFound):
			return err
		}
	}
	return nil
}

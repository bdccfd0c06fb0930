package prune

import (
	"context"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// A LoseIndex is what Lose needs of the index.
type LoseIndex interface {
	Index
	LoseLists(ctx context.Context, t index.Term, rows []int64) error
	NoteLost(ctx context.Context, t index.Term, rows []int64) error
}

// A LostPack is a pack of which the store has lost a part or all.
type LostPack struct {
	Row  int64
	Pack index.PackPlace // as it was when that was found
	// Keeps reports whether the store has what is at a place; nil: it has nothing of the pack.
	Keeps func(*index.PlaceOf) bool
	// Missing: the store lacks the pack, or has less of it. It may have it again later.
	Missing bool
}

// LostPacks is what Lose has dropped.
type LostPacks struct {
	Packs   int   // of which nothing is left
	Partial int   // of which the sound part stays
	Bytes   int64 // of these packs
	Gone    int   // that the index did not have any more, as they were
}

// Lose drops from the index what the store has lost. As in a pass, it condemns the packs first, so
// that no batch relies on them (I6). Then it calls condemned, which can note the files that refer
// to what is lost: no new ones can appear. A chunk that another pack has, too, gets that place.
// What is sound of a pack stays in its object, as another pack, so that batches that relied on the
// pack as it was are refused. Nothing is deleted from the store. After an error, or a crash, the
// next pass acquits the packs, or finishes what Lose has begun to delete, and Lose can be called
// again.
func Lose(ctx context.Context, idx LoseIndex, o Options, lost []LostPack, condemned func(context.Context) error) (LostPacks, error) {
	o.Index = idx
	o.limitMemory()
	l := &losing{pass: &pass{Options: o}, lists: idx, condemned: condemned}
	err := l.lead(ctx, func(ctx context.Context) error { return l.run(ctx, lost) })
	return l.result, err
}

// A losing is one Lose.
type losing struct {
	*pass
	lists     LoseIndex
	condemned func(context.Context) error
	result    LostPacks
}

func (l *losing) run(ctx context.Context, lost []LostPack) error {
	l.step("finishing the last run")
	if err := l.load(ctx); err != nil {
		return err
	}
	if err := l.finish(ctx); err != nil {
		return err
	}
	deletion := index.Deletion{By: l.By}
	for i := range l.packs {
		deletion.OfBytes += l.packs[i].Bytes
	}
	var found []LostPack
	var all []int
	for _, p := range lost {
		i, ok := l.rows[p.Row]
		if !ok || l.packs[i].Deleting || l.packs[i].PackPlace != p.Pack {
			l.result.Gone++
			continue
		}
		found, all = append(found, p), append(all, i)
		l.result.Bytes += p.Pack.Bytes
	}
	deletion.Bytes = l.result.Bytes
	if err := l.Index.MayDelete(ctx, deletion); err != nil {
		return err
	}
	if err := l.Index.Condemn(ctx, l.term, l.rowsOf(all)); err != nil {
		return err
	}
	if err := l.condemned(ctx); err != nil {
		return err
	}
	if err := l.drop(ctx, found, all); err != nil {
		return err
	}
	return l.Index.Deleted(ctx, deletion, true)
}

// drop drops the condemned packs, at the positions in all, but for what is kept of them.
func (l *losing) drop(ctx context.Context, found []LostPack, all []int) error {
	if len(all) == 0 {
		return nil
	}
	if err := l.lists.LoseLists(ctx, l.term, l.rowsOf(all)); err != nil {
		return err
	}
	sound, err := l.withSums(ctx, all)
	if err != nil {
		return err
	}
	var whole, noted []int
	l.stays = map[backup.PackID]bool{}
	for n, p := range found {
		if p.Keeps == nil {
			whole = append(whole, all[n])
			// A damaged one may be sound later, if the store only returned other bytes. Its
			// checksums tell.
			if p.Missing || sound[l.packs[all[n]].Row] {
				noted = append(noted, all[n])
			}
			continue
		}
		if err := l.keep(ctx, &l.packs[all[n]], p.Keeps); err != nil {
			return err
		}
	}
	if err := l.lists.NoteLost(ctx, l.term, l.rowsOf(noted)); err != nil {
		return err
	}
	if err := l.Index.Deleting(ctx, l.term, l.rowsOf(whole)); err != nil {
		return err
	}
	// Objects stay, because the store may only have failed to show them: then a repair takes the
	// packs back (TakeBack). Only the rows go.
	for _, i := range all {
		l.packs[i].Deleting = true
		l.stays[l.packs[i].Object] = true
	}
	if err := l.delete(ctx, all); err != nil {
		return err
	}
	l.result.Packs, l.result.Partial = len(whole), len(all)-len(whole)
	return l.Index.DropLists(ctx)
}

// withSums returns the rows of those of the packs whose checksums are known, as they were sealed.
func (l *losing) withSums(ctx context.Context, packs []int) (map[int64]bool, error) {
	with := make(map[int64]bool, len(packs))
	for _, row := range l.rowsOf(packs) {
		with[row] = false
	}
	for f, err := range l.Index.Frames(ctx) {
		if err != nil {
			return nil, err
		}
		if _, asked := with[f.Row]; asked {
			with[f.Row] = len(f.Sums) > 0 && !f.Adopted
		}
	}
	return with, nil
}

// keep replaces a pack by itself without the places that are lost.
func (l *losing) keep(ctx context.Context, k *packState, keeps func(*index.PlaceOf) bool) error {
	c := index.PackCopy{Row: k.Row, Pack: backup.NewPackID(), Offset: k.Offset, Bytes: k.Bytes, Stays: true, LockedUntil: k.LockedUntil}
	if err := l.eachPlace(ctx, []int64{k.Row}, func(place index.PlaceOf) {
		if keeps(&place) {
			c.Chunks = append(c.Chunks, place.Chunk)
		}
	}); err != nil {
		return err
	}
	for f, err := range l.Index.Frames(ctx) {
		if err != nil {
			return err
		}
		if f.Row == k.Row {
			c.FrameBytes, c.PackSums = f.Bytes, f.PackSums
		}
	}
	plan, err := l.Index.Plan(ctx, l.term, k.Snapshot, backup.NewPackID())
	if err != nil {
		return err
	}
	if err := l.Index.Move(ctx, l.term, index.Move{Plan: plan, Copies: []index.PackCopy{c}}); err != nil {
		return fmt.Errorf("keep what is sound of pack %s: %w", k.PackPlace.Pack, err)
	}
	return nil
}

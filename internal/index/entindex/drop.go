package entindex

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/ent"
)

// DropVersions implements index.Pruning. A version is needed by the snapshots in its range. So the
// versions that began after one needed snapshot, and ended before the next, are not needed. They
// are deleted in several transactions, so that a backup does not wait for long.
func (x *Index) DropVersions(ctx context.Context, shard backup.ShardID) (dropped int64, err error) {
	busy, err := x.Backend.GiveWay(ctx, 0)
	if err != nil {
		return 0, err
	}
	for at := (dropCursor{below: open, limit: PageAtOnce, busy: busy}); !at.end; {
		began := time.Now()
		n, next := int64(0), at
		err := x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
			of, err := tx.lockShard(ctx, shard)
			if err == nil && !at.begun {
				err = tx.closeRetired(ctx, of)
			}
			if err != nil {
				return err
			}
			n, next, err = tx.dropSome(ctx, of, at)
			return err
		})
		if err != nil {
			return dropped, err
		}
		took := time.Since(began)
		dropped, at = dropped+n, next
		wasBusy := at.busy
		if at.busy, err = x.Backend.GiveWay(ctx, took); err != nil {
			return dropped, err
		}
		if wasBusy && !at.busy {
			at.begun = false // there may be a faster way now
		}
		at.limit = nextLimit(at.limit, took, at.busy)
	}
	return dropped, nil
}

// A dropCursor is how far the versions of a shard were deleted.
type dropCursor struct {
	begun, end bool
	busy       bool                  // others need the database
	way        dropWay               // once it has begun
	limit      int                   // of a transaction, page by page
	below      backup.SnapshotNumber // these ended before this snapshot
	page       *PageCursor
}

// A PageCursor is a position in the order of path keys and pages.
type PageCursor struct {
	PathKey []byte
	Page    backup.PageKey
}

// A ManyDropper is a HotWriter that deletes many versions faster in other ways than in the order of
// their snapshots.
type ManyDropper interface {
	// DropByPage deletes versions that no snapshot in needed has, from the page after the cursor
	// on, except those of which another version is a patch. It stops at the end of a page, when it
	// has deleted limit versions or read a multiple of that. next is nil after the last page.
	DropByPage(ctx context.Context, shard backup.ShardID, needed Needed, after *PageCursor, limit int) (dropped int64, next *PageCursor, err error)
	// KeepVersions deletes the ended versions of a shard that no snapshot in needed has, except
	// those of which a version that stays is a patch. It writes what stays again, and must be the
	// first change of its transaction.
	KeepVersions(ctx context.Context, shard backup.ShardID, needed Needed) (dropped int64, err error)
}

const (
	// pageShare is which share of the ended versions of a shard must be deleted, at least, for them
	// to be deleted page by page: that reads all of them.
	pageShare = 8
	// mostRewritten is how many versions there may be for KeepVersions: its transaction reads all.
	mostRewritten = 1_000_000

	countEnded   = `SELECT count(*) FROM pages WHERE shard = $1 AND last_snapshot IS NOT NULL`
	countEndedIn = `SELECT count(*) FROM pages WHERE shard = $1 AND last_snapshot > $2 AND last_snapshot < $3`
	countAll     = `SELECT count(*) FROM (SELECT 1 FROM pages LIMIT 1 + $1) some`
)

// KeptPerDropped is how many versions of all shards may stay, per deleted one, for KeepVersions.
// Tests raise it.
var KeptPerDropped = 0.25

// PageAtOnce is how many versions the first transaction deletes page by page. Tests have few
// versions, and so lower it.
var PageAtOnce = 2_000

const (
	// dropFor is for about how long a transaction deletes versions while nobody else needs the
	// database: a backup that begins waits meanwhile.
	dropFor = time.Second
	// maxPageAtOnce is for how many times PageAtOnce a transaction may delete.
	maxPageAtOnce = 20
)

// nextLimit returns how many versions the next transaction deletes page by page, given how long the
// one before took, and whether others need the database. Large transactions cost less: what is
// deleted as a whole of the database's own pages is not written first, and the others are written
// once.
func nextLimit(limit int, took time.Duration, busy bool) int {
	switch {
	case busy:
		return PageAtOnce
	case took < dropFor/2:
		return min(2*limit, maxPageAtOnce*PageAtOnce)
	case took > dropFor:
		return max(limit/2, PageAtOnce)
	default:
		return limit
	}
}

// dropSome deletes some of the versions that no snapshot needs, and returns where the next
// transaction continues.
func (tx *Tx) dropSome(ctx context.Context, of *ent.Shard, at dropCursor) (dropped int64, next dropCursor, err error) {
	numbers, err := tx.neededOf(ctx, of)
	if err != nil {
		return 0, at, err
	}
	many, can := tx.Hot.(ManyDropper)
	if can && !at.begun {
		if at.way, err = tx.wayToDrop(ctx, of, numbers, at.busy); err != nil {
			return 0, at, err
		}
	}
	at.begun = true
	switch at.way {
	case keeping:
		dropped, err = many.KeepVersions(ctx, backup.ShardID(of.ID), numbers)
		at.end = true
	case byPage:
		dropped, at.page, err = many.DropByPage(ctx, backup.ShardID(of.ID), numbers, at.page, at.limit)
		at.end = at.page == nil
	default:
		dropped, at.below, err = tx.dropVersions(ctx, of, numbers, at.below)
		at.end = at.below == 0
	}
	return dropped, at, err
}

// A dropWay is a way to delete versions.
type dropWay int

const (
	bySnapshot dropWay = iota // those that ended last first
	byPage                    // page by page
	keeping                   // what stays is written again
)

// wayToDrop returns how to delete the versions of a shard that ended between needed snapshots. One
// by one, those that ended last first, is the way for a few.
func (tx *Tx) wayToDrop(ctx context.Context, of *ent.Shard, numbers []backup.SnapshotNumber, busy bool) (dropWay, error) {
	unneeded, after := int64(0), backup.SnapshotNumber(0)
	for _, number := range numbers {
		n, err := tx.count(ctx, countEndedIn, of.ID, int64(after), int64(number))
		if err != nil {
			return bySnapshot, err
		}
		unneeded, after = unneeded+n, number
	}
	if unneeded < 2*int64(PageAtOnce) {
		return bySnapshot, nil
	}
	ended, err := tx.count(ctx, countEnded, of.ID)
	if err != nil || unneeded < ended/pageShare {
		return bySnapshot, err
	}
	// closeRetired may have changed versions in this transaction.
	if busy || of.Retired || of.Edges.Filer.Retired {
		return byPage, nil
	}
	all, err := tx.count(ctx, countAll, mostRewritten)
	if err == nil && all <= mostRewritten && float64(all-unneeded) <= KeptPerDropped*float64(unneeded) {
		return keeping, nil
	}
	return byPage, err
}

// closeRetired ends all versions of a retired shard of which nothing can be read any more.
func (tx *Tx) closeRetired(ctx context.Context, of *ent.Shard) error {
	if !of.Retired && !of.Edges.Filer.Retired {
		return nil
	}
	now, err := tx.at(ctx, time.Time{})
	if err != nil {
		return err
	}
	if readable, err := tx.count(ctx, countReadable, now.UnixMicro(), of.ID); err != nil || readable > 0 {
		return err
	}
	// The next snapshot has no base, because no snapshot is committed.
	if err := tx.exec(ctx, closeShard, of.ID); err != nil {
		return err
	}
	if err := tx.Hot.EndOpen(ctx, backup.ShardID(of.ID), backup.SnapshotNumber(of.LastNumber)); err != nil {
		return err
	}
	if err := tx.Hot.DropInterrupted(ctx, backup.ShardID(of.ID)); err != nil {
		return err
	}
	return tx.Shard.UpdateOne(of).SetInterrupted(false).SetCheckpointBytes(0).SetSegmentBytes(0).Exec(ctx)
}

// dropAtOnce is how many versions a transaction deletes. It may delete more that ended with one
// snapshot.
const dropAtOnce = 20_000

// dropFrom selects the snapshot with which the version ended that is at some position of those that
// can be deleted, from the last one on.
const dropFrom = `
SELECT last_snapshot FROM pages WHERE shard = $1 AND last_snapshot > $2 AND last_snapshot < $3 AND first_snapshot > $2
ORDER BY last_snapshot DESC LIMIT 1 OFFSET $4`

// dropVersions deletes versions that no snapshot needs and that ended before snapshot below, those
// that ended last first: a patch ends after the version that it is a patch of. It returns their
// number, and the snapshot below which there may be more; 0: there are none. numbers are those of
// the needed snapshots.
func (tx *Tx) dropVersions(ctx context.Context, of *ent.Shard, numbers []backup.SnapshotNumber, below backup.SnapshotNumber) (dropped int64, next backup.SnapshotNumber, err error) {
	for i := len(numbers) - 1; i >= 0; i-- {
		after, before := backup.SnapshotNumber(0), min(numbers[i], below)
		if i > 0 {
			after = numbers[i-1]
		}
		for before > after+1 {
			from := after + 1
			err := tx.Each(ctx, dropFrom, []any{of.ID, int64(after), int64(before), dropAtOnce - 1}, func(scan func(...any) error) error { return scan(&from) })
			if err != nil {
				return 0, 0, err
			}
			n, err := tx.Hot.DropVersions(ctx, backup.ShardID(of.ID), after, from, before)
			if err != nil {
				return 0, 0, err
			}
			before = from
			if dropped += n; dropped >= dropAtOnce {
				return dropped, before, nil
			}
		}
	}
	return dropped, 0, nil
}

package index

import (
	"context"
	"iter"

	"github.com/bctl/bctl/internal/backup"
)

// Repairing is the part of the index with which repair notes what the store has lost.
type Repairing interface {
	// Reread makes the next snapshot of each page's shard read the files of the page again, also if
	// they seem unchanged. Versions of pages do not change. It is durable.
	Reread(ctx context.Context, pages []PageID) error
	// ToReread yields the pages that the next snapshots of their shards read again.
	ToReread(ctx context.Context) iter.Seq2[PageID, error]
	// LoseLists notes that the store has lost the list chunks in condemned packs, whose places are
	// about to be dropped: what they refer to stays known. It fails with ErrNotLeading once the
	// term has ended.
	LoseLists(ctx context.Context, t Term, rows []int64) error
	// NoteLost notes packs that are about to be dropped because the store has lost them, with all
	// that is needed to take them back. A sweep leaves their objects alone. It is durable, and
	// fails with ErrNotLeading once the term has ended.
	NoteLost(ctx context.Context, t Term, rows []int64) error
	// LostPacks returns the packs that NoteLost has noted, by object and offset.
	LostPacks(ctx context.Context) ([]RecoveredPack, error)
	// TakeBack registers lost packs again, which the store has again, and returns them. It leaves
	// out those whose rows are still there, because snapshots run that began before they were
	// dropped. Nothing else may be pruned meanwhile: the caller leads as the pruner.
	TakeBack(ctx context.Context, packs []RecoveredPack) ([]RecoveredPack, error)
	// ForgetLost removes the notes of lost packs whose content the repository has elsewhere.
	ForgetLost(ctx context.Context, packs []RecoveredPack) error
	// ForgetAdopted forgets the checksums of these packs that scrubs have adopted, and what did not
	// match them: the next scrub adopts those of what it reads then. It leaves packs alone whose
	// checksums are those of what was sealed.
	ForgetAdopted(ctx context.Context, rows []int64) error
	// Unrecord makes a committer write the record of a snapshot that has ended again.
	Unrecord(ctx context.Context, id backup.SnapshotID) error
	// RequireCheckpoint makes the segment of the shard's next snapshot a checkpoint.
	RequireCheckpoint(ctx context.Context, shard backup.ShardID) error
	// LoseCatalog makes a committer write a catalog, although nothing in it has changed.
	LoseCatalog(ctx context.Context) error
	// NoteRepair writes an entry to the log.
	NoteRepair(ctx context.Context, by, subject, reason string) error
}

// A PageID names a page of a shard.
type PageID struct {
	Shard     backup.ShardID
	Directory backup.DirectoryID
	Key       backup.PageKey
}

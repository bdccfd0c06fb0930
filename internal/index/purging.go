package index

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// Purging is the part of the index that removes a path from snapshots that are kept. Nothing else
// changes the content of committed snapshots.
//
// The steps of a purge are, in this order: BeginPurge removes the path from the pages, in one
// transaction. The records and segments of the snapshots in the store are then stale: each is
// written again, as an amendment (docs/formats/journal.md), and Amend notes that. Then the chunks
// that nothing else needs are deleted (package prune). HidePurge forgets the path, and EndPurge the
// rest. Each step can be repeated after a crash: what is left to do is in the index.
type Purging interface {
	// BeginPurge removes p.Path, a file or a directory with everything below it, from the snapshots
	// of a shard that started at or after p.Since, and returns what it has removed. In a dry run,
	// it changes nothing. Interrupted pages of the shard are dropped. The log notes p, but not the
	// path.
	//
	// It fails with backup.ErrInvalid for the root of the shard, and with backup.ErrNotFound if no
	// snapshot has the path. Only if one has it, it fails with backup.ErrRunning while a snapshot
	// of the shard runs, is being restored, or has no record in the store yet, with
	// backup.ErrExists while another purge of the shard is not complete, and with ErrKept if a hold
	// keeps one of the snapshots.
	BeginPurge(ctx context.Context, p Purge, dryRun bool) (Purged, error)
	// Purges returns the purges that are not complete, oldest first.
	Purges(ctx context.Context) ([]Purge, error)
	// PurgeStates returns how far the purges are that are not complete, oldest first.
	PurgeStates(ctx context.Context) ([]PurgeState, error)
	// PurgeRemains returns how many rows have the path of a purge.
	PurgeRemains(ctx context.Context, id backup.PackID) (int64, error)
	// HidePurge forgets the path of a purge, and EndPurge everything else of it. The log notes
	// outcome.
	HidePurge(ctx context.Context, id backup.PackID) error
	EndPurge(ctx context.Context, id backup.PackID, outcome string) error
	// NotePurge notes in the log that a purge of what no snapshot needs begins, and why, or that it
	// has ended, and the outcome.
	NotePurge(ctx context.Context, by, text string, ended bool) error

	// PurgeChunks yields the chunks to which the removed entries referred, in the order of ids,
	// from the first id above after.
	PurgeChunks(ctx context.Context, id backup.PackID, after backup.ChunkID, limit int) ([]backup.ChunkID, error)
	// NotePurgeObjects notes objects that are about to be deleted for a purge. PurgeObjects returns
	// them.
	NotePurgeObjects(ctx context.Context, id backup.PackID, objects []StoredObject) error
	PurgeObjects(ctx context.Context, id backup.PackID) ([]StoredObject, error)

	// Journals returns the snapshots of a shard that have ended and whose journals the store needs,
	// by number: those that have failed, and those that are committed and not forgotten, or are the
	// newest committed one.
	Journals(ctx context.Context, shard backup.ShardID) ([]SnapshotJournal, error)
	// MarkStale makes the records of all committed snapshots in Journals stale, so that they are
	// written again, each based on the committed one before.
	MarkStale(ctx context.Context, shard backup.ShardID) error
	// MarkUnchained does so only for those whose segments are based on another snapshot. A
	// checkpoint is based on none.
	MarkUnchained(ctx context.Context, shard backup.ShardID) error
	// Amend notes that the store has an amended record of a snapshot, and the segment that this
	// names. The record is no longer stale, and no lock of the snapshot is noted any more. Unless t
	// is zero, it fails with ErrNotLeading once the term has ended: a sweep of another pruner may
	// have taken the segment, which no row has named before, for an orphan.
	Amend(ctx context.Context, t Term, a Amendment) error
	// Amendments returns the sequence of the valid record of each snapshot whose record was
	// amended. That of a stale one is -1: the store may have a newer one.
	Amendments(ctx context.Context) (map[backup.SnapshotID]int, error)
}

// A Purge is the removal of a path.
type Purge struct {
	ID     backup.PackID // random
	Shard  backup.ShardID
	Path   string    // within the shard; empty after HidePurge
	Since  time.Time // only from snapshots that started at or after it; zero: from all
	By     string
	Reason string

	// Of a purge that has begun: when it began, the numbers of the first and the last snapshot from
	// which it removes the path, and what it has removed. Later snapshots may have the path again.
	Started time.Time
	From    backup.SnapshotNumber
	Through backup.SnapshotNumber
	Total   PurgedTotal
}

// A PurgeState is how far a purge is that is not complete.
type PurgeState struct {
	Purge
	Stale   int64 // records of the shard that must be written again
	Chunks  int64 // of the removed entries
	Objects int64 // that were, or are about to be, deleted
}

// A PurgedTotal is how much was removed. Files, Directories and Bytes are those of the snapshot
// that had most files below the path.
type PurgedTotal struct {
	Snapshots                 int
	Files, Directories, Bytes int64
}

// Purged is what BeginPurge has removed.
type Purged struct {
	Purge
	Snapshots []PurgedSnapshot // by number
	Versions  int64            // of pages, that were removed or written again
	Chunks    int64            // to which these referred, some of which may be needed by other files
	Problems  int64            // recorded errors of the path
	Drills    int64            // reports of drills, which may name the path
}

// A PurgedSnapshot is what was removed from a snapshot.
type PurgedSnapshot struct {
	backup.Snapshot
	Files, Directories, Bytes int64
}

// A SnapshotJournal is what the store has of a snapshot.
type SnapshotJournal struct {
	ID       backup.SnapshotID
	Number   backup.SnapshotNumber
	State    backup.State
	Sequence int               // of the valid record
	Base     backup.SnapshotID // on whose pages the segment is based; zero: on none
	Segment  backup.Segment
	Pages    backup.PageSet
	Stale    bool
}

// An Amendment is an amended record.
type Amendment struct {
	ID       backup.SnapshotID
	Sequence int
	Base     backup.SnapshotID // on whose pages the segment is based; zero: it is a checkpoint
	Segment  backup.Segment
}

package rebuild

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/fetch"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// An Index is what Run needs of an index.
type Index interface {
	prune.Index
	index.Braking
	index.Catalog
	index.Committing
	index.Comparing
	index.Dedup
	index.Forgetting
	index.Purging
	index.Recovering
	index.Repairing
	index.Scrubbing
	index.Walking
}

// Options of Run. All fields must be set, except Anew, AcceptLoss and Progress.
type Options struct {
	Index Index // of the repository
	Store store.Store
	Trust journal.Trust
	Dedup seal.DedupKey // with which list chunks are verified
	// Holder is a name that no other process has, and By is who runs the rebuild, for the log.
	Holder, By string
	// Anew: nothing that the index has of pages is used, because some of it is damaged.
	Anew bool
	// AcceptLoss is how many snapshots may be lost. If more cannot be recovered, Run ends before
	// anything is dropped because the store does not show it (Result.Refused), or before it begins
	// (IncompleteError): the store may not show all that it has.
	AcceptLoss int
	// Progress is called now and then, by one goroutine at a time.
	Progress func(Progress)
}

// Progress is how far Run is. The totals are 0 until they are known.
type Progress struct {
	Objects, AllObjects     int // of packs
	Snapshots, AllSnapshots int
}

// A Result is what Run found. Nothing of what it lists is in the index.
type Result struct {
	Catalog   time.Time // when the catalog was written; zero: the store has none that can be used
	Sequence  int64     // of the catalog
	Snapshots int       // that can be restored, and that the index did not have, or had in another state
	Packs     int       // that it did not have
	Pages     int64     // versions of pages that were written
	Lost      []Lost    // snapshots that cannot be recovered
	// Refused: more are lost than was accepted. The index must stay older than the store.
	Refused bool
	Removed []backup.Snapshot
	// Damaged are the objects that could not be used, with the reasons.
	Damaged []Damage
	PutBack int // packs' objects that were missing, and that parity had
	Gone    int // packs that the index had and the store has not
	// Lacks reports that snapshots need content that the store lacks, or does not show.
	Lacks bool
	// Unpurged are shards with a purge that was not complete, and that must be repeated: their
	// snapshots are as they were before it.
	Unpurged []backup.Shard
	Holds    []index.Hold // on snapshots that the index does not have
}

// A Lost is a snapshot that has a record or a segment in the store, and that cannot be recovered.
type Lost struct {
	ID           backup.SnapshotID
	Filer, Shard string
	Key          backup.ShardKey
	Number       backup.SnapshotNumber
	Started      time.Time
	Err          error
}

// A Damage is an object that cannot be used.
type Damage struct {
	Object string
	Err    error
}

// Run makes the index what the store describes. It can be called again after an error. It fails
// with prune.ErrBusy if another process still prunes after two minutes, and with backup.ErrExists
// if the index has a snapshot of a number that another snapshot has in the store: it was used
// although it was too old. With an IncompleteError, it has changed nothing.
func Run(ctx context.Context, o Options) (Result, error) {
	r := newRebuilding(o)
	err := lead(ctx, &o, func(ctx context.Context, t index.Term) error {
		r.term = t
		for _, step := range []struct {
			name string
			do   func(context.Context) error
		}{
			{"read the commit records", r.readRecords},
			{"read the catalog", r.readCatalog},
			{"look for segments without a record", r.checkSegments},
			{"store filers, shards and policies", r.storeSettings},
			{"forget what was proven", o.Index.ForgetProofs}, // of another store, perhaps
			{"find parity groups", r.recoverParity},
			{"register packs", r.registerPacks},
			{"recover snapshots", r.recoverShards},
			{"forget snapshots that are gone", r.forgetRemoved}, // by the holds of before
			{"store holds", r.storeHolds},
			{"drop packs that are gone", r.dropPacks},
			{"collect the names of files", r.collectNames},
			{"note the catalog", r.noteCatalog}, // from now on, the index is current
		} {
			if r.result.Refused {
				return nil
			}
			if err := step.do(ctx); err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
		}
		return nil
	})
	return r.result, err
}

// problems are those of one snapshot.
type problems = iter.Seq2[backup.Problem, error]

func noProblems(func(backup.Problem, error) bool) {}

// now is the time of the index's clock.
var now = time.Time{}

// A rebuilding is one call of Run.
type rebuilding struct {
	Options
	term     index.Term
	fetcher  *fetch.Fetcher
	progress Progress
	result   Result

	sequences  map[backup.SnapshotID][]int // of the records that the store has of a snapshot, in ascending order
	records    map[backup.SnapshotID]*record
	unusable   map[backup.SnapshotID]bool    // snapshots whose records are damaged
	byShard    map[backup.ShardKey][]*record // by number
	kept       bool                          // the settings of the index are as new as the catalog
	catalog    *journal.Catalog              // empty if there is none
	forgotten  map[backup.SnapshotID]bool
	unended    map[backup.SnapshotID]bool // according to the index, before anything was done
	amendments map[backup.SnapshotID]int  // of the records that the index has; -1: it does not know
	bad        map[backup.SnapshotID]string
	shards     map[backup.ShardKey]backup.Shard
	dropped    []int64                 // rows of packs whose objects are gone
	lostLists  map[backup.ChunkID]bool // list chunks that cannot be read, or those below
}

func newRebuilding(o Options) *rebuilding {
	r := &rebuilding{Options: o, lostLists: map[backup.ChunkID]bool{}, unusable: map[backup.SnapshotID]bool{}}
	if r.Progress == nil {
		r.Progress = func(Progress) {}
	}
	r.fetcher = fetch.New(fetch.Options{Index: o.Index, Store: o.Store, Repository: o.Trust.Repository, Opener: o.Trust.Opener, HashKey: o.Dedup})
	return r
}

// damaged notes an object that cannot be used.
func (r *rebuilding) damaged(object string, err error) {
	r.result.Damaged = append(r.result.Damaged, Damage{object, err})
}

package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
)

// A Level is how much is checked.
type Level int

// The levels, each a superset of the one before it.
const (
	Index Level = iota
	Objects
	Tables
	Content
)

var levelNames = [...]string{Index: "index", Objects: "objects", Tables: "tables", Content: "content"}

// String returns the level's name, as the command line takes it.
func (l Level) String() string { return levelNames[l] }

// ParseLevel is the inverse of String.
func ParseLevel(name string) (Level, error) {
	if l := slices.Index(levelNames[:], name); l >= 0 {
		return Level(l), nil
	}
	return 0, fmt.Errorf("level %q: index, objects, tables and content exist: %w", name, backup.ErrInvalid)
}

// An IndexReader is the part of the index that a check reads.
type IndexReader interface {
	index.Checking
	Needed(ctx context.Context, without []backup.SnapshotID) (map[backup.ShardID][]backup.SnapshotNumber, error)
	ChunkLists(ctx context.Context) iter.Seq2[backup.ChunkList, error]
	Places(ctx context.Context, rows []int64) iter.Seq2[index.PlaceOf, error]
	Packs(ctx context.Context) iter.Seq2[index.Pack, error]
	DamagedPacks(ctx context.Context) ([]index.PackToProve, error)
	PacksToProve(ctx context.Context, rows []int64) ([]index.PackToProve, error)
	Frames(ctx context.Context) iter.Seq2[index.PackFrames, error]
	Forgotten(ctx context.Context) ([]index.Forgotten, error)
	Journals(ctx context.Context, shard backup.ShardID) ([]index.SnapshotJournal, error)
	Unrecorded(ctx context.Context, only []backup.SnapshotID, limit int) ([]backup.Snapshot, error)
	WrittenCatalog(ctx context.Context) (index.WrittenCatalog, error)
	ListShards(ctx context.Context, f index.ShardFilter) ([]index.ShardStatus, error)
	Snapshots(ctx context.Context, f index.SnapshotFilter) ([]backup.Snapshot, error)
	Pages(ctx context.Context, id backup.SnapshotID, path string) iter.Seq2[backup.PageVersion, error]
	ToReread(ctx context.Context) iter.Seq2[index.PageID, error]
	ParityGroups(ctx context.Context) iter.Seq2[index.ParityGroup, error]
	LocateReadable(ctx context.Context, ids []backup.ChunkID) ([]index.Location, error)
}

// A StoreReader is the part of the store that a check reads.
type StoreReader interface {
	GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error)
	Get(ctx context.Context, name string, maxBytes int64) ([]byte, error)
	Stat(ctx context.Context, name string) (int64, error)
	List(ctx context.Context, prefix string) iter.Seq2[store.Object, error]
}

// Options are the settings of a Run.
type Options struct {
	Index      IndexReader
	Store      StoreReader        // nil for the level Index
	Repository *backup.Repository // as of the index
	Level      Level
	// Only are the snapshots to check, with the objects that they need; nil: everything.
	Only []backup.Snapshot

	// Opener opens packs, and HashKey is that of the chunks' hashes: for the levels Tables and
	// Content.
	Opener  *seal.Opener
	HashKey seal.DedupKey
	// Read selects the packs whose content is read; nil: all. The others are checked as by Tables.
	Read func(backup.PackID) bool
	// Suspect selects packs that are proven by their checksums at each level that reads the store,
	// like those in which a scrub has found damage; nil: none.
	Suspect func(backup.PackID) bool
	// Proven has the packs whose content an interrupted run has read; nil: none. They are not read
	// again. A pack that is found to be whole is added.
	Proven Proven
	// Copies are the sequences of the complete copies of the index.
	Copies func(ctx context.Context) ([]int64, error)
	// ProveKeys proves an object below keys/; nil: these are not checked. KeyObjects are the names
	// of those that the store must have; none: what it has is proven. Recipients are those of the
	// last statement there, or of the repository object.
	ProveKeys  func(name string, data []byte) error
	KeyObjects func(ctx context.Context) ([]string, error)
	Recipients func(ctx context.Context) ([]string, error)

	// Busy reports whether a prune, a purge or a repair may be at work, which writes records again;
	// nil: that is assumed.
	Busy func(ctx context.Context) (bool, error)

	// MemoryBytes bounds the memory for chunks; 0: 256 MiB.
	MemoryBytes int64
	// Workers is how many packs are read at a time; 0: twice the number of CPUs.
	Workers int

	// Begin, if not nil, is called when the cost is known. If it returns false, nothing is read.
	Begin func(Cost) bool
	// Progress, if not nil, is called with the progress of each step, at times concurrently.
	Progress func(Progress)
	// Affected, if not nil, is called with every affected file, also with those that a Finding
	// leaves out.
	Affected func(*Finding, Affected)
}

// Proven remembers packs. Its methods are called concurrently.
type Proven interface {
	Has(backup.PackID) bool
	Add(backup.PackID) error
}

// A Cost is what the rest of a check reads from the store. The lists were made already.
type Cost struct {
	Lists    int64 // requests, of up to 1,000 objects each
	Listed   int64 // objects
	Objects  int64 // that will be read, in whole or in part
	Requests int64 // to get them
	Bytes    int64
}

// A Progress is how far a step has come.
type Progress struct {
	Step      string
	Done, All int64 // bytes, or 0
}

// A Report is the result of a Run.
type Report struct {
	Findings []*Finding
	Cost     Cost
	Began    bool // false: Options.Begin has ended the run

	Shards, Snapshots    int
	Versions             int64
	Chunks               int64 // places
	Packs, Journal       int64 // objects that were checked
	Parity               int64 // parity objects that were checked
	PacksRead, ReadBytes int64 // whose content was read, by this run
	// Refuted are the rows of packs whose content is sound, although a scrub has noted that they
	// are not as one had read them first: what that had read was damaged.
	Refuted []int64

	missing, unknown map[backup.ChunkID]bool // as of the checker
}

const defaultMemory = 256 << 20

// maxFindings bounds the findings of each kind that are reported one by one.
const maxFindings = 10_000

// A checker is one Run.
type checker struct {
	Options
	report Report
	shards []*shard
	packs  []packState
	rows   map[int64]int // by row: positions in packs
	// deleting are the packs that a pruner deletes.
	deleting map[int64]bool
	// noted are the packs of which a scrub has noted damage. They are proven again.
	noted map[int64]*index.PackToProve
	// long are the last packs of objects that are longer than their packs.
	long []*packState

	missing map[backup.ChunkID]bool // needed chunks without a place
	unknown map[backup.ChunkID]bool // needed lists that are not known
	needs   *idSet                  // with Only: the needed chunks

	groups map[backup.PackID]*parity.Group
	parity []parityObject // of these: the objects of a group in a row

	mu sync.Mutex // of report and of the findings
}

// Run checks a repository. If the error is nil, the Report is complete: without findings, all that
// the level includes is well. Errors wrap backup.ErrUnavailable, backup.ErrWrongKey or
// fs.ErrPermission, among others: they report that the check could not be made.
func Run(ctx context.Context, o Options) (Report, error) {
	o.MemoryBytes = cmp.Or(max(0, o.MemoryBytes), defaultMemory)
	if o.Workers <= 0 {
		o.Workers = 2 * runtime.GOMAXPROCS(0)
	}
	if o.Level >= Tables && o.Opener == nil {
		return Report{}, fmt.Errorf("level %s without an identity: %w", o.Level, backup.ErrWrongKey)
	}
	c := &checker{Options: o, missing: map[backup.ChunkID]bool{}, unknown: map[backup.ChunkID]bool{}, groups: map[backup.PackID]*parity.Group{}}
	err := c.run(ctx)
	c.report.missing, c.report.unknown = c.missing, c.unknown
	return c.report, err
}

// FindAffected finds again the files that are affected by the findings of a Run, and calls
// o.Affected with each version of a page that has one. Nothing that was read is read again.
func FindAffected(ctx context.Context, o Options, r *Report) error {
	o.MemoryBytes = cmp.Or(max(0, o.MemoryBytes), defaultMemory)
	c := &checker{Options: o, missing: r.missing, unknown: r.unknown}
	for _, f := range r.Findings {
		if f.Damage != nil {
			c.report.Findings = append(c.report.Findings, &Finding{Kind: f.Kind, Object: f.Object, Damage: f.Damage})
		}
	}
	if err := c.loadShards(ctx); err != nil {
		return err
	}
	if err := c.loadPacks(ctx); err != nil {
		return err
	}
	return c.consequences(ctx)
}

func (c *checker) run(ctx context.Context) error {
	if c.Level == Index {
		if c.report.Began = c.Begin == nil || c.Begin(Cost{}); !c.report.Began {
			return nil
		}
	}
	if err := c.loadShards(ctx); err != nil {
		return err
	}
	if err := c.loadPacks(ctx); err != nil {
		return err
	}
	var objects *objects
	if c.Level >= Objects {
		var err error
		if objects, err = c.look(ctx); err != nil {
			return err
		}
		c.report.Cost = c.cost(objects)
		if c.report.Began = c.Begin == nil || c.Begin(c.report.Cost); !c.report.Began {
			return nil
		}
	}
	if c.Only == nil || c.Level == Index { // otherwise, look has done that
		if err := c.checkIndex(ctx); err != nil {
			return err
		}
	}
	if objects != nil {
		if err := c.checkObjects(ctx, objects); err != nil {
			return err
		}
		c.recoverable()
	}
	return c.consequences(ctx)
}

func (c *checker) step(name string, done, all int64) {
	if c.Progress != nil {
		c.Progress(Progress{name, done, all})
	}
}

// find adds a finding.
func (c *checker) find(f *Finding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.report.Findings) < maxFindings {
		c.report.Findings = append(c.report.Findings, f)
		return
	}
	last := c.report.Findings[maxFindings-1]
	last.More++
}

// fatal reports whether an error of the store concerns more than one object.
func fatal(err error) bool {
	return !errors.Is(err, backup.ErrNotFound) && !errors.Is(err, backup.ErrCorrupt) && !errors.Is(err, backup.ErrInvalid)
}

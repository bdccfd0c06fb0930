package index

import (
	"context"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// Scrubbing is the part of the index with which packs are proven to be in the store as they were
// sealed, without a key (docs/decisions/0039-scrubbing.md).
//
// A pack is due for a proof before the time that the settings allow is over. The first proof of a
// pack is due at any time within it, and each further one in its last third. Which time that is
// depends on the row of the pack, so that packs that were stored together are proven one by one. A
// pack whose proof has failed is due again after a day.
type Scrubbing interface {
	// Scrub returns the settings of scrubbing, and what is proven now.
	Scrub(ctx context.Context) (Scrub, error)
	// ScrubSettings returns the settings alone.
	ScrubSettings(ctx context.Context) (ScrubSettings, error)
	// SetScrub changes the settings of scrubbing. It fails with backup.ErrInvalid if one is wrong.
	// The log notes it.
	SetScrub(ctx context.Context, s ScrubSettings, by string) error
	// ToProve returns the first limit packs, by Since, of those that are due or that were last
	// noted or proven before a time.
	ToProve(ctx context.Context, before time.Time, limit int) ([]PackToProve, error)
	// DamagedPacks returns the packs whose last proof has failed.
	DamagedPacks(ctx context.Context) ([]PackToProve, error)
	// NoteProofs notes the results of proofs, and what these have read, in one transaction. It
	// passes over packs that were condemned or replaced meanwhile. It fails with ErrNotLeading once
	// the term has ended.
	NoteProofs(ctx context.Context, t Term, proofs []Proof, read ScrubCost) error
	// JournalToProve returns the slices of the journal that are due, like packs, or that were last
	// proven before a time, and those whose proof is in progress; longest ago first.
	JournalToProve(ctx context.Context, before time.Time) ([]JournalSlice, error)
	// ParityToProve returns the valid parity groups that are due, like slices of the journal.
	ParityToProve(ctx context.Context, before time.Time) ([]ParityToProve, error)
	// NoteParity notes how far the proof of a parity group is, and what it has read. It passes over
	// a group that was replaced meanwhile. It fails with ErrNotLeading once the term has ended.
	NoteParity(ctx context.Context, t Term, p *ParityToProve, read ScrubCost) error
	// NoteJournal notes how far the proof of a slice is, and what it has read. It fails with
	// ErrNotLeading once the term has ended.
	NoteJournal(ctx context.Context, t Term, s JournalSlice, read ScrubCost) error
}

// ScrubSettings are the settings of scrubbing.
type ScrubSettings struct {
	Within time.Duration // all packs are proven within this time
	PerDay ScrubCost     // what that may read a day; 0: no limit
	Prices ScrubPrices
	Spend  Money // what reading may cost a day; 0: no limit
}

// Check fails with backup.ErrInvalid if a setting is wrong.
func (s *ScrubSettings) Check() error {
	if s.Within < time.Hour || s.Within > 100*365*24*time.Hour || s.Within%time.Second != 0 {
		return fmt.Errorf("all is proven within %s: from an hour to 100 years, in seconds, is possible: %w", s.Within, backup.ErrInvalid)
	}
	if s.PerDay.Bytes < 0 || s.PerDay.Requests < 0 || s.PerDay.Bytes > 0 && s.PerDay.Bytes < minScrubBytes {
		return fmt.Errorf("%d bytes and %d requests a day: an object has up to %d bytes, and is read as a whole (0: no limit): %w", s.PerDay.Bytes, s.PerDay.Requests, minScrubBytes, backup.ErrInvalid)
	}
	return s.checkMoney()
}

// minScrubBytes is the limit of a day with which each pack, and each parity object, can be read.
const minScrubBytes = 49 << 20

// A ScrubCost is what scrubbing reads from the store.
type ScrubCost struct{ Requests, Bytes int64 }

// Plus returns the cost of both.
func (c ScrubCost) Plus(more ScrubCost) ScrubCost {
	return ScrubCost{c.Requests + more.Requests, c.Bytes + more.Bytes}
}

// A Scrub is the state of scrubbing. Packs that are condemned are not counted.
type Scrub struct {
	ScrubSettings
	Now time.Time // of the database
	// Today is what was read of what PerDay allows, within ScrubDay after the first read.
	Today ScrubCost

	Packs, Bytes                 int64
	UnprovenPacks, UnprovenBytes int64 // that were never proven
	UnknownPacks                 int64 // of which the index has no checksums yet
	AdoptedPacks                 int64 // whose checksums are those of the first scrub
	DamagedPacks, DamagedBytes   int64 // whose last proof has failed
	// LatePacks were neither noted nor proven within the time that the settings allow.
	LatePacks, LateBytes int64
	// UndatedPacks were never proven, and it is not known when they were stored: a rebuild or a
	// former version has noted them.
	UndatedPacks, UndatedBytes int64
	// Oldest: all packs but the damaged and the undated ones were stored or proven since then;
	// zero: there are none.
	Oldest time.Time

	Journal ScrubParts // slices of the journal
	Parity  ScrubParts // parity groups
	// ParityBytes are the stored bytes of the parity objects.
	ParityBytes int64

	PutBack []PutBackTotal // by source
}

// ScrubParts are the proofs of slices of the journal, or of parity groups.
type ScrubParts struct {
	Parts int64
	// Oldest: all objects of the parts but the damaged and the undated ones were stored or proven
	// since then; zero: there are none. Late parts were not, within the time that the settings
	// allow.
	Oldest time.Time
	Late   int64
	// Unproven parts were never proven, and of the Undated ones among them it is not known when
	// they were stored.
	Unproven, Undated int64
	// Damaged objects were damaged at their last proof, and Damage describes one of them.
	Damaged int64
	Damage  string
}

// A PutBackSource is where repairs take what they put back into the store.
type PutBackSource string

// The sources.
const (
	FromMirror PutBackSource = "mirror"
	FromParity PutBackSource = "parity"
)

// A PutBackTotal is what repairs have put back in all since the index was made.
type PutBackTotal struct {
	Source         PutBackSource
	Objects, Bytes int64
	Last           time.Time // zero: never
}

// JournalSlices is the number of slices of the journal. Slice n has the segments and commit records
// of the snapshots whose ids begin with the byte n, and the last slice the catalogs and the copies
// of the index.
const JournalSlices = 257

// A JournalSlice is a part of the journal in the store, and its proof.
type JournalSlice struct {
	Slice   int
	Begun   time.Time // of the proof in progress; zero: there is none
	Reached string    // name of the last object that was read
	Damaged int64     // objects that this proof, or before it the last one, has found to be damaged
	Damage  string    // the first of them
	Done    bool      // for NoteJournal: the proof has read all
}

// ScrubDay is the period for which ScrubSettings.PerDay holds.
const ScrubDay = 24 * time.Hour

// Allows reports whether that much more may be read today.
func (s *Scrub) Allows(more ScrubCost) bool {
	day := s.Today.Plus(more)
	return (s.PerDay.Requests == 0 || day.Requests <= s.PerDay.Requests) && (s.PerDay.Bytes == 0 || day.Bytes <= s.PerDay.Bytes) &&
		(s.Spend == 0 || s.Prices.allows(day, s.Spend))
}

// All is what proving all packs and parity objects once reads. That of the journal is not known.
func (s *Scrub) All() ScrubCost { return ScrubCost{s.Packs, s.Bytes + s.ParityBytes} }

// Days returns how many days it takes to prove all of that within the limits; 0: there are no
// limits.
func (s Scrub) Days() float64 {
	days := 0.0
	if limit := s.PerDay.Bytes; limit > 0 {
		days = float64(s.All().Bytes) / float64(limit)
	}
	if limit := s.PerDay.Requests; limit > 0 {
		days = max(days, float64(s.Packs)/float64(limit))
	}
	if s.Spend > 0 {
		days = max(days, float64(s.Prices.Cost(s.All()))/float64(s.Spend))
	}
	return days
}

// A ParityToProve is a parity group, and the proof of its parity objects.
type ParityToProve struct {
	ParityGroup
	Begun   time.Time // of the proof in progress; zero: there is none
	Reached int       // parity objects that it has read
	Damaged int64     // objects that this proof, or before it the last one, has found to be damaged
	Damage  string    // the first of them
	Done    bool      // for NoteParity: the proof has read all
}

// A PackToProve is a pack, and what is known of its bytes.
type PackToProve struct {
	Row int64
	PackPlace
	PackSums
	FrameBytes []uint32
	Since      time.Time // when it was noted, proven, or found to be damaged
	Damage     string    // why its last proof has failed; empty: it has not
}

// A Proof is the result of reading a pack: it is what its checksums say, unless one of these fields
// is set.
type Proof struct {
	Row    int64
	Adopt  []byte // the checksums of a pack of which none were known
	Damage string
}

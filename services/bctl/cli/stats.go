package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/prune"
)

func newStats(a *app) *cobra.Command {
	c := &statsCommand{app: a}
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show the space that is used, unused, and freed by prunes",
		Long: `Shows the space of the repository:

  snapshots   the number of those that are running or can be read, and of
              forgotten ones that are not removed yet
  stored      the size of all packs, which contain the content of files
  needed      the size of the content that snapshots need
  unused      the rest: what the next prune frees, and what it leaves, because
              it is less than 10% and in packs of which a part is needed; it
              does not include what is locked
  parity      parity objects, how much of what is stored has parity, and what
              has none yet
  locked      objects that nothing needs, and that stay until their locks end
  stopped     what would be freed by deletions that the brake has stopped
  waiting     since when condemned packs wait for their deletion, and since
              when the rows of deleted packs wait for the end of snapshots
              that were running at that time
  freed       by the prunes of the last day, 30 days and 400 days
  last prune  when it ended, and what it did
  proven      since when all packs are proven to be undamaged, and those that
              are damaged or late (bctl scrub show)

To find what is needed, the references of all snapshots are read from the index.
That takes some seconds per ten million chunks. Nothing is read from the store.

With --by, shows instead what the content is, of all shards or of those that are
selected:

  --by snapshot   what each snapshot had to read, what of that was NEW, what
                  part was KNOWN (stored already), and what NEW was STORED as
  --by extension  how well files compress, by what follows the last dot of
                  their names, in the last good snapshot of each shard
  --by size       the same by size classes

Content that several files share counts for each of them in the last two.`,
		Example: `  bctl stats
  bctl stats --json | jq .unused_bytes
  bctl stats --by snapshot --filer nas1
  bctl stats --by extension --csv >compression.csv`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.check(cmd.Flags()); err != nil {
				return err
			}
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error {
				switch c.by {
				case "":
					return a.stats(cmd.Context(), i)
				case "snapshot":
					return c.growth(cmd.Context(), i)
				}
				return c.content(cmd.Context(), i)
			})
		},
	}
	c.flags(cmd)
	return cmd
}

// A space is the used and the unused space of a repository.
type space struct {
	prune.Summary // of a dry run

	now       time.Time
	shards    int
	snapshots int // running or readable
	forgotten int
	removable int       // of the forgotten ones: the records of the others are needed
	stopped   int64     // bytes that would be freed if what the brake has stopped were confirmed
	prune     bool      // the brake has stopped the prune
	condemned time.Time // since when the oldest condemned pack waits for the deletion of its object; zero: none does
	rowsSince time.Time // since when the oldest row of a deleted pack waits

	scrub                            index.Scrub
	parity                           prune.ParityReport
	purges                           []index.PurgeState
	last                             *index.Prune // nil: never
	lastDay, last30Days, last400Days int64        // freed by prunes
}

// Thinning frees Freed bytes of what is stored now, and deleting frees Bytes. Locked packs whose
// deletion has begun are stored, too.
func (s *space) stored() int64    { return s.KeptBytes + s.Bytes + s.Freed + s.LockedBytes - s.LockedKept }
func (s *space) unusedNow() int64 { return s.Unused + s.Bytes + s.Freed }
func (s *space) needed() int64    { return s.stored() - s.unusedNow() - s.LockedBytes }

// stats measures and prints the space of the repository.
func (a *app) stats(ctx context.Context, i index.Index) error {
	a.interruptible.Store(true)
	a.noteCurrent(ctx, i)
	s := &space{}
	if err := s.count(ctx, i); err != nil {
		return err
	}
	var err error
	if s.Summary, err = a.frees(ctx, i, nil); err != nil {
		return err
	}
	if s.parity, err = prune.ReadParity(ctx, i); err != nil {
		return err
	}
	if s.purges, err = pendingPurges(ctx, i); err != nil {
		return err
	}
	if err := a.countStopped(ctx, i, s); err != nil {
		return err
	}
	if a.json {
		return a.print(newStatsJSON(s))
	}
	return a.details(func(row rowFunc) { s.rows(row) })
}

// countStopped finds out what the brake has stopped: what the next prune would free beyond
// Deletable if operators confirmed the forgetting, or all of Deletable, if they must confirm the
// prune.
func (a *app) countStopped(ctx context.Context, i index.Index, s *space) error {
	stops, err := i.Stops(ctx)
	if err != nil {
		return err
	}
	var without []backup.SnapshotID
	for n := range stops {
		without = append(without, stops[n].Snapshots...)
		s.prune = s.prune || stops[n].StopsPrunes()
	}
	if len(without) > 0 {
		then, err := a.frees(ctx, i, without)
		if err != nil {
			return err
		}
		s.stopped = max(0, then.Deletable-s.Deletable)
	}
	if s.prune {
		s.stopped, s.Deletable = s.stopped+s.Deletable, 0
	}
	return nil
}

// count reads what needs no search of references.
func (s *space) count(ctx context.Context, i index.Index) error {
	needed, err := i.Needed(ctx, nil)
	if err != nil {
		return err
	}
	forgotten, err := i.Forgotten(ctx)
	if err != nil {
		return err
	}
	work, err := i.PruneWork(ctx)
	if err != nil {
		return err
	}
	prunes, err := i.Prunes(ctx)
	if err != nil {
		return err
	}
	if s.scrub, err = i.Scrub(ctx); err != nil {
		return err
	}
	s.now, s.condemned, s.rowsSince, s.forgotten, s.shards = work.Now, work.CondemnedSince, work.RowsSince, len(forgotten), len(needed)
	for _, numbers := range needed {
		s.snapshots += len(numbers)
	}
	s.removable = prune.Removable(forgotten)
	for n := range prunes {
		p := &prunes[n]
		bytes, ago := p.Bytes+p.Freed, s.now.Sub(p.Ended)
		if ago < 24*time.Hour {
			s.lastDay += bytes
		}
		if ago < 30*24*time.Hour {
			s.last30Days += bytes
		}
		s.last400Days += bytes
		s.last = p
	}
	return nil
}

func (s *space) rows(row rowFunc) {
	snapshots := fmt.Sprintf("%s of %s", counted(s.snapshots, "snapshot"), counted(s.shards, "shard"))
	switch {
	case s.removable < s.forgotten:
		snapshots += fmt.Sprintf(", and %s, of which %d can be removed", counted(s.forgotten, "forgotten one"), s.removable)
	case s.forgotten > 0:
		snapshots += fmt.Sprintf(", and %s to be removed", counted(s.forgotten, "forgotten one"))
	}
	row("snapshots", "%s", snapshots)
	stored, unused := s.stored(), s.unusedNow()
	row("stored", "%s in %s", size(stored), counted(s.KeptPacks+s.Packs, "pack"))
	row("needed", "%s", size(s.needed()))
	if unused == 0 {
		row("unused", "none")
	} else {
		row("unused", "%s (%s); the next prune frees %s", size(unused), percent(unused, stored), size(s.Deletable))
	}
	if p := &s.parity; p.Groups > 0 {
		row("parity", "%s in %s (%s of the %s that have it); %s (%s) have none", size(p.Bytes), counted(p.Groups, "group"), percent(p.Bytes, p.ObjectBytes),
			size(p.ObjectBytes), counted(p.Without, "object"), size(p.WithoutBytes))
	}
	if s.Locked > 0 {
		row("locked", "%s of what nothing needs, with %s of packs, until their locks end", counted(s.Locked, "object"), size(s.LockedBytes))
	}
	switch {
	case s.prune:
		row("stopped", "prunes; if they are confirmed, the next one frees %s (bctl confirm ls)", size(s.stopped))
	case s.stopped > 0:
		row("stopped", "forgetting that waits for a confirmation would free %s more (bctl confirm ls)", size(s.stopped))
	}
	for n := range s.purges {
		row("purge", "not complete: %s (bctl purge --resume)", progressOf(&s.purges[n]))
	}
	if !s.condemned.IsZero() {
		row("waiting", "condemned packs have waited for their deletion since %s", happened(s.condemned, s.now))
	}
	if !s.rowsSince.IsZero() {
		row("waiting", "rows of deleted packs have waited for running snapshots since %s", happened(s.rowsSince, s.now))
	}
	s.proven(row)
	row("freed", "%s in the last day, %s in 30 days, %s in 400 days", size(s.lastDay), size(s.last30Days), size(s.last400Days))
	if s.last == nil {
		row("last prune", "none")
		return
	}
	row("last prune", "%s: deleted %s, freed %s, in %.1f s", happened(s.last.Ended, s.now), counted(s.last.Packs, "pack"),
		size(s.last.Bytes+s.last.Freed), s.last.Took.Seconds())
}

// proven describes what scrubbing has proven.
func (s *space) proven(row rowFunc) {
	text := provenText(&s.scrub)
	if n := s.scrub.LatePacks; n > 0 {
		text += fmt.Sprintf("; %s late (bctl scrub show)", countedAre(n, "pack"))
	}
	row("proven", "%s", text)
	if n := s.scrub.DamagedPacks; n > 0 {
		row("damaged", "%s: bctl check lists the affected files, and bctl repair has them stored again", counted(n, "pack"))
	}
}

// statsJSON is the result of stats. The names are fixed.
type statsJSON struct {
	Type               string             `json:"type"` // stats
	Shards             int                `json:"shards"`
	Snapshots          int                `json:"snapshots"` // running or readable
	ForgottenSnapshots int                `json:"forgotten_snapshots"`
	Packs              int                `json:"packs"`
	StoredBytes        int64              `json:"stored_bytes"`
	UnusedBytes        int64              `json:"unused_bytes"`
	PrunableBytes      int64              `json:"prunable_bytes"` // what the next prune frees
	StoppedBytes       int64              `json:"stopped_bytes"`  // what it would free in addition after bctl confirm
	DeletingSince      *string            `json:"deleting_since"` // when the oldest pack was condemned that waits for the deletion of its object
	RowsSince          *string            `json:"rows_since"`     // when the oldest pack was deleted whose row waits for running snapshots
	Locked             int                `json:"locked"`         // objects that nothing needs, and that stay until their locks end
	LockedBytes        int64              `json:"locked_bytes"`   // of the packs among them; in stored_bytes, and not in unused_bytes
	ParityGroups       int                `json:"parity_groups"`
	ParityBytes        int64              `json:"parity_bytes"`         // of their parity objects
	ParityObjects      int                `json:"parity_objects"`       // that have parity
	ParityObjectBytes  int64              `json:"parity_object_bytes"`  // of these
	WithoutParity      int                `json:"without_parity"`       // objects that have none
	WithoutParityBytes int64              `json:"without_parity_bytes"` // of these
	Purges             []pendingPurgeJSON `json:"purges"`               // that are not complete
	FreedBytes         freedBytesJSON     `json:"freed_bytes"`
	LastPrune          *lastPruneJSON     `json:"last_prune"` // null: never
	Scrub              scrubJSON          `json:"scrub"`
}

type freedBytesJSON struct {
	Day     int64 `json:"1d"`
	Days30  int64 `json:"30d"`
	Days400 int64 `json:"400d"`
}

type lastPruneJSON struct {
	Ended            *string `json:"ended"`
	ElapsedSeconds   float64 `json:"elapsed_seconds"`
	DeletedPacks     int     `json:"deleted_packs"`
	DeletedBytes     int64   `json:"deleted_bytes"`
	FreedBytes       int64   `json:"freed_bytes"`
	CopiedBytes      int64   `json:"copied_bytes"`
	RemovedSnapshots int     `json:"removed_snapshots"`
}

func newStatsJSON(s *space) statsJSON {
	j := statsJSON{
		Type: "stats", Shards: s.shards, Snapshots: s.snapshots, ForgottenSnapshots: s.forgotten, Packs: s.KeptPacks + s.Packs,
		StoredBytes: s.stored(), UnusedBytes: s.unusedNow(), PrunableBytes: s.Deletable, StoppedBytes: s.stopped,
		DeletingSince: jsonTime(s.condemned), RowsSince: jsonTime(s.rowsSince),
		Locked: s.Locked, LockedBytes: s.LockedBytes,
		ParityGroups: s.parity.Groups, ParityBytes: s.parity.Bytes, ParityObjects: s.parity.Objects, ParityObjectBytes: s.parity.ObjectBytes,
		WithoutParity: s.parity.Without, WithoutParityBytes: s.parity.WithoutBytes, Purges: pendingPurgesJSON(s.purges),
		Scrub: newScrubJSON(&s.scrub), FreedBytes: freedBytesJSON{s.lastDay, s.last30Days, s.last400Days},
	}
	if p := s.last; p != nil {
		j.LastPrune = &lastPruneJSON{jsonTime(p.Ended), p.Took.Seconds(), p.Packs, p.Bytes, p.Freed, p.Copied, p.Snapshots}
	}
	return j
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/internal/scrub"
)

type scrubCommand struct {
	app     *app
	all     bool
	most    index.ScrubCost
	packs   int
	started time.Time
}

func newScrub(a *app) *cobra.Command {
	c := &scrubCommand{app: a}
	cmd := &cobra.Command{
		Use:   "scrub",
		Short: "Prove without a key that packs are undamaged",
		Long: `Proves that packs are still what was sealed: it reads them as a whole from the
store, and compares them with checksums in the index. Then it reads the journal
(segments, commit records, catalogs, copies of the index), and verifies the
signatures. It needs no identity, and writes nothing to the store.

Without flags, it proves what is due, the oldest proof first. All packs are due
within 30 days (bctl scrub set), a few of them each day: run it daily. In a
fleet, scrubbers do that (bctl scrubber). If it is interrupted, run it again:
what was proven is not read again.

The index does not have the checksums of packs that former versions have stored,
or that were rebuilt. The first scrub notes those of what it reads, and further
ones compare with them. bctl check --read-data proves such packs with an
identity.

If a pack is damaged, the exit status is 1. bctl check then lists the affected
files, and bctl repair has them stored again.`,
		Example: `  bctl scrub
  bctl scrub --all
  bctl scrub --max-bytes 100GB
  bctl scrub show`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	cmd.Flags().BoolVar(&c.all, "all", false, "prove all packs, also those that are not due")
	sizeFlag(cmd.Flags(), &c.most.Bytes, "max-bytes", "read at most this `SIZE`")
	numberFlag(cmd.Flags(), &c.packs, "max-requests", 0, 0, most, "make at most this `NUMBER` of requests, one for each pack; 0: no limit")
	cmd.AddCommand(newScrubShow(a), newScrubSet(a))
	return cmd
}

func (c *scrubCommand) run(ctx context.Context) error {
	r, err := c.app.openRepository(ctx, toWrite)
	if err != nil {
		return err
	}
	defer r.close()
	before, err := r.index.Scrub(ctx)
	if err != nil {
		return err
	}
	c.started, c.most.Requests = time.Now(), int64(c.packs)
	var progress atomic.Pointer[scrub.Summary]
	progress.Store(&scrub.Summary{})
	stop := c.app.animate(func() string {
		now := progress.Load()
		text := fmt.Sprintf("%s  proving packs  %s", clock(time.Since(c.started)), size(now.Read.Bytes))
		if c.all {
			text += fmt.Sprintf(" of %s (%s)", size(before.Bytes), percent(now.Read.Bytes, before.Bytes))
		}
		return text
	})
	journal := &scrub.Journal{Store: r.store, Signer: r.object.Signer()}
	// What a scrub has found before may be there again.
	if _, err = scrub.Run(ctx, scrub.Options{Index: r.index, Store: r.store, Repository: r.object.ID, Journal: journal, Holder: holder(), Failed: true}); err != nil {
		stop()
		return c.failed(err)
	}
	var damaged []*check.Finding
	summary, err := scrub.Run(ctx, scrub.Options{
		Index: r.index, Store: r.store, Repository: r.object.ID, Journal: journal, Holder: holder(), All: c.all, Most: c.most,
		Progress: func(s scrub.Summary) { progress.Store(&s) },
		Damaged:  func(f *check.Finding) { damaged = append(damaged, f) },
	})
	stop()
	if err != nil {
		return c.failed(err)
	}
	after, err := r.index.Scrub(ctx)
	if err != nil {
		return err
	}
	return errors.Join(c.report(&summary, &after, damaged), scrubFailed(&after))
}

// failed returns the error of a scrub, with what to do.
func (c *scrubCommand) failed(err error) error {
	switch {
	case errors.Is(err, scrub.ErrBusy):
		return &busyError{err.Error() + "; run this command again when that has ended"}
	case errors.Is(err, process.ErrInterrupted):
		c.app.term.println("Run the command again to continue; what was proven is not read again.")
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (in a fleet with roles, only scrubbers and the admin note proofs: start bctl scrubber)", err)
	}
	return err
}

// scrubFailed returns the error of damage that this scrub or another one has found.
func scrubFailed(s *index.Scrub) error {
	if s.DamagedPacks == 0 && s.JournalDamaged > 0 {
		return fmt.Errorf("the journal has %s: bctl check shows whether the index needs them, and bctl repair has them written again", counted(s.JournalDamaged, "damaged object"))
	}
	if s.DamagedPacks == 0 {
		return nil
	}
	return fmt.Errorf("%s damaged or missing: bctl check lists the affected files, and bctl repair puts them back or has them stored again", countedAre(s.DamagedPacks, "pack"))
}

// report prints what a scrub has done.
func (c *scrubCommand) report(s *scrub.Summary, state *index.Scrub, damaged []*check.Finding) error {
	if c.app.json {
		object := struct {
			Type           string             `json:"type"` // scrub
			Proven         int64              `json:"proven_packs"`
			Adopted        int64              `json:"adopted_packs"`
			Damaged        []scrubFindingJSON `json:"damaged"`
			Requests       int64              `json:"requests"`
			Bytes          int64              `json:"bytes"`
			Journal        int64              `json:"journal_objects"`
			Limited        bool               `json:"limited"` // more is due than the limits allow
			ElapsedSeconds float64            `json:"elapsed_seconds"`
			State          scrubJSON          `json:"state"`
		}{"scrub", s.Proven, s.Adopted, []scrubFindingJSON{}, s.Read.Requests, s.Read.Bytes, s.Journal, s.Limited, time.Since(c.started).Seconds(), newScrubJSON(state)}
		for _, f := range damaged {
			object.Damaged = append(object.Damaged, scrubFindingJSON{f.Object, f.Text})
		}
		return c.app.print(object)
	}
	for _, f := range damaged {
		fmt.Fprintf(c.app.out, "%s: %s\n", f.Object, f.Text)
	}
	text := fmt.Sprintf("proved %s and %s of the journal (read %s in %.1f s)\n", counted(s.Proven, "pack"), counted(s.Journal-s.DamagedJournal, "object"), size(s.Read.Bytes), time.Since(c.started).Seconds())
	if s.Adopted > 0 {
		text += fmt.Sprintf("noted the checksums of %s, with which later scrubs compare\n", counted(s.Adopted, "pack"))
	}
	switch {
	case s.Limited:
		text += "more is due: the limits do not allow more today (bctl scrub show)\n"
	case !c.all && s.Read.Requests == 0:
		text += fmt.Sprintf("nothing is due (--all proves all packs): %s\n", provenText(state))
	}
	_, err := fmt.Fprint(c.app.out, text)
	return err
}

type scrubFindingJSON struct {
	Object string `json:"object"`
	Error  string `json:"error"`
}

func newScrubShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show what is proven, and the settings of scrubbing",
		Long: `Shows since when all packs are proven, what is late or damaged, and what
scrubbing may read from the store.`,
		Example: "  bctl scrub show\n  bctl scrub show --json | jq .oldest_proof",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error { return a.showScrub(cmd.Context(), i) })
		},
	}
}

func (a *app) showScrub(ctx context.Context, i index.Index) error {
	s, err := i.Scrub(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.print(newScrubJSON(&s))
	}
	return a.details(func(row rowFunc) { scrubRows(&s, row) })
}

// provenText says since when all is proven.
func provenText(s *index.Scrub) string {
	if s.Packs == 0 {
		return "there are no packs"
	}
	if s.Oldest.IsZero() {
		return "all packs are damaged"
	}
	return "all undamaged packs were stored or proven since " + happened(s.Oldest, s.Now)
}

// scrubRows describes what is proven.
func scrubRows(s *index.Scrub, row rowFunc) {
	row("proven", "%s", provenText(s))
	if s.DamagedPacks > 0 {
		row("damaged", "%s with %s: bctl check lists the affected files, and bctl repair has them stored again", counted(s.DamagedPacks, "pack"), size(s.DamagedBytes))
	}
	if s.LatePacks > 0 {
		row("late", "%s with %s, not proven within the time (bctl scrub, or start a scrubber)", counted(s.LatePacks, "pack"), size(s.LateBytes))
	}
	if s.UnprovenPacks > 0 {
		row("unproven", "%s with %s, which no scrub has proven yet", counted(s.UnprovenPacks, "pack"), size(s.UnprovenBytes))
	}
	if s.UnknownPacks > 0 {
		row("unknown", "%s without checksums: the first scrub notes them", counted(s.UnknownPacks, "pack"))
	}
	if s.AdoptedPacks > 0 {
		row("adopted", "%s with the checksums that a scrub has read first (bctl check --read-data proves them)", counted(s.AdoptedPacks, "pack"))
	}
	row("journal", "%s", journalText(s))
	row("within", "%s", spanText(s.Within))
	row("limits", "%s", budgetText(s))
	costRows(s, row)
	if days := s.Days(); days > s.Within.Hours()/24 {
		row("too little", "the limits allow to prove %s in %.0f days: raise them, or --proven-within", size(s.Bytes), days)
	}
}

// journalText says what is proven of the journal.
func journalText(s *index.Scrub) string {
	text := "all undamaged objects were stored or proven since " + happened(s.JournalOldest, s.Now)
	if s.JournalLate > 0 {
		text += fmt.Sprintf("; %d of %d parts are late", s.JournalLate, index.JournalSlices)
	}
	if s.JournalDamaged > 0 {
		text += fmt.Sprintf("; %s damaged: %s", countedAre(s.JournalDamaged, "object"), display(s.JournalDamage))
	}
	return text
}

// budgetText describes what may be read in a day.
func budgetText(s *index.Scrub) string {
	bytes, requests := "any number of bytes", "any number of requests"
	if s.PerDay.Bytes > 0 {
		bytes = fmt.Sprintf("%s (%s read today)", size(s.PerDay.Bytes), size(s.Today.Bytes))
	}
	if s.PerDay.Requests > 0 {
		requests = fmt.Sprintf("%s (%d made today)", counted(s.PerDay.Requests, "request"), s.Today.Requests)
	}
	return bytes + " and " + requests + " a day"
}

// spanText writes a time in days, if it has no hours.
func spanText(d time.Duration) string {
	if d%day == 0 {
		return counted(int64(d/day), "day")
	}
	return d.String()
}

// scrubJSON is the state of scrubbing. The names are fixed.
type scrubJSON struct {
	Type           string  `json:"type"`         // scrub_state
	OldestProof    *string `json:"oldest_proof"` // all undamaged packs were stored or proven since then
	Packs          int64   `json:"packs"`
	Bytes          int64   `json:"bytes"`
	UnprovenPacks  int64   `json:"unproven_packs"`
	UnprovenBytes  int64   `json:"unproven_bytes"`
	UnknownPacks   int64   `json:"unknown_packs"` // without checksums
	AdoptedPacks   int64   `json:"adopted_packs"` // with those that a scrub has read first
	LatePacks      int64   `json:"late_packs"`
	LateBytes      int64   `json:"late_bytes"`
	DamagedPacks   int64   `json:"damaged_packs"`
	DamagedBytes   int64   `json:"damaged_bytes"`
	WithinSeconds  int64   `json:"within_seconds"`
	BytesPerDay    int64   `json:"bytes_per_day"` // 0: no limit
	RequestsPerDay int64   `json:"requests_per_day"`
	BytesToday     int64   `json:"bytes_today"`
	RequestsToday  int64   `json:"requests_today"`
	// Amounts are decimal numbers, as text: floating-point numbers would be rounded.
	PricePer1000Requests string `json:"price_per_1000_requests"` // 0: none
	PricePerGiB          string `json:"price_per_gib"`
	CostPerDay           string `json:"cost_per_day"` // 0: no limit
	CostToday            string `json:"cost_today"`
	// Of the journal: all undamaged objects were stored or proven since then.
	OldestJournalProof *string `json:"oldest_journal_proof"`
	LateJournalSlices  int64   `json:"late_journal_slices"` // of 257
	DamagedJournal     int64   `json:"damaged_journal_objects"`
}

func newScrubJSON(s *index.Scrub) scrubJSON {
	return scrubJSON{
		"scrub_state", jsonTime(s.Oldest), s.Packs, s.Bytes, s.UnprovenPacks, s.UnprovenBytes, s.UnknownPacks, s.AdoptedPacks, s.LatePacks, s.LateBytes,
		s.DamagedPacks, s.DamagedBytes, int64(s.Within / time.Second), s.PerDay.Bytes, s.PerDay.Requests, s.Today.Bytes, s.Today.Requests,
		s.Prices.Requests.String(), s.Prices.Bytes.String(), s.Spend.String(), s.Prices.Cost(s.Today).String(),
		jsonTime(s.JournalOldest), s.JournalLate, s.JournalDamaged,
	}
}

// lacksProofs returns a lack if packs are damaged, or were not proven in time.
func lacksProofs(s *index.Scrub) (list []lack) {
	if s.DamagedPacks > 0 {
		list = append(list, lack{What: "packs", Text: countedAre(s.DamagedPacks, "pack") + " damaged or missing (bctl check, then bctl repair)", Warns: true})
	}
	if s.LatePacks > 0 {
		list = append(list, lack{What: "proofs", Text: fmt.Sprintf("%s not proven for %s (bctl scrub show)", countedAre(s.LatePacks, "pack"), spanText(s.Within)), Warns: true})
	}
	if s.JournalDamaged > 0 {
		list = append(list, lack{What: "journal", Text: counted(s.JournalDamaged, "damaged object") + " in the journal (bctl check, then bctl repair)", Warns: true})
	}
	if s.JournalLate > 0 {
		list = append(list, lack{What: "proofs", Text: fmt.Sprintf("the journal is not proven for %s (bctl scrub show)", spanText(s.Within)), Warns: true})
	}
	return list
}

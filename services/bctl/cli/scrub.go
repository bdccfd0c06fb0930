package cli

import (
	"context"
	"errors"
	"fmt"
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
store, and compares them with checksums in the index. Then it reads parity
objects, and compares them with their digests, and the journal (segments, commit
records, catalogs, copies of the index), whose signatures it verifies. It needs
no identity, and writes nothing to the store.

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
		return whenEnded(err)
	case errors.Is(err, process.ErrInterrupted):
		c.app.term.println("Run the command again to continue; what was proven is not read again.")
	case errors.Is(err, index.ErrRefused):
		return fmt.Errorf("%w (in a fleet with roles, only the service bctl scrubber and the admin note proofs)", err)
	}
	return err
}

// scrubFailed returns the error of damage that this scrub or another one has found.
func scrubFailed(s *index.Scrub) error {
	if s.DamagedPacks == 0 && s.Parity.Damaged > 0 {
		return fmt.Errorf("%s damaged or missing: bctl repair puts them back", countedAre(s.Parity.Damaged, "parity object"))
	}
	if s.DamagedPacks == 0 && s.Journal.Damaged > 0 {
		return fmt.Errorf("the journal has %s: bctl check shows whether the index needs them, and bctl repair has them written again", counted(s.Journal.Damaged, "damaged object"))
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
			Parity         int64              `json:"parity_objects"`
			Limited        bool               `json:"limited"` // more is due than the limits allow
			ElapsedSeconds float64            `json:"elapsed_seconds"`
			State          scrubJSON          `json:"state"`
		}{"scrub", s.Proven, s.Adopted, []scrubFindingJSON{}, s.Read.Requests, s.Read.Bytes, s.Journal, s.Parity, s.Limited, time.Since(c.started).Seconds(), newScrubJSON(state)}
		for _, f := range damaged {
			object.Damaged = append(object.Damaged, scrubFindingJSON{f.Object, f.Text})
		}
		return c.app.print(object)
	}
	for _, f := range damaged {
		fmt.Fprintf(c.app.out, "%s: %s\n", subject(f), f.Text)
	}
	text := "proved " + counted(s.Proven, "pack")
	if s.Parity > 0 {
		text += ", " + counted(s.Parity-s.DamagedParity, "parity object")
	}
	text += fmt.Sprintf(" and %s of the journal (read %s in %.1f s)\n", counted(s.Journal-s.DamagedJournal, "object"), size(s.Read.Bytes), time.Since(c.started).Seconds())
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
	switch {
	case s.Oldest.IsZero() && s.UndatedPacks > 0:
		return "never: the index was rebuilt, or a former version has stored the packs, and no scrub has proven them since"
	case s.Oldest.IsZero():
		return "all packs are damaged"
	case s.UndatedPacks > 0:
		return fmt.Sprintf("%s of %d never, since the index was rebuilt or a former version stored them; all other undamaged packs were stored or proven since %s",
			counted(s.UndatedPacks, "pack"), s.Packs, happened(s.Oldest, s.Now))
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
	if s.Parity.Parts > 0 {
		row("parity", "%s", partsText(&s.Parity, "groups", s.Now))
	}
	row("journal", "%s", partsText(&s.Journal, "slices", s.Now))
	for i := range s.PutBack {
		if p := &s.PutBack[i]; p.Objects > 0 {
			row("put back", "%s with %s from %s by repairs, the last of them %s", counted(p.Objects, "object"), size(p.Bytes), putBackFrom[p.Source], happened(p.Last, s.Now))
		}
	}
	row("within", "%s", spanText(s.Within))
	row("limits", "%s", budgetText(s))
	costRows(s, row)
	if days := s.Days(); days > s.Within.Hours()/24 {
		row("too little", "the limits allow to prove %s in %.0f days: raise them, or --proven-within", size(s.All().Bytes), days)
	}
}

var putBackFrom = map[index.PutBackSource]string{index.FromMirror: "the mirror", index.FromParity: "parity"}

// partsText says what is proven of the journal, or of parity.
func partsText(p *index.ScrubParts, parts string, now time.Time) string {
	text := "all undamaged objects were stored or proven since " + happened(p.Oldest, now)
	switch {
	case p.Oldest.IsZero():
		text = "never: the index was rebuilt or upgraded, and no scrub has proven anything since"
	case p.Undated > 0:
		text = fmt.Sprintf("%d of %d %s never, since the index was rebuilt or upgraded; all other undamaged objects were stored or proven since %s", p.Undated, p.Parts, parts, happened(p.Oldest, now))
	}
	if p.Late > 0 {
		text += fmt.Sprintf("; %d of %d %s are late", p.Late, p.Parts, parts)
	}
	if p.Damaged > 0 {
		text += fmt.Sprintf("; %s damaged: %s", countedAre(p.Damaged, "object"), display(p.Damage))
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
	OldestProof    *string `json:"oldest_proof"` // all undamaged packs were stored or proven since then; null: some are undated
	Packs          int64   `json:"packs"`
	Bytes          int64   `json:"bytes"`
	UnprovenPacks  int64   `json:"unproven_packs"`
	UnprovenBytes  int64   `json:"unproven_bytes"`
	UndatedPacks   int64   `json:"undated_packs"` // of these, those that were stored at a time that is not known
	UndatedBytes   int64   `json:"undated_bytes"`
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
	UndatedJournal     int64   `json:"undated_journal_slices"`
	DamagedJournal     int64   `json:"damaged_journal_objects"`
	// Of parity, likewise.
	OldestParityProof *string       `json:"oldest_parity_proof"`
	LateParity        int64         `json:"late_parity_groups"`
	UndatedParity     int64         `json:"undated_parity_groups"`
	DamagedParity     int64         `json:"damaged_parity_objects"`
	PutBack           []putBackNote `json:"put_back"` // by repairs, since the index was made
}

// putBackNote is what repairs have put back from one source.
type putBackNote struct {
	Source  index.PutBackSource `json:"source"` // mirror or parity
	Objects int64               `json:"objects"`
	Bytes   int64               `json:"bytes"`
	Last    *string             `json:"last"`
}

// provenSince is the time since which everything is proven; zero: something is undated.
func provenSince(oldest time.Time, undated int64) *string {
	if undated > 0 {
		oldest = time.Time{}
	}
	return jsonTime(oldest)
}

func newScrubJSON(s *index.Scrub) scrubJSON {
	back := []putBackNote{}
	for _, p := range s.PutBack {
		back = append(back, putBackNote{p.Source, p.Objects, p.Bytes, jsonTime(p.Last)})
	}
	return scrubJSON{
		"scrub_state", provenSince(s.Oldest, s.UndatedPacks), s.Packs, s.Bytes, s.UnprovenPacks, s.UnprovenBytes, s.UndatedPacks, s.UndatedBytes, s.UnknownPacks, s.AdoptedPacks, s.LatePacks, s.LateBytes,
		s.DamagedPacks, s.DamagedBytes, int64(s.Within / time.Second), s.PerDay.Bytes, s.PerDay.Requests, s.Today.Bytes, s.Today.Requests,
		s.Prices.Requests.String(), s.Prices.Bytes.String(), s.Spend.String(), s.Prices.Cost(s.Today).String(),
		provenSince(s.Journal.Oldest, s.Journal.Undated), s.Journal.Late, s.Journal.Undated, s.Journal.Damaged,
		provenSince(s.Parity.Oldest, s.Parity.Undated), s.Parity.Late, s.Parity.Undated, s.Parity.Damaged, back,
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
	if s.UndatedPacks > 0 {
		list = append(list, lack{What: "proofs", Text: countedAre(s.UndatedPacks, "pack") + " not proven since the index was rebuilt or upgraded (bctl scrub show)", Warns: true})
	}
	if s.Parity.Damaged > 0 {
		list = append(list, lack{What: "parity", Text: countedAre(s.Parity.Damaged, "parity object") + " damaged or missing (bctl repair)", Warns: true})
	}
	if s.Parity.Late > 0 {
		list = append(list, lack{What: "proofs", Text: fmt.Sprintf("parity is not proven for %s (bctl scrub show)", spanText(s.Within)), Warns: true})
	}
	if s.Journal.Damaged > 0 {
		list = append(list, lack{What: "journal", Text: counted(s.Journal.Damaged, "damaged object") + " in the journal (bctl check, then bctl repair)", Warns: true})
	}
	if s.Journal.Late > 0 {
		list = append(list, lack{What: "proofs", Text: fmt.Sprintf("the journal is not proven for %s (bctl scrub show)", spanText(s.Within)), Warns: true})
	}
	return list
}

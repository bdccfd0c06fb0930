package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/drill"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/policy"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/services/bctl/open"
)

type drillCommand struct {
	app           *app
	which         which
	due           bool
	files         int
	maxSize       int64
	seed          uint64
	tempDir       string
	compareSource bool

	progress atomic.Pointer[drillProgress]
}

// drillProgress is what a drill does now.
type drillProgress struct {
	shard, step string
	began       time.Time
	done        restore.Progress
}

const (
	defaultDrillFiles = 100
	defaultDrillSize  = 1 << 30
	// shownFailures is how many failures are printed.
	shownFailures = 20
	// maxDrillFiles bounds the paths that are held in memory.
	maxDrillFiles = 100_000
)

func newDrill(a *app) *cobra.Command {
	c := &drillCommand{app: a}
	cmd := &cobra.Command{
		Use:   "drill [SNAPSHOT…]",
		Short: "Prove by test restores that snapshots can be restored",
		Long: `Restores a random sample of files, and one whole directory, into a temporary
directory, and compares content and attributes with the snapshot. The temporary
directory is removed afterwards. Drills need an identity: run them on a machine
that may restore everything, as root.

Without SNAPSHOT, the last good snapshot of each shard is drilled; --due selects
the shards that are due by their policies (bctl policy set NAME --drill 7d). Let
a timer run bctl drill --due (docs/drills.md).

The signed report of each drill is stored in the index. bctl drill ls lists the
reports, and bctl shard ls when each shard was last proven restorable. The same
--seed chooses the same files again.

The exit status is 0 if everything was equal, and 3 if something differs.`,
		Example: `  bctl drill
  bctl drill --due
  bctl drill --filer nas1 --shard /export/home --max-size 20GiB
  bctl drill --compare-source --temp-dir /scratch
  bctl drill 3f2a --seed 8405713370213`,
		Args:              args(cobra.ArbitraryArgs),
		ValidArgsFunction: a.completePlace(&c.which),
		RunE:              func(cmd *cobra.Command, given []string) error { return c.run(cmd.Context(), given) },
	}
	c.which.flags(a, cmd)
	flags := cmd.Flags()
	flags.BoolVar(&c.due, "due", false, "only shards that are due by their policies")
	numberFlag(flags, &c.files, "files", defaultDrillFiles, 0, maxDrillFiles, "restore a sample of this `NUMBER` of files")
	c.maxSize = defaultDrillSize
	flags.Var(&parsed[int64]{&c.maxSize, "1GiB", "string", parseDrillSize}, "max-size", "maximum `SIZE` of the sample, and of the directory")
	flags.Var(&parsed[uint64]{&c.seed, "", "string", parseSeed}, "seed", "choose as the drill with this `SEED` did")
	flags.StringVar(&c.tempDir, "temp-dir", "", "restore into a temporary directory in `DIR` (default: TMPDIR, or /tmp)")
	flags.BoolVar(&c.compareSource, "compare-source", false, "also compare with the files on the file server, if mounted here")
	cmd.AddCommand(newDrillLs(a))
	return cmd
}

func parseDrillSize(text string) (int64, error) {
	n, err := parseSize(text)
	if err == nil && n == 0 {
		err = wrongValue("is not a size (500MB, 2GiB)")
	}
	return n, err
}

func parseSeed(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		return 0, wrongValue("is not a seed (a number that a drill has printed)")
	}
	return n, nil
}

// newSeed returns a random seed that JSON can represent exactly.
func newSeed() uint64 {
	var b [8]byte
	rand.Read(b[:])                                     // never fails
	return max(binary.LittleEndian.Uint64(b[:])>>11, 1) // 53 bits
}

func (c *drillCommand) run(ctx context.Context, given []string) error {
	c.app.interruptible.Store(true)
	if c.due && len(given) > 0 {
		return usage("--due selects snapshots itself: name none, or leave --due out")
	}
	var err error
	if c.tempDir, err = config.ExpandHome(cmp.Or(c.tempDir, os.TempDir()), c.app.env); err != nil {
		return usage("--temp-dir %v", err)
	}
	r, err := c.app.openRepository(ctx, toWrite)
	if err != nil {
		return err
	}
	defer r.close()
	snapshots, err := c.snapshots(ctx, r.index, given)
	if err != nil || len(snapshots) == 0 {
		return err
	}
	opener, key, err := c.app.openSealed(ctx, r)
	if err != nil {
		return err
	}
	// Each identity opens the key that signs.
	signing, err := r.object.CommitterKey(opener)
	if err != nil {
		return err
	}
	deps := restore.Deps{Catalog: r.index, Store: r.store, Repository: r.object.ID, Opener: opener, HashKey: key}
	return c.drillAll(ctx, r.index, deps, signing, snapshots)
}

// drillAll drills snapshots one after the other. An error of one does not end the others.
func (c *drillCommand) drillAll(ctx context.Context, i index.Index, deps restore.Deps, signing seal.CommitterKey, snapshots []backup.Snapshot) error {
	c.progress.Store(&drillProgress{began: time.Now()})
	stop := c.app.animate(c.line)
	defer stop()
	var failed error
	differ := false
	for n := range snapshots {
		s := &snapshots[n]
		report, err := c.drill(ctx, i, deps, signing, s)
		if ctx.Err() != nil {
			return errors.Join(failed, err)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("drill of shard %s of %s: %w", display(s.Shard.Name), display(s.Filer.Name), err))
			continue
		}
		differ = differ || !report.Passed
		if err := c.print(report); err != nil {
			return err
		}
	}
	if failed == nil && differ {
		return errIncomplete
	}
	return failed
}

// drill drills one snapshot, and stores the signed report.
func (c *drillCommand) drill(ctx context.Context, i index.Index, deps restore.Deps, signing seal.CommitterKey, s *backup.Snapshot) (*drill.Report, error) {
	end, err := c.app.beginReading(ctx, i, s.ID)
	if err != nil {
		return nil, err
	}
	defer end()
	o := drill.Options{
		Snapshot: *s, By: operator(), TempDir: c.tempDir, Seed: c.seed, MaxFiles: c.files, MaxBytes: c.maxSize,
		Progress: func(step string, p restore.Progress) {
			c.progress.Store(&drillProgress{s.Shard.Name, step, c.progress.Load().began, p})
		},
	}
	if o.Seed == 0 {
		o.Seed = newSeed()
	}
	if c.compareSource {
		o.Source = open.Source(c.app.cfg)
	}
	if o.Started, err = i.Clock(ctx); err != nil {
		return nil, err
	}
	report, err := drill.Run(ctx, deps, o)
	if errors.Is(err, drill.ErrNothing) {
		err = fmt.Errorf("%w; nothing is proven: allow more with --files and --max-size, or back up the shard again", err)
	}
	if err != nil {
		return nil, err
	}
	row, err := drill.Sign(report, s.Shard.ID, signing)
	if err == nil {
		err = i.AddDrill(ctx, row)
	}
	if err != nil {
		err = fmt.Errorf("store the report: %w", err)
	}
	return report, err
}

// snapshots returns the snapshots to drill.
func (c *drillCommand) snapshots(ctx context.Context, i index.Index, given []string) (list []backup.Snapshot, err error) {
	if list, err = c.which.committed(ctx, i, given, "drilled"); err != nil || list != nil {
		return list, err
	}
	if err := c.which.exists(ctx, i); err != nil {
		return nil, err
	}
	shards, err := i.ListShards(ctx, index.ShardFilter{Filer: c.which.filer, Name: c.which.shard})
	if err != nil {
		return nil, err
	}
	if shards = withSnapshots(shards); len(shards) == 0 {
		return nil, c.which.nothing(ctx, i)
	}
	if c.due {
		if shards, err = c.dueShards(ctx, i, shards); err != nil {
			return nil, err
		}
	}
	for n := range shards {
		s, err := i.Snapshot(ctx, shards[n].LastGood)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// dueShards returns the shards that are due, those first that were proven longest ago.
func (c *drillCommand) dueShards(ctx context.Context, i index.Index, shards []index.ShardStatus) ([]index.ShardStatus, error) {
	if err := drillPolicies(ctx, i, shards); err != nil {
		return nil, err
	}
	now, err := i.Clock(ctx)
	if err != nil {
		return nil, err
	}
	wanted := 0
	due := slices.DeleteFunc(shards, func(s index.ShardStatus) bool {
		if s.Drills.Every > 0 {
			wanted++
		}
		return s.Drills.Every == 0 || s.Drills.Due().After(now)
	})
	slices.SortStableFunc(due, func(a, b index.ShardStatus) int { return a.Drills.Passed.Compare(b.Drills.Passed) })
	switch {
	case wanted == 0:
		c.app.note("no policy asks for drills of these shards: bctl policy set NAME --drill 7d")
	case len(due) == 0 && !c.app.json:
		c.app.term.println("no drill is due")
	}
	return due, nil
}

// drillPolicies sets how often the policies of shards want drills. On one machine no scheduler
// binds shards to policies, so their labels decide.
func drillPolicies(ctx context.Context, i index.Catalog, shards []index.ShardStatus) error {
	policies, err := i.ListPolicies(ctx)
	if err != nil {
		return err
	}
	for n := range shards {
		s := &shards[n]
		s.Drills.Every = 0
		if p, ok := policy.For(s.Filer.Labels, policies); ok && !s.Retired {
			s.Drills.Every = p.Drill
		}
	}
	return nil
}

// line is the line of progress.
func (c *drillCommand) line() string {
	p := c.progress.Load()
	text := clock(time.Since(p.began)) + "  " + display(p.shard) + "  " + p.step
	if p.done.Files > 0 {
		text += fmt.Sprintf("  %s  %s", counted(p.done.Files, "file"), size(p.done.Bytes))
	}
	return text
}

// print prints a report.
func (c *drillCommand) print(r *drill.Report) error {
	if c.app.json {
		return c.app.print(newDrillJSON(r, nil, ""))
	}
	var b strings.Builder
	result := "passed"
	if !r.Passed {
		result = "FAILED (" + counted(r.Failures, "difference") + ")"
	}
	fmt.Fprintf(&b, "%s: shard %s of %s, snapshot %s of %s\n", result, display(r.Shard), display(r.Filer), r.Snapshot[:8], zoned(r.SnapshotStarted))
	fmt.Fprintf(&b, "  sample     %s\n", partText(&r.Sample))
	if r.Directory.Chosen {
		fmt.Fprintf(&b, "  directory  %s: %s\n", display("/"+r.Directory.Path), partText(&r.Directory))
	} else {
		fmt.Fprintf(&b, "  directory  none has files and at most %s (--max-size)\n", size(r.MaxBytes))
	}
	if r.Source != nil {
		fmt.Fprintf(&b, "  source     %s equal, %s changed since the snapshot\n", counted(r.Source.Files, "file"), humanize.Comma(r.Source.Changed))
	}
	drillNotes(&b, r)
	shown := r.Failed[:min(len(r.Failed), shownFailures)]
	for n := range shown {
		fmt.Fprintf(&b, "  %s: %s: %s\n", display("/"+shown[n].Path), shown[n].What, display(shown[n].Error))
	}
	if more := r.Failures - int64(len(shown)); more > 0 {
		fmt.Fprintf(&b, "  … and %s more (bctl drill ls --json has up to 100)\n", humanize.Comma(more))
	}
	if !r.Passed {
		fmt.Fprintf(&b, "  next: %s\n", drillNext(r))
	}
	fmt.Fprintf(&b, "  to repeat: bctl drill %s --seed %d%s\n", r.Snapshot[:8], r.Seed, limitsText(r))
	_, err := io.WriteString(c.app.out, fitted(b.String(), c.app.width()))
	return err
}

// limitsText has the flags with which a drill is repeated, if they are not the defaults.
func limitsText(r *drill.Report) (text string) {
	if r.MaxFiles != defaultDrillFiles {
		text += fmt.Sprintf(" --files %d", r.MaxFiles)
	}
	if r.MaxBytes != defaultDrillSize {
		text += fmt.Sprintf(" --max-size %d", r.MaxBytes)
	}
	return text
}

func partText(p *drill.Part) string {
	text := fmt.Sprintf("%s, %s in %.1f s", counted(p.Entries, "entry"), size(p.Bytes), p.Seconds)
	if rate := rateOf(p); rate > 0 {
		text += fmt.Sprintf(" (%s/s)", size(rate))
	}
	return text
}

// drillNotes writes what a drill did not prove.
func drillNotes(b *strings.Builder, r *drill.Report) {
	if r.TooLarge > 0 {
		fmt.Fprintf(b, "  not restored: %s that would exceed %s (--max-size)\n", counted(r.TooLarge, "file"), size(r.MaxBytes))
	}
	if r.Flawed > 0 {
		fmt.Fprintf(b, "  flawed in the snapshot: %s (bctl ls --errors lists them)\n", counted(r.Flawed, "entry"))
	}
	names := make([]string, 0, len(r.NotCarried))
	for name := range r.NotCarried {
		names = append(names, name)
	}
	slices.Sort(names)
	for n, name := range names {
		names[n] = fmt.Sprintf("%s (%s)", display(name), humanize.Comma(r.NotCarried[name]))
	}
	if len(names) > 0 {
		fmt.Fprintf(b, "  not compared, because it cannot be set here: %s\n", strings.Join(names, ", "))
	}
}

// drillNext returns the command to type after a drill that failed.
func drillNext(r *drill.Report) string {
	for n := range r.Failed {
		if r.Failed[n].What == "listing" {
			return "bctl check --level index " + r.Snapshot[:8] + ", which names the damaged pages and what to do"
		}
	}
	return "bctl check --read-data " + r.Snapshot[:8] + ". If it finds damage, bctl repair --read-data"
}

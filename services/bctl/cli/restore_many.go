package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/mount"
	"github.com/bctl/bctl/internal/restore"
)

// A restore of several shards: --all, --filer or --label without a SNAPSHOT.

// manyFlags select shards, and say where each is restored.
type manyFlags struct {
	all    bool
	labels []string
	asOf   time.Time
	maps   []string
}

func (m *manyFlags) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&m.all, "all", false, "restore all shards of all filers")
	labelFlag(cmd, &m.labels)
	sinceFlag(flags, &m.asOf, "as-of", "the last good snapshot of each shard that began before `TIME`: "+sinceForms)
	flags.StringArrayVar(&m.maps, "map", nil, "restore one shard into a directory of its own: `FILER:SHARD=DIR` (may be repeated)")
}

// check returns an error if the flags contradict each other or the arguments.
func (m *manyFlags) check(c *restoreCommand, given []string) error {
	selects := m.all || len(m.labels) > 0
	switch {
	case len(given) > 0 && (selects || !m.asOf.IsZero() || len(m.maps) > 0):
		return usage("--all, --label, --as-of and --map are for several shards: give no SNAPSHOT")
	case len(given) > 0:
		return nil
	case !selects && c.which.filer == "":
		return usage("give a SNAPSHOT (latest, or an id), or select shards with --filer, --label or --all")
	case m.all && (len(m.labels) > 0 || c.which != which{}):
		return usage("--all selects all shards of all filers and cannot be combined with --filer, --shard or --label")
	}
	return nil
}

// list returns the restores of the selected shards. One whose snapshot is zero has no snapshot.
func (m *manyFlags) list(ctx context.Context, c *restoreCommand, i index.Catalog) ([]*restoring, error) {
	labels, err := parseLabels(m.labels)
	if err != nil {
		return nil, err
	}
	if err := c.which.exists(ctx, i); err != nil {
		return nil, err
	}
	shards, err := i.ListShards(ctx, index.ShardFilter{Filer: c.which.filer, Name: c.which.shard, Labels: labels, Retired: true})
	if err != nil {
		return nil, err
	}
	// A removed shard may be restored as long as it has snapshots.
	shards = slices.DeleteFunc(shards, func(s index.ShardStatus) bool { return s.Retired && s.LastGood == backup.SnapshotID{} })
	if len(shards) == 0 {
		return nil, absent("no shard is selected (bctl shard ls lists the shards, bctl filer ls the labels)")
	}
	targets, err := m.targets(c, shards)
	if err != nil {
		return nil, err
	}
	places, err := c.places(targets)
	if err != nil {
		return nil, err
	}
	list := make([]*restoring, len(shards))
	for n := range shards {
		s := &shards[n]
		x := &restoring{
			restoreCommand: c, kind: backup.Directory, target: targets[n], place: places[n],
			label: display(s.Filer.Name) + " " + display(s.Name) + ": ",
		}
		if x.snapshot, err = m.snapshot(ctx, i, s); err != nil {
			return nil, err
		}
		x.snapshot.Filer, x.snapshot.Shard = s.Filer, s.Shard
		list[n] = x
	}
	// A directory within another one comes later: the outer one is then made by its own restore,
	// with its attributes.
	slices.SortStableFunc(list, func(a, b *restoring) int {
		return cmp.Compare(strings.Count(a.place.path, "/"), strings.Count(b.place.path, "/"))
	})
	return list, nil
}

// snapshot returns the shard's last good snapshot, of the time that is asked for; zero if there is
// none.
func (m *manyFlags) snapshot(ctx context.Context, i index.Catalog, s *index.ShardStatus) (none backup.Snapshot, err error) {
	if s.LastGood == (backup.SnapshotID{}) {
		return none, nil
	}
	if m.asOf.IsZero() {
		return i.Snapshot(ctx, s.LastGood)
	}
	found, err := i.Snapshots(ctx, index.SnapshotFilter{Filer: s.Filer.Name, Shard: s.Name, States: onlyCommitted})
	for _, f := range slices.Backward(found) {
		if f.Bad == "" && f.Started.Before(m.asOf) {
			return f, err
		}
	}
	return none, err
}

// noSnapshot says why a shard is not restored.
func (m *manyFlags) noSnapshot() string {
	if m.asOf.IsZero() {
		return "it has no good snapshot"
	}
	return "it has no good snapshot that began before " + zoned(m.asOf)
}

// targets returns the directory that each shard is restored into.
func (m *manyFlags) targets(c *restoreCommand, shards []index.ShardStatus) ([]string, error) {
	mapped, err := m.mapped(c, shards)
	if err != nil {
		return nil, err
	}
	targets := make([]string, len(shards))
	for n := range shards {
		s := &shards[n]
		switch {
		case mapped[n] != "":
			targets[n] = mapped[n]
		case c.target == "":
			return nil, usage("--map has no directory for %s:%s, and there is no --target", display(s.Filer.Name), display(s.Name))
		default:
			if targets[n], err = below(c.target, s); err != nil {
				return nil, err
			}
		}
	}
	return targets, nil
}

// mapped returns the directories that --map gives to shards; "" is none. The shards that are
// selected decide where a name ends, because names may contain ":" and "=".
func (m *manyFlags) mapped(c *restoreCommand, shards []index.ShardStatus) ([]string, error) {
	dirs := make([]string, len(shards))
	for _, text := range m.maps {
		best, length, several := -1, 0, false
		for n := range shards {
			name := shards[n].Filer.Name + ":" + shards[n].Name + "="
			if strings.HasPrefix(text, name) && len(name) >= length {
				best, length, several = n, len(name), len(name) == length
			}
		}
		switch {
		case several:
			return nil, usage("--map %q: several shards have this name", text)
		case best < 0:
			return nil, usage("--map %q: it is not FILER:SHARD=DIR with a shard that is selected (bctl shard ls lists the shards)", text)
		case text[length:] == "":
			return nil, usage("--map %q: the directory is missing", text)
		case dirs[best] != "":
			return nil, usage("--map %q: the shard has a directory already", text)
		}
		dir, err := config.ExpandHome(text[length:], c.app.env)
		if err != nil {
			return nil, usage("--map %v", err)
		}
		dirs[best] = dir
	}
	return dirs, nil
}

// below returns the directory of a shard below dir. The index accepts any name, so it is checked.
func below(dir string, s *index.ShardStatus) (string, error) {
	filer, shard := mount.FilerDir(s.Filer.Name), mount.ShardDir(s.Name)
	if err := errors.Join(backup.CheckName(filer), backup.CheckName(shard)); err != nil {
		return "", usage("%s:%s cannot be the name of a directory: give one with --map", display(s.Filer.Name), display(s.Name))
	}
	return filepath.Join(dir, filer, shard), nil
}

// A restoreTotal is what the restores of several shards did.
type restoreTotal struct {
	Type           string  `json:"type"` // total
	DryRun         bool    `json:"dry_run"`
	Shards         int     `json:"shards"`
	Restored       int     `json:"restored"`
	Incomplete     int     `json:"incomplete"`
	Failed         int     `json:"failed"`
	NoSnapshot     int     `json:"no_snapshot"`
	Files          int64   `json:"files"`
	Directories    int64   `json:"directories"`
	Kept           int64   `json:"kept"`
	Bytes          int64   `json:"bytes"`
	Errors         int64   `json:"errors"`
	ElapsedSeconds float64 `json:"elapsed_seconds"`

	Unmatched []string `json:"unmatched_patterns,omitempty"`
}

// restoreMany restores one shard after the other. One that fails does not end the others.
func (c *restoreCommand) restoreMany(ctx context.Context, i index.Index, deps restore.Deps, o restore.Options, list []*restoring) error {
	for _, x := range list {
		if x.id() != "" {
			c.tracker.expect(x.snapshot.ID, x.snapshot.Counts.Files, x.snapshot.Counts.Bytes)
		}
	}
	t := restoreTotal{Type: "total", DryRun: c.dryRun, Shards: len(list)}
	began := time.Now()
	used := make(map[restore.Inode]string)
	for _, x := range list {
		if err := x.restoreInTurn(ctx, i, deps, o, &t, used); err != nil {
			return err
		}
		t.Files += x.sum.Files
		t.Directories += x.sum.Directories
		t.Kept += x.sum.Kept
		t.Bytes += x.sum.Bytes
		t.Errors += x.sum.Problems
	}
	t.ElapsedSeconds = time.Since(began).Seconds()
	noInclude, noExclude := unmatched(c.included, backup.Directory), unmatched(c.excluded, backup.Directory)
	t.Unmatched = slices.Concat(noInclude, noExclude)
	if c.app.json || t.Shards > 1 {
		if err := c.app.result(t, "%s", t.text()); err != nil {
			return err
		}
	}
	err := c.noteUnmatched("each tree that was backed up", noInclude, noExclude)
	switch {
	case t.Failed > 0:
		return errors.Join(fmt.Errorf("%d of %s failed", t.Failed, counted(int64(t.Shards), "shard")), err)
	case err != nil:
		return err
	case t.Incomplete+t.NoSnapshot > 0:
		return errIncomplete
	}
	return nil
}

// restoreInTurn restores one of several shards and counts how that ended. Its error ends all.
func (x *restoring) restoreInTurn(ctx context.Context, i index.Index, deps restore.Deps, o restore.Options, t *restoreTotal, used map[restore.Inode]string) error {
	if x.id() == "" {
		t.NoSnapshot++
		return x.failed("no_snapshot", x.many.noSnapshot())
	}
	err := x.place.check(x.target, used)
	if err == nil {
		err = x.place.keepParent(x.dryRun, func() error { return x.restore(ctx, i, deps, o) })
		x.place.use(x.target, used)
	}
	x.causes.end(allErrors)
	if ctx.Err() != nil {
		x.hintAtResuming(cmp.Or(err, context.Cause(ctx)))
		return cmp.Or(err, context.Cause(ctx))
	}
	x.tracker.end(x.snapshot.ID, &backup.Counts{Files: x.sum.Files + x.sum.Kept + x.sum.Links, Bytes: x.snapshot.Counts.Bytes, Errors: x.sum.Problems})
	switch {
	case err != nil:
		t.Failed++
		return x.failed("failed", message(err))
	case x.sum.Problems > 0:
		t.Incomplete++
	default:
		t.Restored++
	}
	return x.summary(nil)
}

// failed reports a shard that is not restored.
func (x *restoring) failed(state, reason string) error {
	if x.app.json {
		return x.summaryJSON(state, reason, nil)
	}
	x.app.term.println(x.app.term.wrapped(x.label + reason))
	return nil
}

// text is for people: "3 shards: 2 restored, 1 failed".
func (t *restoreTotal) text() string {
	var parts []string
	for _, p := range []struct {
		n    int
		what string
	}{{t.Restored, "restored"}, {t.Incomplete, "incomplete"}, {t.Failed, "failed"}, {t.NoSnapshot, "without a good snapshot"}} {
		if p.n > 0 {
			parts = append(parts, humanize.Comma(int64(p.n))+" "+p.what)
		}
	}
	return fmt.Sprintf("%s: %s\n%s, %s (%s) in %.1f s\n", counted(int64(t.Shards), "shard"), strings.Join(parts, ", "),
		counted(t.Files, "file"), counted(t.Directories, "directory"), size(t.Bytes), t.ElapsedSeconds)
}

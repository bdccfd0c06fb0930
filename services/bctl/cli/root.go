// Package cli implements the command line of bctl, with one file and one struct per command.
//
// Results are written to stdout, progress and messages to stderr. With --json a result is one
// object per line; docs/cli.md describes them all. Only exit.go maps the errors that commands
// return to the exit status.
//
// # Files
//
// The program: the root command, help, exit status, and access to index and store
//
//	root.go, help.go, completion.go, complete.go, exit.go, open.go, version.go, profile.go
//
// Flags and arguments
//
//	exclusions.go, files_from.go, keep.go, labels.go, numbers.go, once.go, times.go, resolve.go,
//	source.go
//
// Output
//
//	terminal.go, table.go, aligned.go, json.go, forms.go, plural.go, progress.go, causes.go,
//	notes.go
//
// Back up
//
//	backup.go, backup_path.go, backup_here.go, backup_fleet.go, stdin.go, dry_run.go, report.go,
//	unmatched.go, own.go, idmap.go
//
// Restore and browse
//
//	restore.go, restore_fleet.go, owners.go, dump.go, mount.go, reading.go, ls.go, ls_long.go,
//	ls_tree.go, ls_flaws.go, find.go, find_pattern.go, history.go, versions.go, diff.go,
//	diff_live.go, snapshot.go, snapshot_ls.go, snapshot_bad.go, interrupted.go, current.go,
//	restore_instant.go, restore_many.go, restore_places.go, restore_report.go, ls_parquet.go
//
// Forget and free space
//
//	forget.go, forget_brake.go, hold.go, hold_copy.go, brake.go, confirm.go, confirm_group.go,
//	prune.go, purge.go, purge_fleet.go, purge_pending.go, purge_report.go, purge_unneeded.go,
//	stats.go, stats_by.go, du.go, du_snapshot.go, log.go
//
// Register filers, shards and policies
//
//	filer.go, filer_ls.go, shard.go, shard_ls.go, policy.go, policy_ls.go, policy_next.go,
//	policy_simulate.go, policy_cost.go, coverage.go
//
// A fleet in a file
//
//	apply.go, apply_plan.go, declared.go, declared_keep.go, declared_read.go, export.go
//
// Watch a fleet
//
//	status.go, status_look.go, status_hand.go, status_rates.go, status_table.go,
//	status_screen.go, status_json.go, status_restores.go, waits.go, missing.go,
//	missing_pruner.go, lookout.go, cancel.go, worker.go, worker_ls.go, worker_drain.go,
//	churn.go, churn_parts.go
//
// Set up and repair
//
//	init.go, ask.go, key.go, key_ls.go, key_change.go, key_rotate.go, key_verify.go, key_paper.go,
//	key_split.go, migrate.go, index.go, index_rebuild.go, index_report.go, deploy.go,
//	deploy_rotate.go, doctor.go, check.go, check_report.go, scrub.go, scrub_set.go, drill.go,
//	drill_ls.go, repair.go, repair_report.go, repair_parity.go, repair_mirror.go, mirror.go,
//	mirror_check.go, mirror_back.go, repair_back.go,
//	service.go
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/telemetry"
)

// A Service is one of the services that bctl can run in its own process.
type Service func(ctx context.Context, c *config.Config, log *slog.Logger) error

// Services are the services of a fleet.
type Services struct {
	Walker, Reader, Committer, Pruner, Scrubber, Restorer Service
}

// An app is one run of bctl.
type app struct {
	services Services
	term     *terminal
	out      io.Writer // results
	env      func(string) (string, bool)

	args       []string
	configFile string
	json       bool
	wide       bool // --wide
	progress   string
	profiler   profiler

	cfg   *config.Config
	log   *slog.Logger
	asked answers

	indexLock *os.File // held until the process ends, if it writes to a SQLite index

	// serves: the command runs a service, which reports everything in its log.
	serves atomic.Bool
	// interruptible: the command only reads, so there is nothing to stop.
	interruptible atomic.Bool
}

// Main runs bctl with the process's arguments and returns its exit status.
func Main(services Services) int {
	a := &app{services: services, args: os.Args[1:], env: os.LookupEnv, term: newTerminal(os.Stdout, os.Stderr), log: slog.New(slog.DiscardHandler)}
	out := &results{to: a.term.stdout()}
	a.out = out
	ctx, stop := process.Context(context.Background(), func() {
		switch {
		case a.serves.Load():
			a.log.Info("stopping")
		case !a.interruptible.Load():
			a.term.println("stopping; interrupt again to stop immediately")
		}
	})
	defer stop()
	root := a.root()
	root.SetArgs(a.args)
	err := root.ExecuteContext(ctx)
	if failed := a.profiler.stop(); failed != nil {
		a.term.println("bctl: " + failed.Error())
	}
	return a.exit(ctx, out.also(err))
}

// addServices adds the commands that run services.
func (a *app) addServices(root *cobra.Command) {
	addGroup(root, serveGroup,
		newService(a, "walker", "Run a walker, which lists directories and finds changes", a.services.Walker),
		newService(a, "reader", "Run a reader, which reads files and stores their content", a.services.Reader),
		newService(a, "committer", "Run a committer, which assigns work and writes the index", a.services.Committer),
		newService(a, "pruner", "Run a pruner, which deletes what no snapshot needs", a.services.Pruner),
		newService(a, "scrubber", "Run a scrubber, which proves that packs are undamaged", a.services.Scrubber),
		newService(a, "restorer", "Run a restorer, which shares the restores of bctl restore --fleet", a.services.Restorer))
}

func (a *app) root() *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "bctl",
		Short: "Back up directories and file servers, and restore them",
		Long: `bctl backs up directories and file servers. Snapshots are encrypted and
deduplicated.

On one machine, --repo names the directory of the repository:

  export BCTL_REPO=/backup
  bctl init
  bctl backup /home
  bctl restore latest --target /tmp/home

For a fleet, --config names a file with the addresses of NATS, Postgres and an
S3 store.

Exit status: 0 success; 1 failure; 2 invalid command line or setting; 3 success
except for some files; 10 no repository; 11 another backup of the shard, restore
to the target, or prune is running; 12 wrong key; 130 interrupted.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if version {
				return a.printVersion()
			}
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
		Args: cobra.ArbitraryArgs,
	}
	root.SetOut(a.out)
	root.SetErr(a.term)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		a.json = a.json || asksForJSON(a.args) // flags after the invalid one are not parsed
		return flagError(cmd, err)
	})
	root.CompletionOptions.DisableDefaultCmd = true
	a.globalFlags(root)
	root.Flags().BoolVar(&version, "version", false, "print the version")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) }
	setHelp(root)
	addGroup(root, useGroup, newInit(a), newBackup(a), newRestore(a), newDump(a), newCat(a), newMount(a), newSnapshot(a), newLs(a), newFind(a), newHistory(a), newDiff(a), newChurn(a), newStatus(a), newCancel(a),
		newForget(a), newPrune(a), newPurge(a), newHold(a), newConfirm(a), newBrake(a), newLog(a), newStats(a), newDu(a))
	addGroup(root, fleetGroup, newFiler(a), newShard(a), newPolicy(a), newApply(a), newExport(a), newWorker(a))
	a.addServices(root)
	addGroup(root, adminGroup, newCheck(a), newScrub(a), newDrill(a), newRepair(a), newMirror(a), newDoctor(a), newIndex(a), newKey(a), newMigrate(a), newDeploy(a), newCompletion(a), newVersion(a))
	help := newHelp(a)
	addGroup(root, adminGroup, help)
	root.SetHelpCommand(help)
	root.AddCommand(newSnapshots(a))
	addAliases(root)
	countSelectors(root)
	return root
}

func (a *app) globalFlags(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.StringVar(&a.configFile, "config", "", "YAML `FILE` with settings (BCTL_CONFIG)")
	for _, s := range config.Settings() {
		if s.Flag != "" {
			flags.StringP(s.Flag, shorthands[s.Flag], "", flagUsage[s.Key]+" ("+s.Env+")")
		}
	}
	a.profiler.flags(flags)
	flags.BoolVar(&a.json, "json", false, "print results as JSON, one object per line")
	flags.StringVar(&a.progress, "progress", "auto", "show progress: `WHEN` is auto (on a terminal), always or never")
}

// shorthands are the global flags that have one.
var shorthands = map[string]string{"repo": "r"}

// flagUsage are descriptions that are shorter than the documentation of the settings.
var flagUsage = map[string]string{
	"repo":              "repository `DIR`, for backups of this machine",
	"worker_key":        "`FILE` with the worker key",
	"committer_key":     "`FILE` with the committer key",
	"identity":          "`FILE` with the identity that opens the backups",
	"index.url":         "`URL` of the index: postgres://…, or a SQLite file",
	"store.url":         "`URL` of the store: s3://…, or a directory",
	"mirror.url":        "`URL` of the store's second copy: s3://…, or a directory",
	"store.object_lock": "lock objects in the bucket while snapshots need them: `MODE` is off, governance or compliance",
	"nats.url":          "`URL` of NATS, for a fleet",
	"log.level":         "`LEVEL` of the log: debug, info, warn, error",
	"log.format":        "`FORMAT` of the log: text, json, auto",
}

// prepare checks the command line of a command and reads the settings.
func (a *app) prepare(cmd *cobra.Command) error {
	if err := selectedTwice(cmd); err != nil {
		return err
	}
	return a.configure(cmd)
}

// configure reads the settings. It opens nothing.
func (a *app) configure(cmd *cobra.Command) error {
	if err := emptyNames(cmd); err != nil {
		return err
	}
	switch a.progress {
	case "auto", "always", "never":
	default:
		return usage("--progress %s is not auto, always or never", a.progress)
	}
	if a.configFile == "" && !makesSettings(cmd) {
		a.configFile, _ = a.env("BCTL_CONFIG")
	}
	file, err := config.ExpandHome(a.configFile, a.env)
	if err != nil {
		return usage("configuration: %v", err)
	}
	a.configFile = file
	from := config.Sources{Env: a.env, File: a.configFile, Flags: map[string]string{}}
	for _, s := range config.Settings() {
		if f := cmd.Flags().Lookup(s.Flag); f != nil && f.Changed {
			from.Flags[s.Key] = f.Value.String()
		}
	}
	if err := a.profiler.start(); err != nil {
		return err
	}
	a.cfg, err = config.Load(from)
	if err != nil {
		return wrongSetting(err)
	}
	if _, err := store.ParseLockMode(a.cfg.Store.ObjectLock); err != nil {
		return wrongSetting(fmt.Errorf("store.object_lock (--object-lock): %w", err))
	}
	if _, err := store.ParseLockMode(a.cfg.Mirror.ObjectLock); err != nil {
		return wrongSetting(fmt.Errorf("mirror.object_lock: %w", err))
	}
	if _, _, err := parity.ParseSetting(a.cfg.Pruner.Parity); err != nil {
		return wrongSetting(fmt.Errorf("pruner.parity: %w", err))
	}
	a.log, err = telemetry.NewLogger(a.term, a.term.isTerminal, a.cfg.Log.Level, a.logFormat())
	return wrongSetting(err)
}

// makesSettings reports whether a command belongs to bctl deploy, which makes the settings of other
// machines: the file that BCTL_CONFIG names may be one that it is about to make.
func makesSettings(cmd *cobra.Command) bool {
	for ; cmd != nil; cmd = cmd.Parent() {
		if cmd.Name() == "deploy" {
			return true
		}
	}
	return false
}

// logFormat returns the format of the log. On one machine a person reads the log together with a
// command's notes, even if the output is a pipe or mail from cron.
func (a *app) logFormat() string {
	_, local := a.cfg.IndexPath()
	if a.cfg.Log.Format == "auto" && local && !a.cfg.Fleet() && !a.json {
		return "text"
	}
	return a.cfg.Log.Format
}

// wrongSetting turns an error about an invalid value into a usage error, wherever the value is set.
// It returns other errors unchanged.
func wrongSetting(err error) error {
	if !errors.Is(err, backup.ErrInvalid) || errors.Is(err, backup.ErrWrongKey) {
		return err
	}
	return &usageError{strings.TrimSuffix(err.Error(), ": "+backup.ErrInvalid.Error()), err}
}

// asksForJSON reports whether --json is among arguments that cannot be parsed.
func asksForJSON(args []string) bool {
	for _, arg := range args {
		switch value, given := strings.CutPrefix(arg, "--json="); {
		case arg == "--":
			return false
		case arg == "--json":
			return true
		case given:
			on, err := strconv.ParseBool(value)
			return on && err == nil
		}
	}
	return false
}

// flagError turns an error about a flag into a usage error.
func flagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	var reason *valueError
	if errors.As(err, &invalid) && errors.As(err, &reason) {
		return usage("--%s %q %s (%s --help describes the flags)", invalid.GetFlag().Name, invalid.GetValue(), reason, cmd.CommandPath())
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		name := "--" + unknown.GetSpecifiedName()
		if len(unknown.GetSpecifiedName()) == 1 {
			name = "-" + unknown.GetSpecifiedName()
		}
		return unknownFlag(cmd, name)
	}
	return usage("%s (%s --help describes the flags)", err, cmd.CommandPath())
}

// args turns cobra's errors about arguments into usage errors. It refuses empty arguments, which
// are mostly unset variables of scripts.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if err := check(cmd, given); err != nil {
			return usage("%s takes %s; %s (usage: %s)", cmd.CommandPath(), argumentsOf(cmd), whatWasGiven(given), cmd.UseLine())
		}
		if n := slices.Index(given, ""); n >= 0 {
			return usage("argument %d of %s is empty (usage: %s)", n+1, cmd.CommandPath(), cmd.UseLine())
		}
		return nil
	}
}

// emptyNames refuses an empty filer, shard, path, tag or policy: without a name, the command would
// apply to all, and no command could select an empty tag.
func emptyNames(cmd *cobra.Command) error {
	for _, name := range []string{"filer", "shard", "path", "tag", "policy"} {
		f := cmd.Flags().Lookup(name)
		if f == nil || !f.Changed {
			continue
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		if slices.Contains(values, "") {
			return usage("--%s is empty", name)
		}
	}
	return nil
}

// argumentsOf describes the arguments that a command takes.
func argumentsOf(cmd *cobra.Command) string {
	_, names, _ := strings.Cut(cmd.Use, " ")
	names, _, _ = strings.Cut(names, " --")
	if names == "" {
		return "no arguments"
	}
	return names
}

func whatWasGiven(given []string) string {
	if len(given) == 0 {
		return "nothing was given"
	}
	var names []string
	for _, name := range given[:min(len(given), maxCandidates)] {
		names = append(names, strconv.Quote(name))
	}
	if len(given) > maxCandidates {
		names = append(names, "…")
	}
	return "given: " + strings.Join(names, " ")
}

// onlyGroups is the annotation of commands that only have subcommands.
const onlyGroups = "group"

// group makes a command that only has subcommands.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{onlyGroups: "true"}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if len(given) > 0 {
			return unknownCommand(cmd, given[0])
		}
		return usage("%s needs a command (%[1]s --help lists the commands)", cmd.CommandPath())
	}
	return cmd
}

func usage(format string, args ...any) error {
	return &usageError{text: fmt.Sprintf(format, args...)}
}

// A usageError is an invalid command line or setting.
type usageError struct {
	text    string
	setting error // nil: the error concerns the command line
}

func (e *usageError) Error() string { return e.text }
func (e *usageError) Unwrap() error { return e.setting }

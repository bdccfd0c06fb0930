//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A step is one of the things that are measured.
type step string

const (
	first     step = "first"
	unchanged step = "unchanged"
	restore   step = "restore"
	churned   step = "churned"
)

var steps = []step{first, unchanged, restore, churned}

// title says in tables what a step is.
func (s step) title() string {
	return map[step]string{
		first: "First backup", unchanged: "Nothing changed", restore: "Restore", churned: "1% changed",
	}[s]
}

// A place is what a command of a tool works on.
type place struct {
	bench  string // this program
	tree   string // absolute
	repo   string // of this tool, in this round
	home   string // of this tool: its caches and settings
	target string // to restore into; not there yet
	serial int    // of this backup into the repository, from 1
	host   host   // nil: nothing runs beside the commands
}

// A tool is a program that is measured. If a step has no command, the tool takes no part in it.
type tool struct {
	name     string
	what     string   // a few words for the table
	programs []string // that must be on the PATH; the first tells its version
	version  []string // arguments for that
	env      []string // NAME=value; $HOME, $REPO stand for the place's

	init, backup, restore func(p place) command
	// start starts what runs beside the commands, in place of init.
	start func(ctx context.Context, dir, tree string) (host, error)

	ours                 bool // bctl, in another way
	compresses, encrypts bool
	// wholePaths: the tree is restored not into the target, but below it under its own path.
	wholePaths bool
	reference  bool // not a backup program: nothing is asserted of it
	only       step // the only one that it is a reference for
}

// A command is a program to run.
type command struct {
	dir    string
	args   []string
	stdout *os.File // nil: nowhere, as in a cron job
}

func run(args ...string) func(place) command {
	return func(p place) command { return command{args: p.expand(args)} }
}

// expand puts the place's paths in.
func (p place) expand(args []string) []string {
	names := strings.NewReplacer("$TREE", p.tree, "$REPO", p.repo, "$HOME", p.home, "$TARGET", p.target,
		"$BENCH", p.bench, "$SERIAL", fmt.Sprint(p.serial))
	expanded := make([]string, len(args))
	for i, arg := range args {
		expanded[i] = names.Replace(arg)
	}
	return expanded
}

// tools are all that this program knows, bctl first. All keep their defaults.
func tools() []*tool { return slices.Concat(ours(), peers(), references()) }

// ours is bctl in one process, and as a fleet.
func ours() []*tool {
	return []*tool{
		{
			name: "bctl", what: "zstd, encrypted", programs: []string{"bctl"}, version: []string{"version"}, ours: true,
			env:  []string{"BCTL_REPO=$REPO"},
			init: run("bctl", "init"), backup: run("bctl", "backup", "$TREE"),
			restore: run("bctl", "restore", "latest", "--sync=false", "--target", "$TARGET"), // the others do not wait for the disk, either
		},
		{
			name: "bctl fleet", what: "the same: a walker, a reader, a committer, NATS, Postgres, S3", programs: []string{"bctl", "initdb"}, ours: true,
			start: func(ctx context.Context, dir, tree string) (host, error) {
				f, err := startFleet(ctx, dir, tree, oneOfEach)
				if err != nil {
					return nil, err // and not a host that is nil
				}
				return f, nil
			},
			backup:  run("bctl", "backup", "--filer", theFiler, "--shard", "$TREE"),
			restore: run("bctl", "restore", "latest", "--sync=false", "--target", "$TARGET"), // the others do not wait for the disk, either
		},
	}
}

// peers are other backup programs.
func peers() []*tool {
	return []*tool{
		{
			name: "restic", what: "zstd, encrypted", compresses: true, encrypts: true, programs: []string{"restic"}, version: []string{"version"},
			env:  []string{"RESTIC_REPOSITORY=$REPO", "RESTIC_PASSWORD=bench"},
			init: run("restic", "init"), backup: run("restic", "backup", "$TREE"),
			restore: run("restic", "restore", "latest", "--target", "$TARGET"), wholePaths: true,
		},
		{
			name: "rustic", what: "zstd, encrypted", compresses: true, encrypts: true, programs: []string{"rustic"}, version: []string{"--version"},
			env:  []string{"RUSTIC_REPOSITORY=$REPO", "RUSTIC_PASSWORD=bench"},
			init: run("rustic", "init"), backup: run("rustic", "backup", "$TREE"),
			restore: run("rustic", "restore", "latest:$TREE", "$TARGET"),
		},
		{
			name: "borg", what: "lz4, encrypted", compresses: true, encrypts: true, programs: []string{"borg"}, version: []string{"--version"},
			env:  []string{"BORG_REPO=$REPO", "BORG_PASSPHRASE=bench", "BORG_BASE_DIR=$HOME"},
			init: run("borg", "init", "-e", "repokey-blake2"), backup: run("borg", "create", "::b$SERIAL", "$TREE"),
			restore: func(p place) command {
				return command{dir: p.target, args: p.expand([]string{"borg", "extract", "::b$SERIAL"})}
			}, wholePaths: true,
		},
		{
			name: "conserve", what: "Snappy, not encrypted", compresses: true, programs: []string{"conserve"}, version: []string{"--version"},
			init: run("conserve", "init", "$REPO"), backup: run("conserve", "backup", "--no-progress", "$REPO", "$TREE"),
			restore: run("conserve", "restore", "--no-progress", "$REPO", "$TARGET"),
		},
		{
			name: "kopia", what: "not compressed, encrypted", encrypts: true, programs: []string{"kopia"}, version: []string{"--version"},
			env: []string{
				"KOPIA_PASSWORD=bench", "KOPIA_CONFIG_PATH=$HOME/kopia.config", "KOPIA_CHECK_FOR_UPDATES=false",
				"KOPIA_CACHE_DIRECTORY=$HOME/cache", "KOPIA_LOG_DIR=$HOME/log",
			},
			init: run("kopia", "repository", "create", "filesystem", "--path", "$REPO"), backup: run("kopia", "snapshot", "create", "$TREE"),
			restore: run("kopia", "snapshot", "restore", "$TREE", "$TARGET"),
		},
	}
}

// gnuTar is the name of tar with GNU's format.
const gnuTar = "tar+zstd gnu"

// archiver is tar with one of its formats.
func archiver(name, format, what string) *tool {
	return &tool{
		name: name, what: what, programs: []string{"zstd", "tar"}, version: []string{"--version"},
		backup:  run("sh", "-c", "mkdir $REPO && tar -C $TREE -H "+format+" -cf - . | zstd -q -3 -o $REPO/tree.tar.zst"),
		restore: run("sh", "-c", "mkdir $TARGET && zstd -q -dc $REPO/tree.tar.zst | tar -C $TARGET -xf -"), reference: true,
	}
}

// references do a part of the work only.
func references() []*tool {
	return []*tool{
		// A pax archive has three more blocks a file, and times in nanoseconds.
		archiver("tar+zstd", "posix", "zstd -3, one stream"),
		archiver(gnuTar, "gnu", "the same; times in whole seconds"),
		{name: "cp -a", what: "copies", programs: []string{"cp"}, restore: run("cp", "-a", "$TREE", "$TARGET"), reference: true, only: restore},
		{
			name: "find", what: "stats every file", programs: []string{"find"},
			backup: run("find", "$TREE", "-printf", `%s\n`), reference: true, only: unchanged,
		},
		{name: "floor walk", what: "lists and stats", backup: run("$BENCH", "-floor", "walk", "$TREE"), reference: true, only: unchanged},
		{name: "floor store", what: "and reads, hashes, zstd level 1, seals", backup: run("$BENCH", "-floor", "store:$REPO", "$TREE"), reference: true, only: first},
		{name: "floor store 2", what: "the same, zstd level 2", backup: run("$BENCH", "-floor", "store-2:$REPO", "$TREE"), reference: true, only: first},
	}
}

// has reports whether the tool takes part in a step.
func (t *tool) has(s step) bool {
	switch {
	case t.only != "":
		return t.only == s
	case s == restore:
		return t.restore != nil
	case t.reference: // it knows no unchanged files
		return s == first
	}
	return t.backup != nil
}

// findTools returns the tools that are installed, and the names of the others.
func findTools(wanted string) (found []*tool, missing []string) {
	chosen := map[string]bool{}
	for name := range strings.SplitSeq(wanted, ",") {
		chosen[name] = true
	}
	for _, t := range tools() {
		if wanted != "" && !chosen[t.name] {
			continue
		}
		if !t.installed() {
			missing = append(missing, t.name)
			continue
		}
		found = append(found, t)
	}
	return found, missing
}

func (t *tool) installed() bool {
	for _, program := range t.programs {
		if !onPath(program) {
			return false
		}
	}
	return true
}

func onPath(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// versionLine is what the tool says of itself.
func (t *tool) versionLine() string {
	if t.version == nil {
		return ""
	}
	out, err := exec.Command(t.programs[0], t.version...).Output()
	if err != nil {
		return "?"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return strings.Trim(line, "* ")
}

// environment is that of all the tool's commands: its own settings in a home of its own.
func (t *tool) environment(p place) []string {
	env := append(os.Environ(), "HOME="+p.home, "XDG_CACHE_HOME="+filepath.Join(p.home, "cache"), "XDG_CONFIG_HOME="+filepath.Join(p.home, "config"))
	if p.host != nil {
		env = append(env, p.host.env()...)
	}
	return append(env, p.expand(t.env)...)
}

// restored returns the path of the restored tree in the target.
func (t *tool) restored(p place) string {
	if t.wholePaths {
		return filepath.Join(p.target, p.tree)
	}
	return p.target
}

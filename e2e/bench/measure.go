//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/source/treetest"
)

// A sample is one run of one tool's step.
type sample struct {
	Tool          string  `json:"tool"`
	Step          step    `json:"step"`
	Round         int     `json:"round"`
	WallSeconds   float64 `json:"wall_seconds"`
	UserSeconds   float64 `json:"user_seconds"`
	SystemSeconds float64 `json:"system_seconds"`
	PeakBytes     int64   `json:"peak_bytes"`   // resident, of the largest process
	StoredBytes   int64   `json:"stored_bytes"` // of the repository, afterwards
	Note          string  `json:"note,omitempty"`
	// Services are the peaks of what ran beside the command.
	Services map[string]int64 `json:"services,omitempty"`
}

func (s *sample) cpuSeconds() float64 { return s.UserSeconds + s.SystemSeconds }

// A bench measures tools on one tree.
type bench struct {
	self    string // this program
	work    string // directory for all that is made
	tree    string
	tools   []*tool
	rounds  map[step]int
	verbose func(format string, args ...any)

	places  map[string]*place // by tool: those of the last round of first backups
	broken  map[string]bool   // tools that failed
	samples []sample
	serial  int // of places that have no tool's name

	keep bool    // what was made
	of   content // of the tree, where that is restored
}

// all measures the steps in their order.
func (b *bench) all(ctx context.Context, changes func(round int) error) error {
	for _, s := range steps {
		for round := range b.rounds[s] {
			if s == first {
				if err := b.warm(ctx); err != nil {
					return err
				}
			}
			if s == churned {
				if err := changes(round); err != nil {
					return err
				}
			}
			if err := b.round(ctx, s, round); err != nil {
				return err
			}
		}
	}
	return nil
}

// warm reads the tree into the page cache, and its entries into the kernel's caches. A run of bctl
// does not do so for the next round, because it leaves no pages in the cache.
func (b *bench) warm(ctx context.Context) error {
	p := place{bench: b.self, tree: b.tree, repo: filepath.Join(b.work, "warm")}
	_, err := b.run(ctx, command{args: p.expand([]string{"$BENCH", "-floor", "store:$REPO", "$TREE"})}, os.Environ())
	return err
}

// round runs a step once with each tool. Another one is first in each round.
func (b *bench) round(ctx context.Context, s step, round int) error {
	for i := range b.tools {
		t := b.tools[(i+round)%len(b.tools)]
		if !t.has(s) || b.broken[t.name] {
			continue
		}
		err := b.one(ctx, t, s, round)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			continue
		}
		if t.name == "bctl" {
			return err
		}
		b.verbose("%v: %s is left out from here on", err, t.name)
		b.broken[t.name] = true
	}
	return nil
}

// next returns the command of a tool's step at its place, with the directory that it runs in.
func (p *place) next(t *tool, s step) (command, error) {
	todo := t.backup
	if s == restore {
		todo = t.restore
	} else {
		p.serial++
	}
	c := todo(*p)
	if c.dir == "" {
		return c, nil
	}
	return c, os.MkdirAll(c.dir, 0o755)
}

// one measures one run.
func (b *bench) one(ctx context.Context, t *tool, s step, round int) (err error) {
	p, err := b.placeFor(ctx, t, s, round)
	if err != nil {
		return err
	}
	if s == restore {
		var leave func() error
		if leave, err = b.giveTarget(p, t, round); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, leave()) }()
	}
	c, err := p.next(t, s)
	if err != nil {
		return err
	}
	if err := settle(b.work); err != nil {
		return err
	}
	m, err := b.beside(ctx, p.host, c, t.environment(*p))
	if err != nil {
		return fmt.Errorf("%s, %s: %w", t.name, s, err)
	}
	m.Tool, m.Step, m.Round = t.name, s, round
	if s == restore && round == 0 {
		m.Note = compare(b.tree, t.restored(*p))
	}
	if m.StoredBytes, err = p.storedBytes(); err != nil {
		return err
	}
	b.samples = append(b.samples, m)
	b.verbose("%-10s %-12s %8.2f s wall %8.2f s CPU %6d MiB %s", s, t.name, m.WallSeconds, m.cpuSeconds(), m.PeakBytes>>20, m.Note)
	return nil
}

// beside runs a command, and counts what its host does meanwhile with it.
func (b *bench) beside(ctx context.Context, h host, c command, env []string) (sample, error) {
	if h == nil {
		return b.run(ctx, c, env)
	}
	if err := h.resetPeaks(); err != nil {
		return sample{}, err
	}
	user, system := h.cpu()
	m, err := b.run(ctx, c, env)
	if err != nil {
		return m, err
	}
	userAfter, systemAfter := h.cpu()
	m.UserSeconds += userAfter - user
	m.SystemSeconds += systemAfter - system
	if m.Services, err = h.peaks(); err != nil {
		return m, err
	}
	for _, peak := range m.Services {
		m.PeakBytes = max(m.PeakBytes, peak)
	}
	return m, nil
}

// storedBytes is what the repository takes up.
func (p *place) storedBytes() (int64, error) {
	if p.host != nil {
		return p.host.storedBytes()
	}
	return diskBytes(p.repo)
}

// leave ends the processes of a place, and removes the repository, because the disk has no room for
// the repositories of all rounds. Removing it is fast: unlike a tree, it has few files.
func (p *place) leave() error {
	if p == nil {
		return nil
	}
	var err error
	if p.host != nil {
		err = p.host.close()
	}
	return errors.Join(err, os.RemoveAll(p.repo))
}

// close ends all processes that still run, and removes their repositories.
func (b *bench) close() error {
	var failed error
	for _, p := range b.places {
		if !b.keep {
			failed = errors.Join(failed, p.leave())
		} else if p.host != nil {
			failed = errors.Join(failed, p.host.close())
		}
	}
	return failed
}

// placeFor returns where the tool is to work: a new repository for a first
// backup, and that of the last round for all later steps.
func (b *bench) placeFor(ctx context.Context, t *tool, s step, round int) (*place, error) {
	p := b.places[t.name]
	if s == first || p == nil {
		if err := p.leave(); err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%s-%d", strings.ReplaceAll(t.name, " ", "-"), round)
		p = &place{bench: b.self, tree: b.tree, repo: filepath.Join(b.work, "repo", name), home: filepath.Join(b.work, "home", name)}
		b.places[t.name] = p
		if err := errors.Join(os.MkdirAll(p.home, 0o755), os.MkdirAll(filepath.Dir(p.repo), 0o755)); err != nil {
			return nil, err
		}
		var err error
		if t.start != nil {
			if p.host, err = t.start(ctx, p.repo, b.tree); err != nil {
				return nil, fmt.Errorf("%s, start: %w", t.name, err)
			}
		}
		if t.init != nil {
			if _, err := b.run(ctx, t.init(*p), t.environment(*p)); err != nil {
				return nil, fmt.Errorf("%s, init: %w", t.name, err)
			}
		}
	}
	return p, nil
}

// giveTarget lets a tool restore to a new file system. A file system reuses the inodes of removed
// files only after some minutes, and skips them one by one, so that creating files may be several
// times slower. If no file system can be mounted, the target is a directory in which at most a
// little is removed.
func (b *bench) giveTarget(p *place, t *tool, round int) (leave func() error, err error) {
	dir := filepath.Join(b.work, "restored", fmt.Sprintf("%s-%d", strings.ReplaceAll(t.name, " ", "-"), round))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	p.target = filepath.Join(dir, "tree")
	if os.Geteuid() != 0 || b.keep {
		return func() error {
			if b.keep || b.of.Files > fewFiles {
				return nil
			}
			return os.RemoveAll(dir)
		}, nil
	}
	// One inode per 16 KiB, as by default. All are initialized now, and not while the tool runs.
	size := 2*b.of.Bytes + (b.of.Files+b.of.Directories)*(20<<10)
	m, err := mountNew(dir, size>>30+2, []string{"mkfs.ext4", "-q", "-F"}, "noinit_itable")
	if err != nil {
		b.verbose("no file system to restore to: %v: a directory must do", err)
		return func() error { return nil }, nil
	}
	p.target = filepath.Join(m.dir, "tree")
	return m.close, nil
}

// fewFiles is how many files can be removed without making it slower to create files afterwards.
const fewFiles = 2000

// outputBytes is how much of what a tool prints is kept for an error's text.
const outputBytes = 2000

// run runs a command and measures it.
func (b *bench) run(ctx context.Context, c command, env []string) (m sample, err error) {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir, cmd.Env = c.dir, env
	if c.stdout != nil {
		cmd.Stdout = c.stdout
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	started := time.Now()
	err = cmd.Run()
	m.WallSeconds = time.Since(started).Seconds()
	if err != nil {
		tail := bytes.TrimSpace(stderr.Bytes())
		return m, fmt.Errorf("%s: %w: %s", strings.Join(c.args, " "), err, tail[max(0, len(tail)-outputBytes):])
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	m.UserSeconds, m.SystemSeconds = seconds(usage.Utime), seconds(usage.Stime)
	m.PeakBytes = usage.Maxrss << 10
	return m, nil
}

func seconds(t syscall.Timeval) float64 { return time.Duration(t.Nano()).Seconds() }

// settle writes out what earlier runs have left dirty, so that no run pays for another's.
func settle(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(fd), unix.Close(fd))
}

// compare says in few words whether a restored tree is the one that was backed up.
func compare(tree, restored string) string {
	lines := treetest.Compare(tree, restored)
	switch {
	case len(lines) == 0:
		return "equal"
	case len(treetest.Compare(tree, restored, treetest.DirectoryTimes)) == 0:
		return "equal but for times of directories"
	}
	return fmt.Sprintf("%d differences, the first: %s", len(lines), lines[0])
}

// diskBytes is what a tree takes up on disk, as du counts it. Nothing there: 0.
func diskBytes(root string) (total int64, err error) {
	err = filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		total += info.Sys().(*syscall.Stat_t).Blocks * 512
		return nil
	})
	return total, err
}

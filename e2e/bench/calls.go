//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/bctl/bctl/e2e/bench/profile"
)

// calls are a command's system calls by name.
type calls map[string]int64

// kinds are the kinds of system calls, with the calls of each. A call of no kind is other.
var kinds = []struct {
	name  string
	calls string
}{
	{"open", "open openat openat2 creat"},
	{"close", "close"},
	{"stat", "stat lstat fstat newfstatat statx"},
	{"read", "read pread64 readv preadv preadv2"},
	{"list", "getdents64"},
	{"write", "write pwrite64 writev pwritev pwritev2"},
	{"sync", "fsync fdatasync sync_file_range syncfs"},
	{"cache", "fadvise64 cachestat mincore"},
	{"xattr", "getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr"},
	{"attributes", "fchmod fchmodat fchown fchownat lchown utimensat fsetxattr lsetxattr"},
	{"wait", "futex epoll_wait epoll_pwait nanosleep clock_nanosleep sched_yield poll ppoll tgkill rt_sigreturn"},
}

// byKind sums the calls of each kind; the last is other.
func (c calls) byKind() []int64 {
	sums := make([]int64, len(kinds)+1)
	for name, n := range c {
		kind := len(kinds)
		for i, k := range kinds {
			if strings.Contains(" "+k.calls+" ", " "+name+" ") {
				kind = i
			}
		}
		sums[kind] += n
	}
	return sums
}

func (c calls) all() (sum int64) {
	for _, n := range c {
		sum += n
	}
	return sum
}

// A traced is what strace counted of one command.
type traced struct {
	Tool  string `json:"tool"`
	Step  step   `json:"step"`
	Calls calls  `json:"calls"`
	// Allocations of bctl, and their bytes; 0 of others.
	Allocations    int64 `json:"allocations,omitempty"`
	AllocatedBytes int64 `json:"allocated_bytes,omitempty"`
}

const (
	callsFiles       = 5000
	callsFileBytes   = 4000
	callsDirectories = 100
)

// measureCalls counts the system calls of each tool, and the allocations of bctl, per file. Under
// strace, everything is many times slower, so nothing else is measured in these runs.
func measureCalls(ctx context.Context, r *runner) error {
	if !onPath("strace") {
		progress("strace is not installed: left out")
		return nil
	}
	tree := filepath.Join(r.work, "tree")
	s := shape{files: callsFiles, directories: callsDirectories, bytes: callsFiles * callsFileBytes, sigma: 0.5, textShare: textShare, seed: r.o.seed}
	if err := errors.Join(s.make(tree), pass(ctx)); err != nil {
		return err
	}
	c := r.chapter("calls")
	found, _ := findTools(r.o.tools)
	b := r.bench(tree, found)
	b.of = content{Files: callsFiles, Directories: callsDirectories, Bytes: callsFiles * callsFileBytes}
	var all []traced
	for _, t := range found {
		if t.reference || t.start != nil { // strace does not see the calls of a host
			continue
		}
		of, err := b.trace(ctx, t)
		if err != nil && !t.ours {
			progress("%v: %s is left out", err, t.name)
			continue
		}
		if err != nil {
			return err
		}
		all = append(all, of...)
	}
	c.Data = all
	writeTraced(c, all)
	return c.end()
}

// trace counts the calls of a tool's steps in a repository of its own.
func (b *bench) trace(ctx context.Context, t *tool) (all []traced, err error) {
	p, err := b.placeFor(ctx, t, first, 0)
	if err != nil {
		return nil, err
	}
	leave, err := b.giveTarget(p, t, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, leave()) }()
	for _, s := range []step{first, unchanged, restore} {
		c, err := p.next(t, s)
		if err != nil {
			return nil, err
		}
		out := filepath.Join(b.work, "strace-"+t.name+"-"+string(s))
		c.args = append([]string{"strace", "-f", "-c", "-o", out}, c.args...)
		if _, err := b.run(ctx, c, t.environment(*p)); err != nil {
			return nil, err
		}
		of := traced{Tool: t.name, Step: s}
		if of.Calls, err = readCalls(out); err != nil {
			return nil, err
		}
		all = append(all, of)
	}
	if t.name != "bctl" {
		return all, nil
	}
	return all, b.profile(ctx, t, all)
}

// profile adds bctl's allocations, of one more run of each step.
func (b *bench) profile(ctx context.Context, t *tool, all []traced) (err error) {
	p, err := b.placeFor(ctx, t, first, 1)
	if err != nil {
		return err
	}
	leave, err := b.giveTarget(p, t, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leave()) }()
	for i := range all {
		c, err := p.next(t, all[i].Step)
		if err != nil {
			return err
		}
		out := filepath.Join(b.work, "allocations-"+string(all[i].Step))
		c.args = append(c.args, "--memprofile", out)
		if _, err := b.run(ctx, c, append(t.environment(*p), profile.EveryAllocation)); err != nil {
			return err
		}
		if all[i].Allocations, all[i].AllocatedBytes, err = profile.Allocations(ctx, out); err != nil {
			return err
		}
	}
	return nil
}

func writeTraced(c *chapter, all []traced) {
	c.say("System calls of each tool per file, by kind (`strace -f -c`), and allocations of bctl per file (Go's profile of all allocations). The tree has %d files in %d directories. Start-up is included.", callsFiles, callsDirectories)
	for _, s := range []step{first, unchanged, restore} {
		rows := [][]string{{"tool", "all"}}
		for _, k := range kinds {
			rows[0] = append(rows[0], k.name)
		}
		rows[0] = append(rows[0], "other", "allocations", "bytes")
		for _, of := range all {
			if of.Step != s {
				continue
			}
			row := []string{of.Tool, perFile(of.Calls.all())}
			for _, n := range of.Calls.byKind() {
				row = append(row, perFile(n))
			}
			if of.Allocations > 0 {
				row = append(row, perFile(of.Allocations), perFile(of.AllocatedBytes))
			} else {
				row = append(row, "-", "-")
			}
			rows = append(rows, row)
		}
		c.say("%s:", s.title())
		c.table(rows)
	}
}

func perFile(n int64) string { return fmt.Sprintf("%.2f", float64(n)/callsFiles) }

// readCalls reads the table that strace -c makes:
//
//	% time     seconds  usecs/call     calls    errors syscall
//	 59.11   42.000068        3611     11630       244 futex
func readCalls(path string) (calls, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	counted := calls{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 || fields[len(fields)-1] == "total" {
			continue
		}
		if n, err := strconv.ParseInt(fields[3], 10, 64); err == nil {
			counted[fields[len(fields)-1]] = n
		}
	}
	if len(counted) == 0 {
		return nil, fmt.Errorf("%s: not a table of strace -c", path)
	}
	return counted, lines.Err()
}

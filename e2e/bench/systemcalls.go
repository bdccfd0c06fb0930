//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// calls are a step's system calls by name.
type calls map[string]int64

// traceCalls counts the system calls of bctl's steps, in a repository of their
// own. Runs under strace are many times slower; nothing else is taken of them.
func (b *bench) traceCalls(ctx context.Context) (map[step]calls, error) {
	bctl := tools()[0]
	p, err := b.placeFor(ctx, bctl, first, -1)
	if err != nil {
		return nil, err
	}
	counted := map[step]calls{}
	for _, s := range []step{first, unchanged, restore} {
		c := bctl.backup(*p)
		if s == restore {
			c = bctl.restore(*p)
		}
		out := filepath.Join(b.work, "strace-"+string(s))
		c.args = append([]string{"strace", "-f", "-c", "-o", out}, c.args...)
		if _, err := b.run(ctx, c, bctl.environment(*p)); err != nil {
			return nil, err
		}
		if counted[s], err = readCalls(out); err != nil {
			return nil, err
		}
	}
	return counted, nil
}

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

// frequent returns the names that are called at least once in a hundred files, the most frequent first.
func (c calls) frequent(files int64) []string {
	var names []string
	for name, n := range c {
		if n*100 >= files {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return int(c[b] - c[a]) })
	return names
}

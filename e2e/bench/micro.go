//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// minChunksPerSecond are of files that have changed.
	minChunksPerSecond = 100_000
	// filesAPage is as in the preset million.
	filesAPage = 99
)

// endWithin is how long what was told to end may take.
const endWithin = 20 * time.Second

// A micro is one Go benchmark's result.
type micro struct {
	Package string             `json:"package"`
	Name    string             `json:"name"`
	Figures map[string]float64 `json:"figures"` // by unit: ns/op, B/op, allocs/op, and its own
}

// hot are the packages whose functions run for each entry, chunk, page or message.
var hot = []string{
	"./services/walker/walk", "./internal/source/posix", "./internal/selection", "./internal/listing", "./internal/chunk", "./internal/pack", "./internal/seal",
	"./services/reader/read", "./internal/journal", "./internal/flow", "./internal/index/sqliteindex", "./internal/index/pgindex", "./internal/restore",
}

// measureMicro runs the Go benchmarks, which tell where time and allocations go, one package after
// the other.
func measureMicro(ctx context.Context, r *runner) error {
	duration := "200ms"
	if r.o.full {
		duration = "2s"
	}
	tree := filepath.Join(r.work, "tree")
	if err := (shape{files: 20_000, directories: 200, bytes: 20_000 << 10, textShare: 1, seed: r.o.seed}).make(tree); err != nil {
		return err
	}
	c := r.chapter("micro")
	args := append([]string{"run", "./internal/testenv/withpostgres", "go", "test", "-run", "^$", "-bench", ".", "-benchmem", "-benchtime", duration, "-p", "1"}, hot...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = ".." // in bctl's own module
	// All benchmarks of the source share one tree: making and removing one for each would take most
	// of the time.
	cmd.Env = append(os.Environ(), "BCTL_BENCH_TREE="+tree)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	// The signal goes to all processes that go run has started, and not only to go run.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = endWithin
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go test -bench: %w: %s %s", err, out, stderr.Bytes())
	}
	all := parseMicro(out)
	c.Data = all
	c.say("`go test -bench . -benchmem -benchtime %s`, in the packages whose functions run for each entry, chunk, page or message:", duration)
	writeMicro(c, all)
	for _, m := range all {
		if rate := m.Figures["chunks/s"]; m.Package == "internal/index/pgindex" && rate > 0 {
			c.must(rate >= minChunksPerSecond, "Postgres (without fsync): new chunks a second, one of each changed file", fmt.Sprintf("%.0f", rate), fmt.Sprintf("≥ %d", minChunksPerSecond))
		}
		if rate := m.Figures["pages/s"]; m.Package == "internal/index/pgindex" && rate > 0 {
			c.must(rate*filesAPage >= minChunksPerSecond, fmt.Sprintf("Postgres (without fsync): changed files a second, %d a page", filesAPage), fmt.Sprintf("%.0f", rate*filesAPage), fmt.Sprintf("≥ %d", minChunksPerSecond))
		}
	}
	return c.end()
}

// benchmarkLine is a name, with how many processors it had, a number of operations, and figures
// with their units.
var benchmarkLine = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

func parseMicro(out []byte) (all []micro) {
	in := ""
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		line := lines.Text()
		if name, ok := strings.CutPrefix(line, "pkg: "); ok {
			_, in, _ = strings.Cut(name, "/bctl/bctl/")
		}
		found := benchmarkLine.FindStringSubmatch(line)
		if found == nil {
			continue
		}
		m := micro{Package: in, Name: found[1], Figures: map[string]float64{}}
		fields := strings.Fields(found[2])
		for i := 0; i+1 < len(fields); i += 2 {
			if v, err := strconv.ParseFloat(fields[i], 64); err == nil {
				m.Figures[fields[i+1]] = v
			}
		}
		all = append(all, m)
	}
	return all
}

func writeMicro(c *chapter, all []micro) {
	rows := [][]string{{"package", "benchmark", "ns/op", "MB/s", "B/op", "allocs/op", ""}}
	known := []string{"ns/op", "MB/s", "B/op", "allocs/op"}
	for _, m := range all {
		row := []string{m.Package, m.Name}
		for _, unit := range known {
			cell := ""
			if v, ok := m.Figures[unit]; ok {
				cell = strconv.FormatFloat(v, 'f', -1, 64)
			}
			row = append(row, cell)
		}
		var others []string
		for _, unit := range slices.Sorted(maps.Keys(m.Figures)) {
			if !strings.Contains(strings.Join(known, " "), unit) {
				others = append(others, strconv.FormatFloat(m.Figures[unit], 'f', -1, 64)+" "+unit)
			}
		}
		rows = append(rows, append(row, strings.Join(others, ", ")))
	}
	c.table(rows)
}

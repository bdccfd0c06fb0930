//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/source/treetest"
)

func TestSameSeedSameTree(t *testing.T) {
	s := shape{files: 300, directories: 25, bytes: 300_000, sigma: 0.5, textShare: 0.7, seed: 1}
	a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	for _, root := range []string{a, b} {
		if err := s.make(root); err != nil {
			t.Fatal(err)
		}
		if n, err := churn(root, 0.2, 5); err != nil || n < 30 || n > 90 {
			t.Fatalf("churn changed %d of 300 files: %v", n, err)
		}
	}
	if err := os.Chtimes(a, made, made); err != nil {
		t.Fatal(err)
	}
	var contents []string
	for _, line := range treetest.Compare(a, b, treetest.DirectoryTimes) {
		if !strings.Contains(line, "mtime") { // of what churn touched
			contents = append(contents, line)
		}
	}
	if len(contents) > 0 {
		t.Errorf("%q", contents)
	}
	c, err := count(a)
	if err != nil {
		t.Fatal(err)
	}
	if c.Directories != 25 || c.Bytes < 200_000 || c.Bytes > 400_000 {
		t.Errorf("%+v", c)
	}
}

func TestFloorWalksAndStores(t *testing.T) {
	tree, out := filepath.Join(t.TempDir(), "tree"), filepath.Join(t.TempDir(), "out")
	if err := (shape{files: 100, directories: 5, bytes: 1 << 20, textShare: 0, seed: 1}).make(tree); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"walk", "store:" + out} {
		if err := runFloor(mode, tree); err != nil {
			t.Fatal(mode, err)
		}
	}
	info, err := os.Stat(out)
	if err != nil {
		t.Fatal(err)
	}
	// Random content does not become smaller.
	if info.Size() < 1<<20-100 || info.Size() > 1<<20+1000 {
		t.Errorf("stored %d bytes of a tree of 1 MiB", info.Size())
	}
}

func TestReadCalls(t *testing.T) {
	path := filepath.Join(t.TempDir(), "strace")
	table := `% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ------------------
 59.11   42.000068        3611     11630       244 futex
 12.35    8.772132         173     50566           openat
  0.00    0.000000           0         3           brk
------ ----------- ----------- --------- --------- ------------------
100.00   71.000000                  62199       244 total
`
	if err := os.WriteFile(path, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := readCalls(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(c.frequent(50_000), " "); got != "openat futex" || c["futex"] != 11630 || len(c) != 3 {
		t.Errorf("%q %v", got, c)
	}
}

// reportOf makes a report of three rounds; the machine is twice as busy in each next one, and ratios stay.
func reportOf(seconds map[string]float64, stored map[string]int64) *report {
	r := &report{Tree: content{Files: 1000}}
	for _, t := range tools() {
		if seconds[t.name] == 0 {
			continue
		}
		r.tools = append(r.tools, t)
		for round, busy := range []float64{1, 2, 4} {
			for _, s := range []step{first, unchanged} {
				r.Samples = append(r.Samples, sample{
					Tool: t.name, Step: s, Round: round, WallSeconds: busy * seconds[t.name], UserSeconds: busy, StoredBytes: stored[t.name],
				})
			}
		}
	}
	r.summarize()
	return r
}

func TestCriteria(t *testing.T) {
	for name, test := range map[string]struct {
		seconds map[string]float64
		stored  map[string]int64
		failing []string
	}{
		"all hold": {map[string]float64{"bctl": 1, "restic": 3, "borg": 4}, map[string]int64{"bctl": 10, "restic": 10}, nil},
		"not twice as fast": {
			map[string]float64{"bctl": 1, "restic": 3, "borg": 1.5}, map[string]int64{"bctl": 10, "restic": 10}, []string{"Nothing changed"},
		},
		"slower, and larger": {
			map[string]float64{"bctl": 2, "restic": 1}, map[string]int64{"bctl": 11, "restic": 10}, []string{"First backup", "Nothing changed", "Stored"},
		},
		"references are no peers": {map[string]float64{"bctl": 2, "tar+zstd": 1, "restic": 5}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var failing []string
			for _, v := range reportOf(test.seconds, test.stored).criteria() {
				if !v.holds {
					title, _, _ := strings.Cut(v.text, ":")
					failing = append(failing, title)
				}
			}
			if strings.Join(failing, ";") != strings.Join(test.failing, ";") {
				t.Errorf("failing: %q, want %q", failing, test.failing)
			}
		})
	}
}

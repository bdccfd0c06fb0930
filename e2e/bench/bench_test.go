//go:build linux

package main

import (
	"maps"
	"os"
	"os/exec"
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
	for _, mode := range []string{"store-0:" + out, "store", "store-3", "read"} {
		if err := runFloor(mode, tree); err == nil {
			t.Errorf("%s is no mode", mode)
		}
	}
	for _, mode := range []string{"walk", "store-2:" + out, "store:" + out} {
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
	kinds := c.byKind()
	if c["futex"] != 11630 || len(c) != 3 || kinds[0] != 50566 || kinds[len(kinds)-1] != 3 || c.all() != 62199 {
		t.Errorf("%v, by kind %v", c, kinds)
	}
}

// reportOf makes a report of three rounds; the machine is twice as busy in each next one, and
// ratios stay.
func reportOf(preset string, seconds map[string]float64, stored map[string]int64) *report {
	r := &report{Preset: preset, Tree: content{Files: 1000}}
	for _, t := range tools() {
		if seconds[t.name] == 0 {
			continue
		}
		r.tools = append(r.tools, t)
		for round, busy := range []float64{1, 2, 4} {
			for _, s := range []step{first, unchanged} {
				if t.has(s) {
					r.Samples = append(r.Samples, sample{
						Tool: t.name, Step: s, Round: round, WallSeconds: busy * seconds[t.name], UserSeconds: busy, StoredBytes: stored[t.name], PeakBytes: 10 << 20,
					})
				}
			}
		}
	}
	r.summarize()
	return r
}

func TestCriteria(t *testing.T) {
	for name, test := range map[string]struct {
		preset  string
		seconds map[string]float64
		stored  map[string]int64
		failing []string
	}{
		"all hold": {
			"million", map[string]float64{"bctl": 1, "restic": 3, "borg": 4, "floor store": 0.9, "floor walk": 0.9}, map[string]int64{"bctl": 80, "restic": 100}, nil,
		},
		"slower than half of who encrypts": {
			"million", map[string]float64{"bctl": 1, "restic": 1.9, "conserve": 4}, map[string]int64{"bctl": 80, "restic": 100},
			[]string{"First backup, × the fastest peer that encrypts (restic)", "Nothing changed, × the fastest peer (restic)"},
		},
		"far from the floor, and large": {
			"million", map[string]float64{"bctl": 1, "restic": 9, "floor store": 0.7, "floor walk": 0.6}, map[string]int64{"bctl": 90, "restic": 100},
			[]string{"First backup, × the floor (floor store)", "Nothing changed, × the floor (floor walk)", "Stored, × restic"},
		},
		"seconds":                  {"million20", map[string]float64{"bctl": 0.2}, nil, []string{"Nothing changed, seconds"}},
		"who does less is no peer": {"big", map[string]float64{"bctl": 1, "conserve": 0.5, "kopia": 0.5, "restic": 2}, nil, nil},
		"references are no peers":  {"million5", map[string]float64{"bctl": 2, "tar+zstd": 1, "restic": 9}, nil, nil},
		"nor are we":               {"million5", map[string]float64{"bctl": 2, "bctl fleet": 1, "restic": 9}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := (&runner{}).chapter(test.preset)
			reportOf(test.preset, test.seconds, test.stored).criteria(c)
			var failing []string
			for _, v := range c.Verdicts {
				if !v.Holds {
					failing = append(failing, v.Criterion)
				}
			}
			if strings.Join(failing, ";") != strings.Join(test.failing, ";") {
				t.Errorf("failing: %q, want %q", failing, test.failing)
			}
		})
	}
}

// The criterion for memory applies to each service of the fleet.
func TestMemoryOfServices(t *testing.T) {
	r := reportOf("million", map[string]float64{"bctl": 1}, nil)
	r.Samples = append(r.Samples, sample{Tool: "bctl fleet", Step: first, Services: map[string]int64{"walker": 50 << 20, "reader": 300 << 20}})
	c := (&runner{}).chapter("million")
	r.criteria(c)
	last := c.Verdicts[len(c.Verdicts)-1]
	if last.Holds || !strings.Contains(last.Criterion, "reader") || last.Measured != "300" || last.Wanted != "≤ 256" {
		t.Errorf("%+v", c.Verdicts)
	}
}

func TestParseMicro(t *testing.T) {
	all := parseMicro([]byte(`goos: linux
pkg: github.com/bctl/bctl/internal/chunk
BenchmarkSum/4KiB-2         	  123456	       987.5 ns/op	4147.21 MB/s	       0 B/op	       0 allocs/op
BenchmarkWalk 	  10	  100 ns/op	  3 allocs/op	  5000 entries/s
PASS
`))
	if len(all) != 2 || all[0].Package != "internal/chunk" || all[0].Name != "Sum/4KiB" || all[0].Figures["MB/s"] != 4147.21 ||
		all[1].Name != "Walk" || all[1].Figures["entries/s"] != 5000 || all[1].Figures["allocs/op"] != 3 {
		t.Errorf("%+v", all)
	}
}

func TestStepsOfPresets(t *testing.T) {
	for _, test := range []struct {
		preset, steps string
		want          map[step]int
	}{
		{"million", "", map[step]int{first: 3, unchanged: 5, churned: 3}},
		{"big", "", map[step]int{first: 3, restore: 3}},
		{"million20", "unchanged", map[step]int{first: 1, unchanged: 5}},
		{"million20", "first,restore", map[step]int{first: 3, restore: 3}},
	} {
		o := options{rounds: 3, unchangedRounds: 5, steps: test.steps}
		got, err := o.roundsOf(test.preset)
		if err != nil || !maps.Equal(got, test.want) {
			t.Errorf("%s, %q: %v, %v, want %v", test.preset, test.steps, got, err, test.want)
		}
	}
	if _, err := (&options{steps: "frist"}).roundsOf("big"); err == nil {
		t.Error("a step that does not exist is taken")
	}
}

func TestBestOfASweep(t *testing.T) {
	// The machine was busy in the second round: ratios are what counts.
	of := swept{Default: []float64{1, 10, 1}, Values: map[string][]float64{"1": {2, 20, 2}, "8": {0.9, 9, 0.9}, "16": {1, 9.5, 1}}}
	if best, ratio := of.best([]string{"1", "8", "16"}); best != "8" || ratio != 0.9 {
		t.Errorf("best is %s with %v", best, ratio)
	}
}

// The setting whose default is farthest from its best value is the one that is judged.
func TestSweepIsJudgedByItsWorst(t *testing.T) {
	c := (&runner{}).chapter("knobs")
	writeSwept(c, []swept{
		{Env: "BCTL_WORKER_BATCHES", Step: first, Default: []float64{1}, Values: map[string][]float64{"1": {2}, "8": {1.01}}},
		{Env: "BCTL_WORKER_QUEUED", Fleet: true, Step: unchanged, Default: []float64{1}, Values: map[string][]float64{"16": {0.5}, "64": {1}}},
	})
	v := c.Verdicts[0]
	if len(c.Verdicts) != 1 || v.Holds || v.Measured != "2.00" || !strings.Contains(v.Criterion, "BCTL_WORKER_QUEUED=16, fleet, unchanged") {
		t.Errorf("%+v", c.Verdicts)
	}
	if text := c.text.String(); !strings.Contains(text, "8: 1.01") || !strings.Contains(text, "fleet") {
		t.Errorf("%s", text)
	}
}

func TestDrift(t *testing.T) {
	if d := drift([]float64{9, 10, 11}); d < 0.0999 || d > 0.1001 {
		t.Errorf("%v, want 0.1", d)
	}
}

func TestGrownTree(t *testing.T) {
	g := &grown{root: filepath.Join(t.TempDir(), "tree")}
	for _, n := range []int{5, 200} {
		if err := g.growTo(n); err != nil {
			t.Fatal(err)
		}
	}
	c, err := count(g.root)
	if err != nil || c.Files != 200 || c.Directories != int64(g.directories) {
		t.Errorf("%+v, %v; %d directories are counted", c, err, g.directories)
	}
	if _, err := os.Stat(filepath.Join(g.root, "071", "001", "000", "file-0000199")); err != nil {
		t.Error(err)
	}
}

// The CPU time of a child that is alive is counted, and of its child that is dead.
func TestDescendantsCPU(t *testing.T) {
	busy := exec.Command("sh", "-c", "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; echo done; cat")
	stdin, err := busy.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := busy.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	user, system := descendantsCPU()
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	userAfter, systemAfter := descendantsCPU()
	if userAfter+systemAfter <= user+system {
		t.Errorf("%v + %v s before, %v + %v s after", user, system, userAfter, systemAfter)
	}
	if peak, err := peakBytes(busy.Process.Pid); err != nil || peak == 0 {
		t.Errorf("peak %d, %v", peak, err)
	}
	_ = stdin.Close()
	if err := busy.Wait(); err != nil {
		t.Error(err)
	}
}

//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/bctl/bctl/e2e/bench/markdown"
)

// A report is what -json writes.
type report struct {
	Preset   string            `json:"preset"`
	Tree     content           `json:"tree"`
	Date     string            `json:"date"`
	Machine  markdown.Machine  `json:"machine"`
	Versions map[string]string `json:"versions"`
	Missing  []string          `json:"missing"` // tools that are not installed
	Broken   []string          `json:"broken"`  // tools that failed
	Samples  []sample          `json:"samples"`
	Results  []result          `json:"results"`
	Calls    map[step]calls    `json:"system_calls,omitempty"` // of bctl

	tools []*tool
}

// A result is what a tool's samples of one step come to.
type result struct {
	Step           step    `json:"step"`
	Tool           string  `json:"tool"`
	Runs           int     `json:"runs"`
	WallSeconds    float64 `json:"wall_seconds"` // median
	MinSeconds     float64 `json:"min_seconds"`
	MaxSeconds     float64 `json:"max_seconds"`
	CPUSeconds     float64 `json:"cpu_seconds"`  // median
	WallRatio      float64 `json:"wall_ratio"`   // to bctl: median of the rounds' ratios
	CPURatio       float64 `json:"cpu_ratio"`    // likewise
	PeakBytes      int64   `json:"peak_bytes"`   // of all runs
	StoredBytes    int64   `json:"stored_bytes"` // median
	FilesPerSecond float64 `json:"files_per_second"`
	Note           string  `json:"note,omitempty"`
}

// summarize fills in the results.
func (r *report) summarize() {
	byRound := map[string]*sample{}
	key := func(tool string, s step, round int) string { return fmt.Sprintf("%s %s %d", tool, s, round) }
	for i := range r.Samples {
		s := &r.Samples[i]
		byRound[key(s.Tool, s.Step, s.Round)] = s
	}
	for _, step := range steps {
		for _, t := range r.tools {
			var samples []*sample
			var wallRatios, cpuRatios []float64
			for i := range r.Samples {
				s := &r.Samples[i]
				if s.Tool != t.name || s.Step != step {
					continue
				}
				samples = append(samples, s)
				if b := byRound[key("bctl", step, s.Round)]; b != nil {
					wallRatios = append(wallRatios, s.WallSeconds/b.WallSeconds)
					cpuRatios = append(cpuRatios, s.cpuSeconds()/b.cpuSeconds())
				}
			}
			if len(samples) == 0 {
				continue
			}
			res := resultOf(samples)
			res.WallRatio, res.CPURatio = median(wallRatios), median(cpuRatios)
			res.FilesPerSecond = float64(r.Tree.Files) / res.WallSeconds
			r.Results = append(r.Results, res)
		}
	}
}

func resultOf(samples []*sample) result {
	res := result{Step: samples[0].Step, Tool: samples[0].Tool, Runs: len(samples)}
	var wall, cpu, stored []float64
	for _, s := range samples {
		wall, cpu, stored = append(wall, s.WallSeconds), append(cpu, s.cpuSeconds()), append(stored, float64(s.StoredBytes))
		res.PeakBytes = max(res.PeakBytes, s.PeakBytes)
		if s.Note != "" {
			res.Note = s.Note
		}
	}
	res.WallSeconds, res.MinSeconds, res.MaxSeconds = median(wall), slices.Min(wall), slices.Max(wall)
	res.CPUSeconds, res.StoredBytes = median(cpu), int64(median(stored))
	return res
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[half-1] + sorted[half]) / 2
	}
	return sorted[half]
}

func (r *report) writeJSON(path string) error {
	data, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

func (r *report) step(s step) []result {
	var of []result
	for _, res := range r.Results {
		if res.Step == s {
			of = append(of, res)
		}
	}
	return of
}

// writeTables writes all of it as Markdown, which reads well enough on a terminal, too.
func (r *report) writeTables(w io.Writer) error {
	fmt.Fprintf(w, "%s: %d files in %d directories, %d MB. %s.\n", r.Preset, r.Tree.Files, r.Tree.Directories, r.Tree.Bytes/1e6, r.Date)
	fmt.Fprintf(w, "Load averages before %s, after %s.\n", r.Machine.LoadBefore, r.Machine.LoadAfter)
	if len(r.Missing) > 0 {
		fmt.Fprintf(w, "Not installed: %s.\n", strings.Join(r.Missing, ", "))
	}
	if len(r.Broken) > 0 {
		fmt.Fprintf(w, "Left out, since they failed: %s.\n", strings.Join(r.Broken, ", "))
	}
	for _, s := range steps {
		if results := r.step(s); len(results) > 0 {
			writeTable(w, s, results)
		}
	}
	if len(r.Calls) > 0 {
		r.writeCalls(w)
	}
	_, err := fmt.Fprintln(w)
	return err
}

func writeTable(w io.Writer, s step, results []result) {
	fmt.Fprintf(w, "\n%s (%d runs each):\n\n", s.title(), results[0].Runs)
	rows := [][]string{{"tool", "wall s (min–max)", "× bctl", "CPU s", "× bctl", "peak MiB", "files/s"}}
	last := "stored MiB"
	if s == restore {
		last = "restored tree"
	}
	rows[0] = append(rows[0], last)
	for _, res := range results {
		last := fmt.Sprintf("%.1f", float64(res.StoredBytes)/(1<<20))
		if s == restore {
			last = res.Note
		}
		rows = append(rows, []string{
			res.Tool, fmt.Sprintf("%.2f (%.2f–%.2f)", res.WallSeconds, res.MinSeconds, res.MaxSeconds),
			fmt.Sprintf("%.2f", res.WallRatio), fmt.Sprintf("%.2f", res.CPUSeconds), fmt.Sprintf("%.2f", res.CPURatio),
			fmt.Sprint(res.PeakBytes >> 20), fmt.Sprintf("%.0f", res.FilesPerSecond), last,
		})
	}
	markdown.WriteTable(w, rows)
}

// writeCalls writes what bctl asks of the kernel, by file.
func (r *report) writeCalls(w io.Writer) {
	fmt.Fprintf(w, "\nSystem calls of bctl, for each file (strace -c; those below 0.01 left out):\n\n")
	for _, s := range steps {
		counted := r.Calls[s]
		if counted == nil {
			continue
		}
		var parts []string
		for _, name := range counted.frequent(r.Tree.Files) {
			parts = append(parts, fmt.Sprintf("%s %.2f", name, float64(counted[name])/float64(r.Tree.Files)))
		}
		fmt.Fprintf(w, "- %s: %s\n", s.title(), strings.Join(parts, ", "))
	}
}

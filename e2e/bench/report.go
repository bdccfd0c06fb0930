//go:build linux

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bctl/bctl/e2e/bench/plot"
)

// A report is what was found on one tree.
type report struct {
	Preset   string            `json:"preset"`
	Tree     content           `json:"tree"`
	Versions map[string]string `json:"versions"`
	Missing  []string          `json:"missing"` // tools that are not installed
	Broken   []string          `json:"broken"`  // tools that failed
	Samples  []sample          `json:"samples"`
	Results  []result          `json:"results"`

	tools []*tool
}

// A result summarizes a tool's samples of one step.
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

func (r *report) step(s step) []result {
	var of []result
	for _, res := range r.Results {
		if res.Step == s {
			of = append(of, res)
		}
	}
	return of
}

// write writes the report into a chapter.
func (r *report) write(c *chapter) {
	c.Data = r
	c.say("%s: %d files in %d directories, %d MB.", r.Preset, r.Tree.Files, r.Tree.Directories, r.Tree.Bytes/1e6)
	if len(r.Missing) > 0 {
		c.say("Not installed: %s.", strings.Join(r.Missing, ", "))
	}
	if len(r.Broken) > 0 {
		c.say("Left out because they failed: %s.", strings.Join(r.Broken, ", "))
	}
	for _, s := range steps {
		if results := r.step(s); len(results) > 0 {
			writeTable(c, s, results)
		}
	}
	r.writeServices(c)
	c.plot(r.Preset, "wall seconds of each tool", plot.Bars(r.panels()))
	r.writeCommands(c)
	r.criteria(c)
}

// panels are the wall seconds, a panel for each step.
func (r *report) panels() (panels []plot.Panel) {
	for _, s := range steps {
		p := plot.Panel{Title: s.title(), Unit: "s"}
		for _, res := range r.step(s) {
			p.Bars = append(p.Bars, plot.Bar{Label: res.Tool, Value: res.WallSeconds, Marked: strings.HasPrefix(res.Tool, "bctl")})
		}
		if len(p.Bars) > 0 {
			panels = append(panels, p)
		}
	}
	return panels
}

// writeServices writes the peak of each service of the fleet, by step.
func (r *report) writeServices(c *chapter) {
	peaks := map[string]map[step]int64{}
	for _, s := range r.Samples {
		for name, bytes := range s.Services {
			if peaks[name] == nil {
				peaks[name] = map[step]int64{}
			}
			peaks[name][s.Step] = max(peaks[name][s.Step], bytes)
		}
	}
	if len(peaks) == 0 {
		return
	}
	rows := [][]string{{"service"}}
	for _, s := range steps {
		rows[0] = append(rows[0], s.title())
	}
	for _, name := range slices.Sorted(maps.Keys(peaks)) {
		row := []string{name}
		for _, s := range steps {
			cell := "-"
			if bytes, ok := peaks[name][s]; ok {
				cell = fmt.Sprint(bytes >> 20)
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	c.say("Peak memory of each service of the fleet, MiB:")
	c.table(rows)
}

// writeCommands writes what was run, and of which version.
func (r *report) writeCommands(c *chapter) {
	rows := [][]string{{"tool", "", "version", "backup", "restore"}}
	p := place{bench: "bench", tree: "TREE", repo: "REPO", home: "HOME", target: "TARGET", serial: 1}
	line := func(of func(place) command) string {
		if of == nil {
			return ""
		}
		return "`" + strings.ReplaceAll(strings.Join(of(p).args, " "), "|", `\|`) + "`"
	}
	for _, t := range r.tools {
		rows = append(rows, []string{
			strings.ReplaceAll(t.name, "|", `\|`), t.what, r.Versions[t.name], line(t.backup), line(t.restore),
		})
	}
	c.table(rows)
}

func writeTable(c *chapter, s step, results []result) {
	c.say("%s (%d runs each):", s.title(), results[0].Runs)
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
	c.table(rows)
}

package serve

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/mirror"
)

var update = flag.Bool("update", false, "write the table of docs/observability.md")

const (
	docsFile = "../../../docs/observability.md"
	docsFrom = "<!-- metrics -->\n"
	docsTo   = "<!-- end of metrics -->\n"
)

// A family is a metric in the form in which services expose it.
type family struct {
	name, kind, help string
	labels, services []string
}

var (
	sampleLine = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$`)
	labelName  = regexp.MustCompile(`([a-z_]+)="`)
)

// scraped returns the metrics of a fleet that has made a backup: the families by name, and the
// values of the samples.
func scraped(t *testing.T) (families map[string]*family, samples map[string]string) {
	t.Helper()
	f := newFleet(t)
	f.startAll(nil)
	f.start("pruner", Pruner, nil)
	f.start("scrubber", Scrubber, nil)
	f.start("restorer", Restorer, map[string]string{"BCTL_RESTORER_TARGETS": t.TempDir()})
	f.backUp()
	f.until("the keeper tells of the fleet, and workers have reported", func() bool {
		_, body := f.get("committer", "/metrics")
		return strings.Contains(body, "\nbctl_fleet_up 1\n") && strings.Contains(body, "\nbctl_queue_messages{") &&
			strings.Contains(body, "\nbctl_filer_files_total{filer=\"nas1\"} 3\n") && !strings.Contains(body, "bctl_shard_last_good_timestamp_seconds{filer=\"nas1\",shard=\"home\"} 0\n")
	})
	families, samples = map[string]*family{}, map[string]string{}
	keepMirror := func(ctx context.Context, c *config.Config, log *slog.Logger) error {
		return Mirror(ctx, c, log, mirror.Options{})
	}
	f.start("mirror", keepMirror, map[string]string{"BCTL_MIRROR": filepath.Join(t.TempDir(), "mirror"), "BCTL_MIRROR_EVERY": "1s"})
	f.until("the mirror has what the store has", func() bool {
		_, body := f.get("mirror", "/metrics")
		ready, _ := f.get("mirror", "/readyz")
		return ready == http.StatusOK && !strings.Contains(body, "\nbctl_mirror_pass_timestamp_seconds 0\n") && strings.Contains(body, "\nbctl_mirror_objects ") && !strings.Contains(body, "\nbctl_mirror_objects 0\n")
	})
	for _, service := range []string{"walker", "reader", "committer", "pruner", "scrubber", "restorer", "mirror"} {
		_, body := f.get(service, "/metrics")
		parse(service, body, families, samples)
	}
	return families, samples
}

func parse(service, body string, families map[string]*family, samples map[string]string) {
	var now *family
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			if now = families[name]; now == nil {
				now = &family{name: name, help: help}
				families[name] = now
			}
			now.services = append(now.services, service)
		} else if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			_, now.kind, _ = strings.Cut(rest, " ")
		} else if m := sampleLine.FindStringSubmatch(line); m != nil {
			samples[service+" "+line[:len(line)-len(m[3])-1]] = m[3]
			for _, label := range labelName.FindAllStringSubmatch(m[2], -1) {
				if label[1] != "le" && !slices.Contains(now.labels, label[1]) {
					now.labels = append(now.labels, label[1])
				}
			}
		}
	}
}

func ours(families map[string]*family) (list []*family) {
	for name, f := range families {
		if strings.HasPrefix(name, "bctl_") {
			list = append(list, f)
		}
	}
	slices.SortFunc(list, func(a, b *family) int { return strings.Compare(a.name, b.name) })
	return list
}

// The documentation lists exactly the metrics that real services expose, with the same labels.
func TestDocumentationListsTheMetrics(t *testing.T) {
	families, _ := scraped(t)
	var table strings.Builder
	table.WriteString("| metric | type | unit | labels | of | what it is |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, f := range ours(families) {
		labels := slices.Sorted(slices.Values(f.labels))
		of := strings.Join(f.services, ", ")
		if len(f.services) == 5 {
			of = "all"
		} else if strings.HasPrefix(f.name, "bctl_fleet_") || strings.HasPrefix(f.name, "bctl_filer_") || strings.HasPrefix(f.name, "bctl_shard_") || f.name == "bctl_queue_messages" {
			of = "keeper"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s | %s | %s |\n", f.name, f.kind, unitOf(f), strings.Join(labels, ", "), of, f.help)
	}
	text, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), docsFrom)
	_, after, ok2 := strings.Cut(rest, docsTo)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the metrics", docsFile)
	}
	want := before + docsFrom + table.String() + docsTo + after
	if string(text) == want {
		return
	}
	if !*update {
		t.Fatalf("%s does not agree with what the services expose; go test ./services/bctl/serve -run Documentation -update writes it:\n%s", docsFile, table.String())
	}
	if err := os.WriteFile(docsFile, []byte(want), 0o600); err != nil {
		t.Fatal(err)
	}
}

// unitOf returns the unit of a metric, which is the last word of its name.
func unitOf(f *family) string {
	name := strings.TrimSuffix(f.name, "_total")
	for _, unit := range []string{"bytes", "seconds"} {
		if strings.HasSuffix(name, "_"+unit) {
			return unit
		}
	}
	return ""
}

// The metrics agree with the work done.
func TestMetricsOfABackup(t *testing.T) {
	_, samples := scraped(t)
	for sample, want := range map[string]string{
		"walker bctl_walk_directories_total":                                         "4",
		"walker bctl_walk_entries_total":                                             "7",
		"walker bctl_walk_stats_total":                                               "7",
		"committer bctl_messages_dropped_total":                                      "0",
		"walker bctl_walk_slice_seconds_count":                                       "1",
		"reader bctl_read_bytes_total":                                               "5006",
		"reader bctl_new_bytes_total":                                                "5006",
		"reader bctl_pack_put_seconds_count":                                         "1",
		`reader bctl_retries_total{kind="unavailable",work="store"}`:                 "0",
		`committer bctl_results_total{outcome="accepted",result="slice"}`:            "1",
		`committer bctl_results_total{outcome="accepted",result="pack"}`:             "1",
		`committer bctl_results_total{outcome="accepted",result="batch"}`:            "1",
		`committer bctl_snapshots_ended_total{state="committed"}`:                    "1",
		`committer bctl_snapshots_ended_total{state="failed"}`:                       "0",
		`committer bctl_snapshots_ended_total{state="cancelled"}`:                    "0",
		`committer bctl_keeper`:                                                      "1",
		`committer bctl_filer_limit{filer="nas1",work="task"}`:                       "32",
		`committer bctl_filer_slots{filer="nas1",work="batch"}`:                      "64",
		`committer bctl_fleet_work{site="default",state="open",work="task"}`:         "0",
		`committer bctl_queue_messages{queue="read",site="default",state="waiting"}`: "0",
		`committer bctl_queue_messages{queue="commit",site="",state="waiting"}`:      "0",
		`committer bctl_shard_deadline_timestamp_seconds{filer="nas1",shard="home"}`: "0",
	} {
		if got, ok := samples[sample]; !ok || got != want {
			t.Errorf("%s is %q, want %s", sample, got, want)
		}
	}
}

// Rules and dashboard use only existing metrics.
func TestRulesAndDashboardNameMetricsThatExist(t *testing.T) {
	families, samples := scraped(t)
	names := map[string]bool{}
	for sample := range samples {
		_, name, _ := strings.Cut(sample, " ")
		name, _, _ = strings.Cut(name, "{")
		names[name] = true
	}
	used := regexp.MustCompile(`\b(bctl|process)_[a-z0-9_]+`)
	for _, file := range []string{"prometheus/alerts.yaml", "prometheus/alerts_test.yaml", "grafana/bctl.json"} {
		text, err := os.ReadFile("../../../deploy/" + file)
		if err != nil {
			t.Fatal(err)
		}
		found := used.FindAllString(string(text), -1)
		if len(found) == 0 {
			t.Errorf("deploy/%s names no metric", file)
		}
		for _, name := range found {
			if !names[name] && families[name] == nil {
				t.Errorf("deploy/%s names %s, which no service exposes", file, name)
			}
		}
	}
}

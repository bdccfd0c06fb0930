package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// quietPanels have no lines while all is well, as here.
var quietPanels = []string{"Retries per second"}

// A real Prometheus scrapes a fleet that backs up, loads the alert rules, and answers every query
// of the dashboard. Its answers are kept as the artifact panels.json (go test -artifacts).
func TestDashboardIsAnswered(t *testing.T) {
	testtarget.Need(t, testtarget.Manifests)
	t.Parallel()
	program, err := exec.LookPath("prometheus")
	if err != nil && os.Getenv("BCTL_REQUIRE_PROMTOOL") != "" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip("prometheus is not installed (Debian: prometheus)")
	}
	f := fleet.New(t, fleet.Options{Walkers: -1, Readers: -1, Committers: -1})
	targets := map[string]string{}
	for _, kind := range []string{"walker", "reader", "committer", "pruner", "scrubber"} {
		targets[kind] = freeAddress(t)
		f.Service(kind, "BCTL_HTTP_LISTEN="+targets[kind])
	}
	targets["mirror"] = freeAddress(t)
	mirror := *f.Client
	mirror.Env = append(slices.Clone(mirror.Env), "BCTL_HTTP_LISTEN="+targets["mirror"], "BCTL_MIRROR="+filepath.Join(t.TempDir(), "mirror"), "BCTL_MIRROR_EVERY=1s")
	mirroring := mirror.Start("mirror", "run", "--watch")
	p := startPrometheus(t, program, targets)

	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 90, spread)
	f.Register(tree)
	const scheduled = "scheduled"
	f.Filer(scheduled, "--label", "policy=nightly")
	f.Must("policy", "set", "nightly", "--schedule", "0 1 * * *", "--label", "policy=nightly")

	// Counters rise only from the second scrape on, and quantiles need work between two: backups go
	// on until all panels have data, those that are asked for and those of new shards, which are
	// due at once.
	panels := dashboard(t)
	fleet.Await(t, "data in every panel", func() bool {
		settle(t)
		if err := os.WriteFile(filepath.Join(tree, "changed"), []byte(time.Now().String()), 0o600); err != nil {
			t.Fatal(err)
		}
		f.Shard(scheduled, t.TempDir())
		f.Backup(fleet.BackupArgs(tree)...)
		f.Must("drill")
		return p.answerAll(t, panels)
	})
	p.keep(t, panels)
	mirroring.Kill()

	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	p.get(t, "rules", nil, &rules)
	count := 0
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			count++
			if rule.Health == "err" {
				t.Errorf("rule %s: %s", rule.Name, rule.LastError)
			}
		}
	}
	if count == 0 {
		t.Error("Prometheus has no rules")
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// A panel of the dashboard.
type panel struct {
	Type, Title string
	Targets     []*struct {
		Expr   string
		Result json.RawMessage // Prometheus's answer
	}
}

func dashboard(t *testing.T) (list []panel) {
	t.Helper()
	text, err := os.ReadFile("../deploy/grafana/bctl.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct{ Panels []panel }
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		if len(p.Targets) > 0 {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		t.Fatal("the dashboard has no panels with queries")
	}
	return list
}

// A prometheus is a server's address.
type prometheus string

// startPrometheus starts a server with bctl's alert rules that scrapes each kind of service where
// it listens.
func startPrometheus(t *testing.T, program string, targets map[string]string) prometheus {
	t.Helper()
	rules, err := filepath.Abs("../deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config strings.Builder
	fmt.Fprintf(&config, "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n", rules)
	for kind, address := range targets {
		fmt.Fprintf(&config, "  - {job_name: bctl-%s, static_configs: [{targets: [%q]}]}\n", kind, address)
	}
	directory, address := t.TempDir(), freeAddress(t)
	file := filepath.Join(directory, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	testenv.Start(t, testenv.Command{
		Name: "prometheus", Path: program, Ready: testenv.HTTPReady("http://" + address + "/-/ready"),
		Args: []string{"--config.file", file, "--storage.tsdb.path", filepath.Join(directory, "data"), "--web.listen-address", address},
	})
	return prometheus("http://" + address)
}

// answerAll asks all queries for the last minute, and says whether each panel that should has data.
func (p prometheus) answerAll(t *testing.T, panels []panel) bool {
	t.Helper()
	now := time.Now()
	for _, panel := range panels {
		some := slices.Contains(quietPanels, panel.Title)
		for _, target := range panel.Targets {
			// What Grafana puts in for the variable that chooses filers.
			query := strings.ReplaceAll(target.Expr, "$filer", ".*")
			var answer struct{ Result json.RawMessage }
			p.get(t, "query_range", url.Values{
				"query": {query}, "step": {"1"}, "end": {fmt.Sprint(now.Unix())}, "start": {fmt.Sprint(now.Add(-time.Minute).Unix())},
			}, &answer)
			target.Result = answer.Result
			// NaN is what a quantile of nothing, and a rate divided by none, are.
			some = some || numbers(t, answer.Result)
		}
		if !some {
			t.Logf("no data yet: %s", panel.Title)
			return false
		}
	}
	return true
}

// numbers says whether there is a value that is one.
func numbers(t *testing.T, result json.RawMessage) bool {
	t.Helper()
	var series []struct{ Values [][2]any }
	if err := json.Unmarshal(result, &series); err != nil {
		t.Fatal(err)
	}
	for _, s := range series {
		for _, v := range s.Values {
			if v[1] != "NaN" {
				return true
			}
		}
	}
	return false
}

// keep writes the panels with their answers to where go test keeps artifacts.
func (p prometheus) keep(t *testing.T, panels []panel) {
	t.Helper()
	text, err := json.Marshal(panels)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(t.ArtifactDir(), "panels.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// get asks the server's HTTP API.
func (p prometheus) get(t *testing.T, what string, parameters url.Values, data any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, string(p)+"/api/v1/"+what+"?"+parameters.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s %v: %s, %s, %v", what, parameters, response.Status, answer.Error, err)
	}
}

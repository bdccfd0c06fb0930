package serve

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/testenv/testtarget"
)

const deploy = "../../../deploy"

// promtool returns the path of Prometheus's tool for testing rules. Without it the test is skipped,
// unless BCTL_REQUIRE_PROMTOOL is set.
func promtool(t *testing.T) string {
	t.Helper()
	testtarget.Need(t, testtarget.Manifests)
	path, err := exec.LookPath("promtool")
	if err != nil && os.Getenv("BCTL_REQUIRE_PROMTOOL") != "" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip("promtool is not installed (Debian: prometheus)")
	}
	return path
}

// Each alert fires when it should, and does not fire in normal operation.
func TestAlerts(t *testing.T) {
	output, err := exec.CommandContext(t.Context(), promtool(t), "test", "rules", filepath.Join(deploy, "prometheus", "alerts_test.yaml")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
}

// Each alert has a case that fires, one that does not, and an entry in the documentation.
func TestEachAlertIsTestedAndExplained(t *testing.T) {
	rules, cases, docs := readText(t, deploy+"/prometheus/alerts.yaml"), readText(t, deploy+"/prometheus/alerts_test.yaml"), readText(t, docsFile)
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(rules, -1)
	if len(alerts) == 0 {
		t.Fatal("there are no alerts")
	}
	for _, alert := range alerts {
		name := alert[1]
		if !regexp.MustCompile(`alertname: ` + name + `\n\s+exp_alerts:\n`).MatchString(cases) {
			t.Errorf("no case has %s fire", name)
		}
		if !strings.Contains(cases, "alertname: "+name+", exp_alerts: []}") {
			t.Errorf("no case has %s not fire", name)
		}
		if !strings.Contains(docs, "| `"+name+"` |") {
			t.Errorf("%s has no entry in %s", name, docsFile)
		}
	}
}

// Prometheus can parse the dashboard's queries.
func TestDashboardQueries(t *testing.T) {
	tool := promtool(t)
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(readText(t, deploy+"/grafana/bctl.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	// promtool parses queries only as part of rules, so each becomes a recording rule.
	var rules strings.Builder
	rules.WriteString("groups: [{name: dashboard, rules: [\n")
	ids := map[int]bool{}
	for _, panel := range dashboard.Panels {
		if ids[panel.ID] {
			t.Errorf("panel %q has the ID of another", panel.Title)
		}
		ids[panel.ID] = true
		for i, target := range panel.Targets {
			query, _ := json.Marshal(target.Expr)
			fmt.Fprintf(&rules, "{record: panel:p%d_%d, expr: %s},\n", panel.ID, i, query)
		}
	}
	rules.WriteString("]}]\n")
	file := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if output, err := exec.CommandContext(t.Context(), tool, "check", "rules", "--lint=none", file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
}

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

package debian

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const rules = "deploy/prometheus/alerts.yaml"

var alertName = regexp.MustCompile(`(?m)^ +- alert: (\w+)$`)

// alerts returns the names of all alerts.
func alerts(t *testing.T) (names []string) {
	t.Helper()
	for _, found := range alertName.FindAllStringSubmatch(read(t, rules), -1) {
		names = append(names, found[1])
	}
	if len(names) == 0 {
		t.Fatalf("%s has no alerts", rules)
	}
	return names
}

func countAlerts(t *testing.T) string { return strconv.Itoa(len(alerts(t))) }

// The link of each alert leads to an entry with its meaning and the remedy.
func TestEachAlertHasItsEntry(t *testing.T) {
	var entries []string
	for _, found := range regexp.MustCompile(`(?m)^### (Bctl\w+)\n\n\*\*It means\*\* .+\n(?:.+\n)*\n\*\*Do\*\* `).FindAllStringSubmatch(read(t, page), -1) {
		entries = append(entries, found[1])
	}
	names := alerts(t)
	for _, name := range names {
		if !slices.Contains(entries, name) {
			t.Errorf("%s has no entry for %s that says what it means and what to do", page, name)
		}
		link := "runbook_url: https://github.com/bctl/bctl/blob/main/" + page + "#" + strings.ToLower(name)
		if rest := read(t, rules); !regexp.MustCompile(`(?m)- alert: ` + name + `\n(?: {8}.*\n)*? +` + regexp.QuoteMeta(link) + `$`).MatchString(rest) {
			t.Errorf("%s does not link to its entry: %s", name, link)
		}
	}
	for _, name := range regexp.MustCompile(`(?m)^### (Bctl\w+)$`).FindAllStringSubmatch(read(t, page), -1) {
		if !slices.Contains(names, name[1]) {
			t.Errorf("%s has an entry for %s, which is no alert", page, name[1])
		}
	}
}

// The servers that the page downloads are those that all other tests run with.
func TestPageDownloadsWhatIsTested(t *testing.T) {
	for server, module := range map[string]string{"nats-server": "github.com/nats-io/nats-server/v2", "versitygw": "github.com/versity/versitygw"} {
		version := regexp.MustCompile(regexp.QuoteMeta(module) + ` (v\S+)`).FindStringSubmatch(read(t, "e2e/servers/"+server+"/go.mod"))
		if version == nil {
			t.Fatalf("no version of %s", server)
		}
		if !strings.Contains(read(t, page), server+"/releases/download/"+version[1]+"/") {
			t.Errorf("%s does not download %s %s", page, server, version[1])
		}
	}
}

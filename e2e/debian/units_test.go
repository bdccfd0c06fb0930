package debian

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/bctl/bctl/e2e/dockertest"
)

// mostExposed is how exposed systemd-analyze may call a unit, of 10. It says 1.1 of the committer
// and the servers, and 1.6 of walkers and readers, which read the files of all users. Restorers,
// of which it says 2.2, also give files their owners, set-id bits and device numbers.
const (
	mostExposed         = 2.0
	mostExposedRestorer = 2.2
)

var (
	level    = regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`)
	noBinary = regexp.MustCompile(`(?m)^\S+: Command \S+ is not executable: No such file or directory\n?`)
)

// Every unit is understood by systemd, line by line, and leaves a service little of the machine.
func TestUnitsAreValidAndSandboxed(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		dockertest.Missing(t, "no systemd-analyze")
	}
	for _, pattern := range []string{"*.service", "servers/*.service"} { // the timer is TestIndexIsDumped's
		units, err := filepath.Glob(filepath.Join(dockertest.Root(t), "deploy/systemd", pattern))
		if err != nil || len(units) < 2 {
			t.Fatalf("%d units fit %s (%v)", len(units), pattern, err)
		}
		for _, unit := range units {
			// An instance of a template is what is looked at.
			name := strings.Replace(filepath.Base(unit), "@.", "@site.", 1)
			copied := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(copied, []byte(contents(t, unit)), 0o644); err != nil {
				t.Fatal(err)
			}
			text, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", copied).CombinedOutput()
			if rest := strings.TrimSpace(noBinary.ReplaceAllString(string(text), "")); rest != "" {
				t.Errorf("systemd-analyze verify %s: %v:\n%s", name, err, rest)
			}
			security := output(t, analyze, "security", "--offline=true", "--no-pager", copied)
			found := level.FindStringSubmatch(security)
			if found == nil {
				t.Fatalf("no level for %s:\n%s", name, security)
			}
			most := mostExposed
			if name == "bctl-restorer.service" {
				most = mostExposedRestorer
			}
			if exposed, err := strconv.ParseFloat(found[1], 64); err != nil || exposed > most {
				t.Errorf("%s is exposed to %s (%v):\n%s", name, found[1], err, security)
			} else {
				t.Logf("%s: %s", name, found[1])
			}
		}
	}
}

// A service that is told to stop has time for what it may take, and is not taken for lost
// meanwhile.
func TestUnitsGiveTimeToStop(t *testing.T) {
	const most = 60 // seconds that worker.stop_timeout is to stay below: docs/configuration.md
	for _, name := range []string{"bctl-walker@.service", "bctl-reader@.service", "bctl-committer.service", "bctl-pruner.service", "bctl-scrubber.service", "bctl-restorer.service", "bctl-mirror.service"} {
		unit := read(t, "deploy/systemd/"+name)
		found := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+)s$`).FindStringSubmatch(unit)
		if found == nil {
			t.Fatalf("%s has no TimeoutStopSec", name)
		}
		if seconds, err := strconv.Atoi(found[1]); err != nil || seconds <= most {
			t.Errorf("%s has %s s to stop (%v)", name, found[1], err)
		}
	}
}

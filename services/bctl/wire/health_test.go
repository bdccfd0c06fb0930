package wire

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/store"
)

// A service is alive from the start on, and while its dependencies are away;
// it is ready while they answer.
func TestHealthMeansIt(t *testing.T) {
	f := newFleet(t)
	repository := f.settings["BCTL_REPO"]
	moved := filepath.Join(filepath.Dir(repository), "away")
	move(t, filepath.Join(repository, "store"), moved)
	f.startAll(nil)

	// Before the store is there the reader waits for it, and says so.
	f.until("the reader says what it waits for", func() bool {
		status, body := f.get("reader", "/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "store: not connected yet")
	})
	f.wants("reader", "/healthz", http.StatusOK)
	move(t, moved, filepath.Join(repository, "store"))
	for _, service := range []string{"walker", "reader", "committer"} {
		f.until(service+" is ready", func() bool { status, _ := f.get(service, "/readyz"); return status == http.StatusOK })
		f.wants(service, "/healthz", http.StatusOK)
		f.wants(service, "/debug/pprof/", http.StatusNotFound)
	}

	f.nats.Kill()
	for _, service := range []string{"walker", "reader", "committer"} {
		f.until(service+" misses NATS", func() bool {
			status, body := f.get(service, "/readyz")
			return status == http.StatusServiceUnavailable && strings.Contains(body, "nats: ") && !strings.Contains(body, "index: ")
		})
		f.wants(service, "/healthz", http.StatusOK)
	}
	f.nats.Restart()
	f.until("the walker is ready again", func() bool { status, _ := f.get("walker", "/readyz"); return status == http.StatusOK })

	configuration := filepath.Join(repository, "store", store.ConfigName)
	move(t, configuration, moved)
	f.until("the committer misses the store", func() bool {
		status, body := f.get("committer", "/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "store: ") && !strings.Contains(body, "nats: ")
	})
	move(t, moved, configuration)
}

func (f *fleet) wants(service, path string, want int) {
	f.Helper()
	if status, body := f.get(service, path); status != want {
		f.Errorf("%s %s: %d, want %d: %s", service, path, status, want, body)
	}
}

func move(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func TestProfilesWhereTheyAreWanted(t *testing.T) {
	f := newFleet(t)
	f.start("walker", RunWalker, map[string]string{"BCTL_HTTP_PPROF": "true"})
	f.until("profiles are served", func() bool { status, _ := f.get("walker", "/debug/pprof/"); return status == http.StatusOK })
}

// Without http.listen nothing listens and nothing is measured, and a backup works as well.
func TestNothingIsWatchedByDefault(t *testing.T) {
	f := newFleet(t)
	f.startAll(map[string]string{"BCTL_HTTP_LISTEN": ""})
	f.backUp()
	if strings.Contains(f.log.String(), "metrics and health are served") {
		t.Error("something listens")
	}
}

func TestAddressThatIsTaken(t *testing.T) {
	f := newFleet(t)
	f.start("walker", RunWalker, nil)
	f.until("the walker listens", func() bool { status, _ := f.get("walker", "/healthz"); return status == http.StatusOK })
	c := f.config(map[string]string{"BCTL_HTTP_LISTEN": strings.TrimPrefix(f.urls["walker"], "http://")})
	if err := RunWalker(t.Context(), c, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "http.listen: ") {
		t.Errorf("a second walker at the address: %v", err)
	}
}

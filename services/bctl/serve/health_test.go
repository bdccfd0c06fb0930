package serve

import (
	"database/sql"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/migrations"
)

// A service is alive from its start, even while its dependencies are unavailable. It is ready only
// while they respond.
func TestHealthMeansIt(t *testing.T) {
	f := newFleet(t)
	repository := f.settings["BCTL_REPO"]
	moved := filepath.Join(filepath.Dir(repository), "away")
	move(t, filepath.Join(repository, "store"), moved)
	f.startAll(nil)

	// Before the store exists, the reader waits for it alone, and says why.
	f.until("the reader says what it waits for", func() bool {
		status, body := f.get("reader", "/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "store: ") && strings.Contains(body, repository) &&
			!strings.Contains(body, "index: ") && !strings.Contains(body, "nats: ")
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
	f.start("walker", Walker, map[string]string{"BCTL_HTTP_PPROF": "true"})
	f.until("profiles are served", func() bool { status, _ := f.get("walker", "/debug/pprof/"); return status == http.StatusOK })
}

// Without http.listen there is no listener and there are no metrics, and backups still work.
func TestNothingIsWatchedByDefault(t *testing.T) {
	f := newFleet(t)
	f.startAll(map[string]string{"BCTL_HTTP_LISTEN": ""})
	f.backUp()
	if strings.Contains(f.log.String(), "HTTP server for metrics and health started") {
		t.Error("something listens")
	}
}

func TestAddressThatIsTaken(t *testing.T) {
	f := newFleet(t)
	f.start("walker", Walker, nil)
	f.until("the walker listens", func() bool { status, _ := f.get("walker", "/healthz"); return status == http.StatusOK })
	c := f.config(map[string]string{"BCTL_HTTP_LISTEN": strings.TrimPrefix(f.urls["walker"], "http://")})
	if err := Walker(t.Context(), c, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "http.listen: ") {
		t.Errorf("a second walker at the address: %v", err)
	}
}

// A service whose index is migrated to an unsupported version while it runs becomes not ready, and
// reports the reason.
func TestReadyWithANewerIndex(t *testing.T) {
	f := newFleet(t)
	f.start("walker", Walker, nil)
	ready := func(want int, says string) func() bool {
		return func() bool {
			status, body := f.get("walker", "/readyz")
			return status == want && strings.Contains(body, says)
		}
	}
	f.until("the walker is ready", ready(http.StatusOK, "ok"))
	db := value(sql.Open("sqlite", "file:"+filepath.Join(f.settings["BCTL_REPO"], "index.db")+"?_busy_timeout=5000"))(t)
	defer db.Close()
	for _, text := range []string{
		"INSERT INTO goose_db_version (version_id, is_applied) VALUES (1000, true)",
		"INSERT INTO schema_versions (version, oldest) VALUES (1000, 1000)",
	} {
		value(db.ExecContext(t.Context(), text))(t)
	}
	f.until("the walker says that the index is too new", ready(http.StatusServiceUnavailable, "index: schema version: the index has version 1000, which needs binaries of version 1000"))
	f.wants("walker", "/healthz", http.StatusOK)
	value(db.ExecContext(t.Context(), "UPDATE schema_versions SET oldest = $1 WHERE version = 1000", value(migrations.Version(migrations.SQLite))(t)))(t)
	f.until("the walker is ready again", ready(http.StatusOK, "ok"))
}

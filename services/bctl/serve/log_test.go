package serve

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/telemetry"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/services/bctl/open"
)

// A logLine is one line of a JSON log.
type logLine map[string]any

// logged returns the lines so far. Each is an object, and no value is an array of bytes.
func (f *fleet) logged() (all []logLine) {
	f.Helper()
	for line := range strings.Lines(f.log.String()) {
		var l logLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			f.Fatalf("%v: %q", err, line)
		}
		for key, v := range l {
			if _, array := v.([]any); array {
				f.Errorf("%s is an array: %s", key, line)
			}
		}
		all = append(all, l)
	}
	return all
}

// wantNamed fails unless each line so far has each of its keys once, and names the service and its
// process.
func (f *fleet) wantNamed() {
	f.Helper()
	for line := range strings.Lines(f.log.String()) {
		keys := f.keysOf(line)
		for key, n := range keys {
			if n > 1 {
				f.Errorf("%s is there %d times: %s", key, n, line)
			}
		}
		if keys["service"] == 0 || keys["worker"] == 0 {
			f.Errorf("service or worker is missing: %s", line)
		}
	}
}

// keysOf returns how often each key is in a line, which json.Unmarshal does not tell.
func (f *fleet) keysOf(line string) map[string]int {
	f.Helper()
	from, keys := json.NewDecoder(strings.NewReader(line)), map[string]int{}
	for value(from.Token())(f); from.More(); { // after the brace
		key, _ := value(from.Token())(f).(string)
		keys[key]++
		var ignored json.RawMessage
		if err := from.Decode(&ignored); err != nil {
			f.Fatalf("%v: %q", err, line)
		}
	}
	return keys
}

// The log of a fleet that starts for the first time, makes a snapshot and is stopped has no
// warning, and two lines at level info about the snapshot.
func TestOrdinaryLog(t *testing.T) {
	f := newFleet(t)
	var stops []func()
	for service, run := range map[string]Runner{"walker": Walker, "reader": Reader, "committer": Committer} {
		stops = append(stops, f.start(service, run, nil))
	}
	f.until("the committer has made the streams", func() bool { return strings.Contains(f.log.String(), `"msg":"consumer created"`) })
	made := f.backUp()
	f.wantEvent("snapshot committed", made.ID, nil)
	for _, service := range []string{"walker", "reader"} { // so that each has been ready, and is not when it stops
		f.until("the "+service+" is ready", func() bool { status, _ := f.get(service, "/readyz"); return status == http.StatusOK })
	}
	for _, stop := range stops {
		stop()
	}
	var about []string
	for _, l := range f.logged() {
		if l["level"] != "INFO" && l["level"] != "DEBUG" {
			t.Errorf("a warning: %v", l)
		}
		if l["level"] == "INFO" && l["snapshot"] != nil {
			about = append(about, fmt.Sprint(l["msg"]))
		}
	}
	if !slices.Equal(about, []string{"snapshot begun", "snapshot committed"}) {
		t.Errorf("lines about the snapshot: %q", about)
	}
}

// Each line of a service has each key once, and names service and process. newFleetWith checks that
// in each test here, and TestDocumentationListsTheEvents the former for all events.
func TestLinesAreNamed(t *testing.T) {
	f := newFleet(t)
	f.startAll(nil)
	f.backUp()
	log := Named(value(telemetry.NewLogger(f.log, false, "debug", "json"))(t), "reader", f.config(map[string]string{"BCTL_WORKER_NAME": "reader-1"}))
	log.Info("stopping")
	lines := f.logged()
	last := lines[len(lines)-1]
	f.wantNamed()
	for key, want := range map[string]string{"service": "reader", "worker": "reader-1"} {
		if last[key] != want {
			t.Errorf("%s is %v, want %s", key, last[key], want)
		}
	}
}

// events returns the lines with the given message about a snapshot.
func (f *fleet) events(message string, of backup.SnapshotID) (found []logLine) {
	f.Helper()
	for _, l := range f.logged() {
		if l["msg"] == message && l["snapshot"] == of.Short() {
			found = append(found, l)
		}
	}
	return found
}

// wantEvent fails unless an event was logged once, with these values.
func (f *fleet) wantEvent(message string, of backup.SnapshotID, want logLine) {
	f.Helper()
	f.until(message+" is logged", func() bool { return len(f.events(message, of)) > 0 })
	found := f.events(message, of)
	if len(found) != 1 {
		f.Errorf("%s: %d times", message, len(found))
	}
	for key, v := range want {
		if got := found[0][key]; fmt.Sprint(got) != fmt.Sprint(v) {
			f.Errorf("%s: %s is %v, want %v", message, key, got, v)
		}
	}
}

// ends waits until a snapshot is in the given state.
func (f *fleet) ends(state backup.State, id backup.SnapshotID) backup.Snapshot {
	f.Helper()
	f.until("the snapshot is "+string(state), func() bool { return value(f.idx.Snapshot(f.Context(), id))(f).State == state })
	return value(f.idx.Snapshot(f.Context(), id))(f)
}

// The start and the end of each snapshot are logged once for every cause, although there are two
// committers.
func TestSnapshotsAreInTheLog(t *testing.T) {
	f := newFleet(t)
	f.start("committer", Committer, nil)
	f.start("committer", Committer, map[string]string{"BCTL_WORKER_NAME": "committer-2"})

	cancelled := value(f.idx.BeginSnapshot(t.Context(), f.shard.ID, backup.Snapshot{}, time.Now()))(t)
	names := logLine{"filer": "nas1", "shard": "home", "level": "INFO"}
	f.wantEvent("snapshot begun", cancelled.ID, names)
	if err := f.idx.RequestCancel(t.Context(), cancelled.ID, "cancelled by me"); err != nil {
		t.Fatal(err)
	}
	f.ends(backup.Failed, cancelled.ID)
	f.wantEvent("snapshot cancelled", cancelled.ID, logLine{"filer": "nas1", "shard": "home", "number": 1, "level": "INFO", "reason": "cancelled by me"})

	f.start("walker", Walker, nil)
	f.start("reader", Reader, nil)
	made := f.backUp()
	f.wantEvent("snapshot begun", made.ID, logLine{"filer": "nas1", "shard": "home", "number": 2, "level": "INFO"})
	f.wantEvent("snapshot committed", made.ID, logLine{
		"filer": "nas1", "shard": "home", "number": 2, "level": "INFO", "files": 3, "new_bytes": made.Counts.NewBytes, "seconds": made.Ended.Sub(made.Started).Seconds(),
	})
	for _, l := range f.logged() {
		if l["level"] == "ERROR" {
			t.Errorf("nothing has failed: %v", l)
		}
	}

	gone := value(f.idx.AddShard(t.Context(), backup.Shard{Filer: f.shard.Filer, Name: "gone", Source: posix.URL("/no/such/directory")}))(t)
	failed := value(f.idx.BeginSnapshot(t.Context(), gone.ID, backup.Snapshot{}, time.Now()))(t)
	failed = f.ends(backup.Failed, failed.ID)
	f.wantEvent("snapshot failed", failed.ID, logLine{"filer": "nas1", "shard": "gone", "number": 1, "level": "ERROR", "reason": failed.Reason})
}

// While Postgres is unavailable, a fleet fails hundreds of times, but logs only a few lines.
func TestPostgresAwayIsLoggedRarely(t *testing.T) {
	postgres := testenv.PostgresServer(t)
	f := newFleetWith(t, map[string]string{"BCTL_INDEX": postgres.DSN(), "BCTL_INDEX_MAX_CONNECTIONS": "8"})
	f.startAll(nil)
	f.backUp()
	before := len(f.logged())
	retries := func() (n float64) {
		_, body := f.get("committer", "/metrics")
		for line := range strings.Lines(body) {
			if strings.HasPrefix(line, "bctl_retries_total{") {
				var v float64
				_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' '):], &v)
				n += v
			}
		}
		return n
	}
	had := retries()
	postgres.Kill()
	f.until("much has failed", func() bool { return retries() > had+100 })
	var said []string
	for _, l := range f.logged()[before:] {
		if l["level"] == "WARN" || l["level"] == "ERROR" {
			said = append(said, fmt.Sprint(l["service"], ": ", l["msg"], ": ", l["error"]))
		}
	}
	if len(said) > 12 || !slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, "index at ") }) {
		t.Errorf("%d lines:\n%s", len(said), strings.Join(said, "\n"))
	}
	postgres.Restart()
	f.backUp()
}

// A Postgres that hangs is one outage in the log of each service, although no request fails.
func TestPostgresThatHangsIsLogged(t *testing.T) {
	postgres := testenv.PostgresServer(t)
	f := newFleetWith(t, map[string]string{"BCTL_INDEX": postgres.DSN(), "BCTL_INDEX_MAX_CONNECTIONS": "8"})
	f.startAll(nil)
	f.start("pruner", Pruner, map[string]string{"BCTL_NATS": ""}) // it works without, and reports this, too
	services := []string{"walker", "reader", "committer", "pruner"}
	for _, service := range services {
		f.until("the "+service+" is ready", func() bool { status, _ := f.get(service, "/readyz"); return status == http.StatusOK })
	}
	before := len(f.logged())
	postgres.Pause()
	defer postgres.Resume()
	warned := func() map[string][]string {
		said := map[string][]string{}
		for _, l := range f.logged()[before:] {
			if l["level"] == "WARN" || l["level"] == "ERROR" {
				service := fmt.Sprint(l["service"])
				said[service] = append(said[service], fmt.Sprint(l["msg"], ": ", l["error"]))
			}
		}
		return said
	}
	f.until("each service has logged it", func() bool { return len(warned()) == len(services) })
	f.until("each service has asked again", func() bool { _, body := f.get("pruner", "/readyz"); return strings.Contains(body, "index: no answer") })
	for service, said := range warned() {
		if len(said) != 1 || !strings.Contains(said[0], "index: no answer within 3s: unavailable") {
			t.Errorf("%s has logged %d lines, want one about the index:\n%s", service, len(said), strings.Join(said, "\n"))
		}
	}
	postgres.Resume()
	for _, service := range services {
		f.until("the "+service+" is ready again", func() bool { status, _ := f.get(service, "/readyz"); return status == http.StatusOK })
	}
}

// The log distinguishes a store that is full, or refuses requests, from one that does not respond.
func TestWhatIsWrongWithTheStoreIsLogged(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		want   string
	}{
		{http.StatusInsufficientStorage, "XMinioStorageFull", "the store is full, will retry"},
		{http.StatusInsufficientStorage, "", "the store is full, will retry"},
		{http.StatusBadRequest, "ExpiredToken", "the store refuses these credentials, will retry"},
		{http.StatusServiceUnavailable, "SlowDown", "store request failed, will retry"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPut {
				w.WriteHeader(http.StatusNotFound)
				return
			}
			w.WriteHeader(c.status)
			if c.code != "" {
				fmt.Fprintf(w, "<Error><Code>%s</Code><Message>no</Message></Error>", c.code)
			}
		}))
		f := &fleet{T: t, log: &testenv.Buffer{}, settings: map[string]string{
			"BCTL_STORE": "s3://bucket", "BCTL_STORE_ENDPOINT": server.URL, "BCTL_STORE_REGION": "us-east-1", "BCTL_STORE_ACCESS_KEY": "a", "BCTL_STORE_SECRET_KEY": "secret",
			"BCTL_STORE_ADDRESSING": "path", "BCTL_STORE_RETRY": "1s",
		}}
		log := value(telemetry.NewLogger(f.log, false, "info", "json"))(t)
		s := value(open.Store(t.Context(), f.config(nil), false, log))(t)
		if err := s.Put(t.Context(), "packs/a/b", []byte("x")); err == nil {
			t.Errorf("%d %s: it was put", c.status, c.code)
		}
		all := f.logged()
		if len(all) != 1 || all[0]["msg"] != c.want || all[0]["level"] != slog.LevelWarn.String() {
			t.Errorf("%d %s: %v", c.status, c.code, all)
		}
		_ = s.Close()
		server.Close()
	}
}

// All services log their own identity, and use the same ids for snapshots, tasks and batches.
func TestLogsHaveTheSameIDs(t *testing.T) {
	f := newFleet(t)
	f.startAll(map[string]string{"BCTL_HTTP_LISTEN": ""})
	snap := f.backUp()
	f.until("the commit is logged", func() bool { return strings.Contains(f.log.String(), `"msg":"snapshot committed"`) })
	services, told := map[string]bool{}, false
	for line := range strings.Lines(f.log.String()) {
		var l struct{ Service, Worker, Msg, Snapshot string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		if l.Worker != l.Service+"-1" {
			t.Errorf("a line does not say of whom it is: %s", line)
		}
		if strings.Count(line, `"worker":`) > 1 {
			t.Errorf("a line says twice of whom it is: %s", line)
		}
		services[l.Service] = true
		told = told || l.Msg == "snapshot committed" && l.Snapshot == snap.ID.Short()
	}
	if len(services) != 3 || !told {
		t.Errorf("%v have logged; the commit is told: %v", services, told)
	}
}

package serve

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/telemetry"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/services/bctl/open"
)

// within is how long a test waits for an event that must occur.
const within = 2 * time.Minute

// A fleet consists of the three services as their programs run them, with a NATS server of its own
// and a repository on this machine.
type fleet struct {
	*testing.T
	settings map[string]string // of all services
	nats     *testenv.NATSServer
	idx      index.Index
	shard    backup.Shard
	log      *testenv.Buffer

	mu   sync.Mutex
	urls map[string]string // by service
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	return newFleetWith(t, nil)
}

// newFleetWith is newFleet with more settings.
func newFleetWith(t *testing.T, more map[string]string) *fleet {
	t.Helper()
	f := &fleet{T: t, nats: testenv.NATS(t), log: &testenv.Buffer{}, urls: map[string]string{}}
	dir, tree := t.TempDir(), filepath.Join(t.TempDir(), "tree")
	t.Cleanup(f.wantNamed) // after all services have stopped
	f.settings = map[string]string{
		"BCTL_REPO": filepath.Join(dir, "repo"), "BCTL_IDENTITY": filepath.Join(dir, "identity"), "BCTL_NATS": f.nats.URL(),
		"BCTL_WORKER_STALL_AFTER": "1s", // and therefore work in progress is checked often
	}
	maps.Copy(f.settings, more)
	c := f.config(nil)
	f.idx = value(open.Index(t.Context(), c, true))(t)
	t.Cleanup(func() { _ = f.idx.Close() })
	s := value(open.Store(t.Context(), c, true, slog.New(slog.DiscardHandler)))(t)
	defer s.Close()
	value(repo.Init(t.Context(), s, f.idx, repo.Options{
		WorkerKeyPath: c.WorkerKey, CommitterKeyPath: c.CommitterKey, IdentityPath: c.Identity, Chunker: chunk.DefaultCutter, Codec: c.Codec, Now: time.Now(),
	}))(t)
	for name, text := range map[string]string{"a/one": "one", "a/two": "two", "b/c/three": strings.Repeat("three", 1000)} {
		path := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	filer := value(f.idx.AddFiler(t.Context(), backup.Filer{Name: "nas1"}))(t)
	f.shard = value(f.idx.AddShard(t.Context(), backup.Shard{Filer: filer.ID, Name: "home", Source: posix.URL(tree)}))(t)
	return f
}

func value[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (f *fleet) config(more map[string]string) *config.Config {
	f.Helper()
	return value(config.Load(config.Sources{Env: func(name string) (string, bool) {
		if v, ok := more[name]; ok {
			return v, ok
		}
		v, ok := f.settings[name]
		return v, ok
	}}))(f)
}

// start runs a service until stop is called, or the test ends.
func (f *fleet) start(service string, run Runner, more map[string]string) (stop func()) {
	f.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", value(testenv.FreePort())(f))
	env := map[string]string{"BCTL_HTTP_LISTEN": address, "BCTL_WORKER_NAME": service + "-1"}
	for name, v := range more {
		env[name] = v
	}
	c := f.config(env)
	log := value(telemetry.NewLogger(f.log, false, "debug", "json"))(f)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := run(ctx, c, log); err != nil && ctx.Err() == nil {
			f.Errorf("%s: %v", service, err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	f.Cleanup(stop)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.urls[service] = "http://" + address
	return stop
}

// startAll runs one of each.
func (f *fleet) startAll(more map[string]string) {
	f.Helper()
	for service, run := range map[string]Runner{"walker": Walker, "reader": Reader, "committer": Committer} {
		f.start(service, run, more)
	}
}

// get returns the status and the body of a response; 0 if there is none.
func (f *fleet) get(service, path string) (status int, body string) {
	f.Helper()
	f.mu.Lock()
	url := f.urls[service] + path
	f.mu.Unlock()
	request := value(http.NewRequestWithContext(f.Context(), http.MethodGet, url, nil))(f)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, ""
	}
	defer answer.Body.Close()
	return answer.StatusCode, string(value(io.ReadAll(answer.Body))(f))
}

// until polls done. Each call uses the loopback interface, or the index.
func (f *fleet) until(what string, done func() bool) {
	f.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(within); !done(); <-tick.C {
		if f.Failed() { // a service has ended, so the condition will not become true
			f.FailNow()
		}
		if time.Now().After(deadline) {
			f.Fatalf("after %v it is not so that %s\n%s", within, what, f.log)
		}
	}
}

// backUp makes a snapshot and waits for its end.
func (f *fleet) backUp() backup.Snapshot {
	f.Helper()
	begun := value(f.idx.BeginSnapshot(f.Context(), f.shard.ID, backup.Snapshot{}, time.Now()))(f)
	f.until("the snapshot is committed", func() bool {
		return value(f.idx.Snapshot(f.Context(), begun.ID))(f).State == backup.Committed
	})
	return value(f.idx.Snapshot(f.Context(), begun.ID))(f)
}

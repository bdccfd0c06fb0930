package serve

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/services/bctl/open"
)

// operator returns a connection like that of bctl worker.
func (f *fleet) operator() *flow.Conn {
	f.Helper()
	conn := value(open.NATS(f.config(nil), "bctl worker", value(f.idx.Repository(f.Context()))(f).ID, slog.New(slog.DiscardHandler)))(f)
	f.Cleanup(conn.Close)
	return conn
}

// instances returns all running services, by name.
func (f *fleet) instances(conn *flow.Conn) map[string]flow.Instance {
	f.Helper()
	by := map[string]flow.Instance{}
	for _, i := range value(conn.Instances(f.Context()))(f) {
		by[i.Name] = i
	}
	return by
}

// A service whose store refuses its credentials, or does not answer, when it starts announces that.
func TestServicesAnnounceWhatTheStoreRefuses(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]struct {
		status int
		code   string
	}{"refused": {http.StatusForbidden, "SignatureDoesNotMatch"}, "broken": {http.StatusServiceUnavailable, "ServiceUnavailable"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			s3 := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/xml")
				w.WriteHeader(answer.status)
				fmt.Fprintf(w, "<Error><Code>%s</Code><Message>by the test</Message></Error>", answer.code)
			}))
			t.Cleanup(s3.Close)
			operator := f.operator()
			bad := map[string]string{
				"BCTL_STORE": "s3://bucket/repo", "BCTL_STORE_ENDPOINT": s3.URL, "BCTL_STORE_ACCESS_KEY": "a", "BCTL_STORE_SECRET_KEY": "b",
			}
			f.start("reader", Reader, bad)
			f.start("committer", Committer, bad)
			f.until("both announce it", func() bool {
				all := f.instances(operator)
				for _, i := range all {
					if i.Ready || !strings.Contains(i.Reason, "waits for the store: ") || !strings.Contains(i.Reason, answer.code) {
						return false
					}
				}
				return len(all) == 2
			})
		})
	}
}

// All services announce themselves and what they lack. A service that stops is no longer announced.
func TestServicesAnnounceThemselves(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	operator := f.operator()
	stop := map[string]func(){}
	for service, run := range map[string]Runner{"walker": Walker, "reader": Reader, "committer": Committer} {
		stop[service] = f.start(service, run, nil)
	}
	began := time.Now()
	f.until("all are there, and ready, and know their clocks, and the committer leads", func() bool {
		all := f.instances(operator)
		for _, i := range all {
			if !i.Ready || !i.ClockKnown || i.Silent {
				return false
			}
		}
		return len(all) == 3 && all["committer-1"].Leads
	})
	for name, role := range map[string]flow.Role{"walker-1": flow.RoleWalker, "reader-1": flow.RoleReader, "committer-1": flow.RoleCommitter} {
		i := f.instances(operator)[name]
		site := backup.DefaultSite
		if role == flow.RoleCommitter {
			site = ""
		}
		if i.Role != role || i.Site != site || i.Version == "" || i.Started.Before(began.Add(-time.Minute)) || i.Started.After(time.Now()) || i.Draining || i.Drained ||
			i.ClockAhead.Abs() > time.Minute || i.Leads != (role == flow.RoleCommitter) {
			t.Errorf("%+v", i)
		}
	}
	// The counts come from the reports of workers.
	f.backUp()
	stop["reader"]()
	f.until("the reader has stopped", func() bool { return len(f.instances(operator)) == 2 })
	if err := f.idx.Close(); err != nil {
		t.Fatal(err)
	}
	f.nats.Stop()
	if _, err := operator.Instances(t.Context()); err == nil {
		t.Error("NATS is away, and nobody says so")
	}
}

// A service that waits for the store at its start is announced, with what it waits for.
func TestServiceThatWaitsIsThere(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	operator := f.operator()
	store := filepath.Join(f.settings["BCTL_REPO"], "store")
	if err := os.Rename(store, store+".away"); err != nil {
		t.Fatal(err)
	}
	f.start("reader", Reader, nil)
	f.until("the reader says what it waits for", func() bool {
		i := f.instances(operator)["reader-1"]
		return i.Role == flow.RoleReader && !i.Ready && strings.Contains(i.Reason, "waits for the store: ")
	})
	if err := os.Rename(store+".away", store); err != nil {
		t.Fatal(err)
	}
	f.start("committer", Committer, nil)
	f.until("it is there once, and ready", func() bool {
		all := f.instances(operator)
		return len(all) == 2 && all["reader-1"].Ready && all["committer-1"].Leads
	})
}

// A drained worker takes no work, but is announced; other workers do the work.
func TestDrainedWorkerTakesNoWork(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	operator := f.operator()
	f.startAll(nil)
	f.until("all are there", func() bool { return len(f.instances(operator)) == 3 })
	f.backUp()
	drain := func(name string, undo bool) {
		t.Helper()
		worker := f.instances(operator)[name]
		if i := value(operator.Drain(t.Context(), &worker, undo, "alice"))(t); i.Draining == undo {
			t.Fatalf("%+v", i)
		}
		f.until(name+" is drained, or not", func() bool {
			i := f.instances(operator)[name]
			return i.Drained != undo && i.Draining != undo
		})
	}
	drain("walker-1", false)
	drain("reader-1", false)
	for _, service := range []string{"walker", "reader"} {
		if status, body := f.get(service, "/healthz"); status != 200 {
			t.Errorf("a drained %s is not well: %s", service, body)
		}
		if _, metrics := f.get(service, "/metrics"); !strings.Contains(metrics, "\nbctl_worker_draining 1\n") {
			t.Errorf("the metrics of a drained %s do not have it", service)
		}
	}
	var took sync.Map
	stop := value(operator.SubscribeProgress(func(p *backup.Progress) {
		if len(p.Tasks)+len(p.Batches) > 0 { // otherwise it reports completed work
			took.Store(p.Worker, true)
		}
	}))(t)
	stopWalker := f.start("walker", Walker, map[string]string{"BCTL_WORKER_NAME": "walker-2"})
	stopReader := f.start("reader", Reader, map[string]string{"BCTL_WORKER_NAME": "reader-2"})
	if err := os.WriteFile(filepath.Join(strings.TrimPrefix(f.shard.Source, "posix://"), "new"), []byte("to be read"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.backUp()
	stopWalker()
	stopReader()
	drain("walker-1", true)
	stop()
	for name, want := range map[string]bool{"walker-1": false, "reader-1": false, "walker-2": true, "reader-2": true} {
		if _, did := took.Load(name); did != want {
			t.Errorf("%s took work: %v, want %v", name, did, want)
		}
	}
	drain("reader-1", true)
	f.backUp()
}

// While a worker is drained, its process reports that it is alive. In every order of events, no
// work runs while a drain is requested.
func TestDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDraining(slog.New(slog.DiscardHandler), nil, make(chan struct{}, 1))
		ctx, cancel := context.WithCancel(t.Context())
		var works, idles atomic.Int32
		hang := make(chan struct{})
		close(hang)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			d.run(ctx, func(ctx context.Context) { works.Add(1); <-ctx.Done(); <-hang }, func() { idles.Add(1) })
		}()
		is := func(what string, worked int32, draining, drained bool) {
			t.Helper()
			synctest.Wait()
			var i flow.Instance
			if d.describe(&i); works.Load() != worked || i.Draining != draining || i.Drained != drained {
				t.Errorf("%s: worked %d times, draining %v, drained %v", what, works.Load(), i.Draining, i.Drained)
			}
		}
		is("begun", 1, false, false)
		d.drain(true, "")
		is("undone, though nobody drains", 1, false, false)
		d.drain(false, "")
		d.drain(false, "")
		is("drained", 1, true, true)
		idles.Store(0)
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		if n := idles.Load(); n < 10 {
			t.Errorf("it showed %d times in a minute that it lives", n)
		}
		d.drain(true, "")
		is("undone", 2, false, false)
		hang = make(chan struct{})
		d.drain(false, "")
		is("something is in hand", 2, true, false)
		d.drain(true, "")
		is("undone while something is in hand", 2, false, false)
		close(hang)
		is("which has ended", 3, false, false)
		d.drain(false, "")
		is("drained again", 3, true, true)
		cancel()
		<-ended
	})
}

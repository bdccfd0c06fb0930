package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/services/bctl/open"
)

// A pruner is listed among the services, with why it is not ready. It works without NATS.
func TestPrunerAnnouncesItself(t *testing.T) {
	f := newFleet(t)
	f.start("pruner", Pruner, nil)
	repository := value(f.idx.Repository(t.Context()))(f)
	conn := value(open.NATS(f.config(nil), "operator", repository.ID, slog.New(slog.DiscardHandler)))(f)
	defer conn.Close()
	pruner := func(is func(*flow.Instance) bool) func() bool {
		return func() bool {
			all, err := conn.Instances(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(all, func(i flow.Instance) bool { return i.Role == flow.RolePruner && i.Site == "" && is(&i) })
		}
	}
	f.until("the pruner is listed, and ready", pruner(func(i *flow.Instance) bool { return i.Ready && !i.Worker() }))
	object := filepath.Join(f.settings["BCTL_REPO"], "store", store.ConfigName)
	if err := os.Rename(object, object+".away"); err != nil {
		t.Fatal(err)
	}
	f.until("it is listed with why it is not ready", pruner(func(i *flow.Instance) bool { return !i.Ready && i.Reason != "" }))
	if err := os.Rename(object+".away", object); err != nil {
		t.Fatal(err)
	}
	f.until("it is ready again", pruner(func(i *flow.Instance) bool { return i.Ready }))
}

// A pruner whose clock is wrong is not ready and makes no pass. It says that its clock is why, also
// while a store refuses its requests because of that, as a committer does that waits for such a
// store. It goes on when the clock is right.
func TestPrunerWhoseClockIsWrong(t *testing.T) {
	dsn := testenv.Postgres(t)
	f := newFleetWith(t, map[string]string{"BCTL_INDEX": dsn, "BCTL_INDEX_MAX_CONNECTIONS": "8", "BCTL_PRUNER_INTERVAL": "100ms"})
	operator := f.operator()
	s3 := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, "<Error><Code>AccessDenied</Code><Message>by the test</Message></Error>")
	}))
	defer s3.Close()
	says := regexp.MustCompile(`^clock: this machine's clock is 859[12]h\S+ ahead of that of the index, and this service does not lead: .*NTP`)
	isNotReady := func(service, name string) func() bool {
		return func() bool {
			status, body := f.get(service, "/readyz")
			i := f.instances(operator)[name]
			return status == http.StatusServiceUnavailable && says.MatchString(body) && !i.Ready && says.MatchString(i.Reason)
		}
	}
	shifted := testenv.ShiftedClock(t, dsn, -358*24*time.Hour)
	refused := map[string]string{
		"BCTL_INDEX": shifted, "BCTL_STORE": "s3://bucket/repo", "BCTL_STORE_ENDPOINT": s3.URL, "BCTL_STORE_ACCESS_KEY": "a", "BCTL_STORE_SECRET_KEY": "b",
	}
	stopPruner, stopCommitter := f.start("pruner", Pruner, refused), f.start("committer", Committer, refused)
	for _, service := range []string{"pruner", "committer"} {
		f.until("the "+service+" whose store refuses requests says that its clock is wrong", isNotReady(service, service+"-1"))
	}
	stopPruner()
	stopCommitter()

	f.start("pruner", Pruner, map[string]string{"BCTL_INDEX": shifted, "BCTL_WORKER_NAME": "pruner-2"})
	f.until("the pruner says that its clock is wrong", isNotReady("pruner", "pruner-2"))
	logged := func(message string) (n int) {
		for _, l := range f.logged() {
			if l["msg"] == message {
				n++
			}
		}
		return n
	}
	if n := logged("this service does not lead: its clock differs from the database's"); n != 3 {
		t.Errorf("logged %d times, want once by each service", n)
	}
	if logged("nothing to prune") > 0 {
		t.Error("it has made a pass")
	}
	testenv.ShiftedClock(t, dsn, 0)
	f.until("it is ready, and makes passes", func() bool {
		status, _ := f.get("pruner", "/readyz")
		return status == http.StatusOK && logged("nothing to prune") > 0 && logged("the clock of this service agrees with the database again") == 1
	})
}

// A pruner that waits for a committer in vain says whether it reaches NATS itself: without NATS, no
// committer leads. Other errors are not NATS's.
func TestPrunerNamesNATSAsTheCause(t *testing.T) {
	f := newFleet(t)
	away := value(flow.Connect(flow.Options{URL: "nats://127.0.0.1:1"}))(f) // nothing listens there
	defer away.Close()
	there := func() error { return nil }
	vain, other := fmt.Errorf("%w: by the test", prune.ErrNotRecorded), errors.New("another")
	if err := withCause(vain, away.Ready); !errors.Is(err, prune.ErrNotRecorded) || !errors.Is(err, backup.NATSAway) {
		t.Errorf("without NATS: %v", err)
	}
	if err := withCause(vain, there); !errors.Is(err, prune.ErrNotRecorded) || errors.Is(err, backup.NATSAway) {
		t.Errorf("with NATS: %v", err)
	}
	if err := withCause(other, away.Ready); err != other {
		t.Errorf("another error: %v", err)
	}
	if err := withCause(nil, away.Ready); err != nil {
		t.Errorf("without an error: %v", err)
	}
}

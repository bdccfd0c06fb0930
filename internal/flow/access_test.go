package flow

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/testenv"
)

// serverOf starts a server with JetStream for these users. Their passwords are "x".
func serverOf(t testing.TB, o *server.Options, users ...*server.User) *server.Server {
	t.Helper()
	o.JetStream, o.StoreDir, o.NoSigs, o.Users = true, t.TempDir(), true, users
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(s.Shutdown)
	if !s.ReadyForConnections(within) {
		t.Fatal("the server is not ready")
	}
	return s
}

// allowed returns a user that may do what access lists.
func allowed(name string, access Access) *server.User {
	return &server.User{Username: name, Password: "x", Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Allow: access.Publish}, Subscribe: &server.SubjectPermission{Allow: access.Subscribe},
	}}
}

// A worker whose credentials are those of another site is not ready, and neither is one whose
// credentials are wrong.
func TestWorkerThatIsRefusedIsNotReady(t *testing.T) {
	t.Parallel()
	s := serverOf(t, &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT},
		&server.User{Username: "keeper", Password: "x"}, allowed("walker", WalkerAccess("oslo", "_INBOX")))
	keeper := connect(t, listen(Options{User: "keeper", Password: "x"}, s), ackWait)
	if _, err := keeper.EnsureStreams(t.Context(), []string{"oslo", "paris"}); err != nil {
		t.Fatal(err)
	}
	for site, want := range map[string]error{"oslo": nil, "paris": ErrDenied} {
		c := connect(t, listen(Options{User: "walker", Password: "x"}, s), ackWait)
		c.opts.Memory = false // so that Close deletes no streams, which it may not
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.ConsumeWalk(ctx, site, 1, func(*backup.WalkTask, *Delivery) {})
		}()
		until(t, "the walker of "+site+" is as ready as it should be", func(ctx context.Context) bool {
			if want == nil {
				return walkConsumerAt(ctx, keeper, site).NumWaiting > 0 && c.Ready() == nil
			}
			return errors.Is(c.Ready(), want)
		})
		cancel()
		<-done
	}
	stranger := connect(t, Options{URL: s.ClientURL(), User: "walker", Password: "wrong"}, ackWait)
	until(t, "the cause is known", func(context.Context) bool {
		err := stranger.Ready()
		return errors.Is(err, backup.ErrUnavailable) && strings.Contains(err.Error(), "refuses this client")
	})
}

// Of two servers, one is away and one refuses the client: that is news once, and not at each
// attempt.
func TestRefusalIsNewsOnce(t *testing.T) {
	t.Parallel()
	var log testenv.Buffer
	o := &outage{Options: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	for range 10 {
		o.failed(errors.New("connection refused"))
		o.failed(errors.New("nats: Authorization Violation"))
	}
	if text := log.String(); strings.Count(text, "refuses this client") != 1 || strings.Count(text, "\n") != 2 {
		t.Errorf("want one line of each:\n%s", text)
	}
	o.ended()
	o.failed(errors.New("nats: Authorization Violation"))
	if text := log.String(); strings.Count(text, "refuses this client") != 2 {
		t.Errorf("the next outage has news again:\n%s", text)
	}
}

// When the server learns that the users have changed, a client that is connected says so, and names
// its settings, as a new one does; and it goes on when it is allowed again.
func TestUserThatIsRefusedLater(t *testing.T) {
	t.Parallel()
	user := &server.User{Username: "walker", Password: "x"}
	options := server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT}
	s := serverOf(t, &options, user)
	reload := func(users ...*server.User) {
		changed := options
		changed.Users = users
		if err := s.ReloadOptions(&changed); err != nil {
			t.Fatal(err)
		}
	}
	var log testenv.Buffer
	o := Options{URL: s.ClientURL(), User: user.Username, Password: user.Password, Log: slog.New(slog.NewTextHandler(&log, nil))}
	c := connect(t, o, ackWait)
	until(t, "it is connected", func(context.Context) bool { return c.Ready() == nil })
	reload(&server.User{Username: "renamed", Password: "x"})
	const want = "refuses this client (are nats.user and its password those of the server?)"
	until(t, "it says that it is refused", func(context.Context) bool {
		err := c.Ready()
		return errors.Is(err, backup.ErrUnavailable) && strings.Contains(err.Error(), want)
	})
	if text := log.String(); strings.Count(text, want) != 1 || strings.Contains(text, "NATS reports an error") {
		t.Errorf("the log should name the refusal once:\n%s", text)
	}
	reload(user)
	until(t, "it is connected again", func(context.Context) bool { return c.Ready() == nil })
	s.Shutdown()
	until(t, "it says that the server is gone", func(context.Context) bool {
		err := c.Ready()
		return err != nil && strings.Contains(err.Error(), "does not answer")
	})
}

package fleet

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/bctl/bctl/internal/testenv"
)

// A Service is a walker, reader, committer or pruner.
type Service struct {
	*testenv.Process
	Name string // in progress and logs: walker-1
	// Links to its servers, with Options.Links.
	NATS, Postgres, S3 Links

	kind string
	dead bool // killed, or told to stop, by the test
	told bool // to stop, because the test ends
	t    testing.TB
}

// Kill ends the service as kill -9 does.
func (s *Service) Kill() {
	s.dead = true
	s.Process.Kill()
}

// Restart starts it again, after killing it if it runs.
func (s *Service) Restart() {
	s.Process.Restart()
	s.dead = false
}

// Retire stops the service as a rolling restart does, and fails the test if it does not stop.
func (s *Service) Retire() {
	s.t.Helper()
	s.checkStop()
	s.dead = true
}

// UsesStore says whether it ever connects to S3.
func (s *Service) UsesStore() bool { return s.kind != "walker" }

// Heal heals all links of the service.
func (s *Service) Heal() {
	for _, links := range []Links{s.NATS, s.Postgres, s.S3} {
		links.Heal()
	}
}

// Service starts one more service of a kind, with additional environment variables. It is stopped
// when the test ends. The test fails if the service does not stop, or if it has ended by itself.
func (f *Fleet) Service(kind string, env ...string) *Service {
	f.t.Helper()
	f.started++
	s := &Service{kind: kind, Name: fmt.Sprintf("%s-%d", kind, f.started), t: f.t}
	settings := []string{"HOME=" + f.Home, "GORACE=halt_on_error=1 atexit_sleep_ms=0", "BCTL_WORKER_NAME=" + s.Name}
	if f.options.Links {
		settings = append(settings, f.linked(s)...)
	}
	config := f.Config
	if f.Locked != nil {
		config = f.Settings(f.identity(kind))
		settings = append(settings, f.tuned()...)
	}
	s.Process = testenv.Start(f.t, testenv.Command{
		Name: kind, Path: f.program(), Args: []string{kind, "--config", config}, Env: append(settings, env...),
	})
	f.all = append(f.all, s)
	f.t.Cleanup(func() {
		f.stopAll()
		s.checkStop()
	})
	return s
}

// stopAll tells all services to stop, so that none waits for another.
func (f *Fleet) stopAll() {
	for _, s := range f.all {
		if !s.dead && !s.told && s.Running() {
			s.told = true
			s.Signal(syscall.SIGTERM)
		}
	}
}

// linked makes a service's links, and returns the settings by which it uses them.
func (f *Fleet) linked(s *Service) []string {
	f.t.Helper()
	var nats []string
	for _, address := range strings.Split(f.NATSURL(), ",") {
		l, over := f.link(address)
		s.NATS, nats = append(s.NATS, l), append(nats, over)
	}
	index, dsn := f.link(f.dsn)
	store, endpoint := f.link(f.endpoint)
	s.Postgres, s.S3 = Links{index}, Links{store}
	return []string{"BCTL_NATS=" + strings.Join(nats, ","), "BCTL_INDEX=" + dsn, "BCTL_STORE_ENDPOINT=" + endpoint}
}

func (s *Service) checkStop() {
	s.t.Helper()
	if s.dead {
		return
	}
	if !s.told {
		if !s.Running() {
			s.t.Errorf("%s has ended by itself: %v", s.Name, s.Wait())
			return
		}
		s.Stop()
	} else if await(func() bool { return !s.Running() }) != nil {
		s.t.Errorf("%s does not stop", s.Name)
		return
	}
	if err := s.Wait(); err != nil {
		s.t.Errorf("%s, told to stop: %v", s.Name, err)
	}
}

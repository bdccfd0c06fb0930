package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"os"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/internal/process/health"
	"github.com/bctl/bctl/internal/telemetry"
)

// The dependencies of a service, as /readyz names them.
const (
	needNATS  = string(backup.NATSAway)
	needIndex = string(backup.IndexAway)
	needStore = string(backup.StoreAway)
	needClock = "clock" // one that agrees with that of the index
)

const (
	// consumersWithin is how long message consumers may be inactive. They poll every few seconds.
	consumersWithin = 2 * time.Minute
	// reportsWithin is the same limit for reports, which are sent every second and do not block.
	reportsWithin = time.Minute
	// headerTimeout is how long a client may take to send its request headers.
	headerTimeout = 5 * time.Second
	// closeServer is how long responses in progress may take after the service has ended.
	closeServer = time.Second
)

// monitoring makes a service observable. It has its log, its health and, if the settings enable
// them, metrics with a listener, and traces. Otherwise metrics and trace are nil.
type monitoring struct {
	log       *slog.Logger
	metrics   *telemetry.Metrics
	health    *health.Process
	consumers *health.Beat // of message consumers, after the service has connected
	trace     *telemetry.Tracer
	server    *http.Server
	served    chan struct{} // closed when the server has ended
	unhook    func() bool
	dog       *watchdog
	started   time.Time
}

// Named returns a log whose lines name the service and its process. Each line of a service has
// these two keys once, so no event may have keys of these names.
func Named(log *slog.Logger, service string, c *config.Config) *slog.Logger {
	return log.With("service", service, "worker", workerName(c))
}

// monitor starts the monitoring of a service before its dependencies are available. close ends it.
func monitor(ctx context.Context, c *config.Config, service string, log *slog.Logger, needs ...string) (*monitoring, error) {
	worker := workerName(c)
	m := &monitoring{log: Named(log, service, c), health: health.New(needs...), started: time.Now()}
	telemetry.CheckOutages(m.log, m.health.Usable)
	var err error
	if m.trace, err = telemetry.NewTracer(ctx, telemetry.TraceOptions{
		URL: c.Trace.URL, CAFile: c.Trace.CAFile, CertFile: c.Trace.CertFile, KeyFile: c.Trace.KeyFile, Percent: c.Trace.Percent, Service: service, Worker: worker, Version: process.Version(), Log: m.log,
	}); err != nil {
		return nil, err
	}
	if c.HTTP.Listen == "" {
		m.dog = startWatchdog(ctx, os.Getenv, m.health.Alive, m.log)
		return m, nil
	}
	listener, err := listen(ctx, &c.HTTP)
	if err != nil {
		return nil, errors.Join(err, m.trace.Close())
	}
	m.metrics = telemetry.NewMetrics(service, process.Version())
	m.metrics.Certificates(map[string]string{"nats": c.NATS.CertFile, "index": c.Index.CertFile, "store": c.Store.CertFile, "http": c.HTTP.CertFile})
	m.unhook = context.AfterFunc(ctx, m.health.Stopping)
	m.dog = startWatchdog(ctx, os.Getenv, m.health.Alive, m.log)
	m.server = &http.Server{Handler: m.routes(&c.HTTP), ReadHeaderTimeout: headerTimeout, ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelDebug)}
	m.served = make(chan struct{})
	go func() { // ends with close
		defer close(m.served)
		if err := m.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			m.log.Error("HTTP server for metrics and health failed", "error", err)
		}
	}()
	m.log.Info("HTTP server for metrics and health started", "address", listener.Addr().String(), "tls", c.HTTP.CertFile != "", "pprof", c.HTTP.Pprof)
	return m, nil
}

func (m *monitoring) routes(c *config.HTTP) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.metrics.Handler())
	if c.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	open := http.NewServeMux()
	m.health.Handle(open)
	open.Handle("/", onlyClients(c, mux))
	return open
}

// close stops the listener and sends the remaining spans.
func (m *monitoring) close() {
	m.dog.stop()
	if err := m.trace.Close(); err != nil {
		m.log.Warn("sending the last trace spans failed", "error", err)
	}
	if m.server == nil {
		return
	}
	m.unhook()
	ctx, cancel := context.WithTimeout(context.Background(), closeServer)
	defer cancel()
	if err := m.server.Shutdown(ctx); err != nil {
		_ = m.server.Close() // a slow scrape or profile is interrupted
	}
	<-m.served
}

// dependOn makes /readyz check the service's dependencies; nil arguments are not dependencies of
// it.
func (m *monitoring) dependOn(conn *flow.Conn, idx index.Index, s *guard) {
	if conn != nil {
		m.health.Depends(needNATS, conn.Answers)
	}
	if idx != nil {
		m.health.Depends(needIndex, func(ctx context.Context) error { return indexAnswers(ctx, idx) })
	}
	if s != nil {
		m.health.Depends(needStore, s.ready)
	}
}

// A writable index reports whether it can be written.
type writable interface {
	Writable(ctx context.Context) error
}

// dependOnAll is dependOn for a service that writes to the index, and needs it to be as new as its
// store; conn may be nil.
func (s *starting) dependOnAll(conn *flow.Conn) {
	s.dependOn(nil, nil, s.store)
	if conn != nil {
		s.health.Depends(needNATS, conn.Stores)
	}
	s.health.Depends(needIndex, func(ctx context.Context) error {
		err := indexAnswers(ctx, s.idx)
		if w, ok := s.idx.(writable); ok && err == nil {
			err = w.Writable(ctx)
		}
		if err != nil {
			return err
		}
		return s.current.Old()
	})
}

// indexAnswers returns nil if the index answers and this binary supports it. An index that does not
// answer in time is away, like one that refuses connections.
func indexAnswers(ctx context.Context, idx index.Index) error {
	err := idx.CheckSchema(ctx) // it may have been migrated since
	if err == nil {
		_, err = idx.Repository(ctx)
	}
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, backup.IndexAway) {
		return fmt.Errorf("%w: %w", backup.IndexAway, err)
	}
	return err
}

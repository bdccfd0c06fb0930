package telemetry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/bctl/bctl/internal/backup"
)

// TraceOptions configure the export of traces.
type TraceOptions struct {
	URL               string // of an OTLP collector that supports HTTP; "": there are no traces
	CAFile            string // PEM; "": the system's authorities
	CertFile, KeyFile string // of the client, PEM; "": none
	Percent           int    // of the snapshots that are traced
	Service           string
	Worker            string
	Version           string
	Log               *slog.Logger
}

// A Tracer makes spans. A nil Tracer makes none, at no cost.
//
// A snapshot is one trace: its trace ID is the snapshot's ID, so that all committers add the work
// that they assign to the same trace without shared state. From there, message headers carry the
// context.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	sampler  sdktrace.Sampler
}

const tracerName = "github.com/bctl/bctl"

// NewTracer returns a tracer, or nil if there is no URL. It does not wait for the collector.
func NewTracer(ctx context.Context, o TraceOptions) (*Tracer, error) {
	if o.URL == "" {
		return nil, nil //nolint:nilnil // a nil tracer is one that traces nothing
	}
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return nil, fmt.Errorf("trace.url is not http://host:port or https://host:port (without a user: set OTEL_EXPORTER_OTLP_HEADERS): %w", backup.ErrInvalid)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	options := []otlptracehttp.Option{otlptracehttp.WithEndpointURL(u.String())}
	if o.CAFile != "" || o.CertFile != "" {
		config, err := o.clientTLS()
		if err != nil {
			return nil, err
		}
		options = append(options, otlptracehttp.WithTLSClientConfig(config))
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("trace.url: %w", err)
	}
	tellErrors(o.Log)
	ratio := sdktrace.TraceIDRatioBased(float64(min(o.Percent, 100)) / 100)
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithSampler(sdktrace.ParentBased(ratio)),
		sdktrace.WithIDGenerator(snapshotIDs{}),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "bctl-"+o.Service), attribute.String("service.version", o.Version), attribute.String("service.instance.id", o.Worker),
		)),
	)
	return &Tracer{provider: provider, tracer: provider.Tracer(tracerName), sampler: ratio}, nil
}

// clientTLS reads the client certificate again for each connection, because it may have been
// rotated.
func (o *TraceOptions) clientTLS() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pool, err := authorities(o.CAFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = pool
	}
	if o.CertFile != "" {
		load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
			return &pair, err
		}
		if _, err := load(nil); err != nil {
			return nil, fmt.Errorf("trace.cert_file: %w", err)
		}
		config.GetClientCertificate = load
	}
	return config, nil
}

func authorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("trace.ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("trace.ca_file: no certificate in %s: %w", file, backup.ErrInvalid)
	}
	return pool, nil
}

// tellErrors logs failures of the exporter: spans are dropped then, and nothing waits.
func tellErrors(log *slog.Logger) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("sending trace spans failed: spans are lost", "error", err)
	}))
}

// closeTraces is the maximum time that Close takes.
const closeTraces = 5 * time.Second

// Close sends the remaining spans.
func (t *Tracer) Close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTraces)
	defer cancel()
	return t.provider.Shutdown(ctx)
}

// A Span is the duration of one piece of work. All methods of a nil Span do nothing.
type Span struct{ span trace.Span }

// Start begins a span as a child of the one in ctx or, if there is none, of the snapshot's. The
// attributes are those used in logs: snapshot, task, batch.
func (t *Tracer) Start(ctx context.Context, name string, snapshot backup.SnapshotID, attrs ...slog.Attr) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, t.snapshot(snapshot))
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithAttributes(attribute.String("snapshot", snapshot.Short())))
	s := &Span{span}
	s.Set(attrs...)
	return ctx, s
}

// Ended exports the span of a snapshot that has ended: the root of all others.
func (t *Tracer) Ended(ctx context.Context, s *backup.Snapshot, reason string) {
	if t == nil {
		return
	}
	ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{}) // it has no parent
	ctx = context.WithValue(ctx, idsKey{}, s.ID)
	_, span := t.tracer.Start(ctx, "snapshot", trace.WithTimestamp(s.Started), trace.WithAttributes(
		attribute.String("snapshot", s.ID.Short()), attribute.String("filer", s.Filer.Name), attribute.String("shard", s.Shard.Name)))
	if reason != "" {
		span.SetStatus(codes.Error, reason)
	}
	span.End()
}

// snapshot returns the context of a snapshot's own span.
func (t *Tracer) snapshot(id backup.SnapshotID) trace.SpanContext {
	var flags trace.TraceFlags
	decision := t.sampler.ShouldSample(sdktrace.SamplingParameters{TraceID: trace.TraceID(id)}).Decision
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID(id), SpanID: trace.SpanID(id[:8]), TraceFlags: flags.WithSampled(decision == sdktrace.RecordAndSample), Remote: true,
	})
}

// Set adds attributes.
func (s *Span) Set(attrs ...slog.Attr) {
	if s == nil || !s.span.IsRecording() {
		return
	}
	for _, a := range attrs {
		s.span.SetAttributes(keyValue(a))
	}
}

func keyValue(a slog.Attr) attribute.KeyValue {
	switch a.Value.Kind() {
	case slog.KindInt64:
		return attribute.Int64(a.Key, a.Value.Int64())
	case slog.KindBool:
		return attribute.Bool(a.Key, a.Value.Bool())
	default:
		if list, ok := a.Value.Any().([]string); ok {
			return attribute.StringSlice(a.Key, list)
		}
		return attribute.String(a.Key, a.Value.String())
	}
}

// End ends the span, as failed if err is not nil.
func (s *Span) End(err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.span.SetStatus(codes.Error, err.Error())
		s.span.SetAttributes(attribute.Bool("cancelled", errors.Is(err, context.Canceled)))
	}
	s.span.End()
}

// maxPaths bounds the paths in a span: further ones are only counted.
const maxPaths = 32

// Paths returns the attributes of n directories; path returns the path of the i-th.
func Paths(n int, path func(i int) string) []slog.Attr {
	list := make([]string, 0, min(n, maxPaths))
	for i := 0; i < n && len(list) < maxPaths; i++ {
		list = append(list, "/"+path(i))
	}
	return []slog.Attr{slog.Int("directories", n), slog.Any("paths", list)}
}

var headers propagation.TraceContext

// Inject writes the span in ctx, if there is one, into the headers of a message.
func Inject(ctx context.Context, to propagation.TextMapCarrier) { headers.Inject(ctx, to) }

// Extract returns ctx with the span named by the headers of a message.
func Extract(ctx context.Context, from propagation.TextMapCarrier) context.Context {
	return headers.Extract(ctx, from)
}

// A Parent is a span that can have children that begin elsewhere. The zero Parent is none.
type Parent struct{ span trace.SpanContext }

// ParentOf returns the span in ctx.
func ParentOf(ctx context.Context) Parent { return Parent{trace.SpanContextFromContext(ctx)} }

// Below returns ctx with the span in it.
func (p Parent) Below(ctx context.Context) context.Context {
	if p.span.IsValid() {
		return trace.ContextWithSpanContext(ctx, p.span)
	}
	return ctx
}

// Traced reports whether ctx has a span to inject into headers.
func Traced(ctx context.Context) bool { return trace.SpanContextFromContext(ctx).IsValid() }

// snapshotIDs derives the IDs of a snapshot's own span from the snapshot's ID, and generates random
// ones for all others.
type snapshotIDs struct{}

type idsKey struct{}

// NewIDs implements sdktrace.IDGenerator.
func (snapshotIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if id, ok := ctx.Value(idsKey{}).(backup.SnapshotID); ok {
		return trace.TraceID(id), trace.SpanID(id[:8])
	}
	return trace.TraceID(backup.NewSnapshotID()), newSpanID()
}

// NewSpanID implements sdktrace.IDGenerator.
func (snapshotIDs) NewSpanID(context.Context, trace.TraceID) trace.SpanID { return newSpanID() }

func newSpanID() (id trace.SpanID) {
	for !id.IsValid() {
		for i, v := 0, rand.Uint64(); i < len(id); i, v = i+1, v>>8 {
			id[i] = byte(v)
		}
	}
	return id
}

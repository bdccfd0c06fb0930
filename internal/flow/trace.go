package flow

import (
	"context"
	"maps"
	"slices"

	"github.com/nats-io/nats.go"

	"github.com/bctl/bctl/internal/telemetry"
)

// A message carries its trace in its header, in the form of W3C Trace Context ("traceparent"). A
// message without a trace has no such header. An invalid header is ignored: only traces depend on
// it.

// header is a message's header, as a carrier of traces.
type header nats.Header

// Get implements propagation.TextMapCarrier.
func (h header) Get(key string) string { return nats.Header(h).Get(key) }

// Set implements propagation.TextMapCarrier.
func (h header) Set(key, value string) { nats.Header(h).Set(key, value) }

// Keys implements propagation.TextMapCarrier.
func (h header) Keys() []string {
	return slices.Collect(maps.Keys(h))
}

// traceHeader returns the header of a message that is sent as part of the trace in ctx; nil if
// there is no trace.
func traceHeader(ctx context.Context) nats.Header {
	if !telemetry.Traced(ctx) {
		return nil
	}
	h := nats.Header{}
	telemetry.Inject(ctx, header(h))
	return h
}

// Trace returns ctx with the message's trace, if any.
func (d *Delivery) Trace(ctx context.Context) context.Context {
	h := d.msg.Headers()
	if len(h) == 0 {
		return ctx
	}
	return telemetry.Extract(ctx, header(h))
}

// Package telemetry implements bctl's observability: logs, metrics (Prometheus) and traces
// (OpenTelemetry). It is the only package that uses these libraries.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"

	"github.com/bctl/bctl/internal/backup"
)

// NewLogger returns a logger that writes to w. level is debug, info, warn or error. format is text,
// json, or auto: text if w is a terminal (as given by terminal), and JSON otherwise. The logger
// limits how often a failure repeats.
func NewLogger(w io.Writer, terminal bool, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q is not debug, info, warn or error: %w", level, backup.ErrInvalid)
	}
	o := &slog.HandlerOptions{Level: l, ReplaceAttr: readable}
	switch {
	case format == "text" || format == "auto" && terminal:
		if terminal {
			o.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr { return shortTime(groups, readable(groups, a)) }
		}
		return slog.New(newLimited(slog.NewTextHandler(w, o))), nil
	case format == "json" || format == "auto":
		return slog.New(newLimited(slog.NewJSONHandler(w, o))), nil
	}
	return nil, fmt.Errorf("log format %q is not text, json or auto: %w", format, backup.ErrInvalid)
}

// readable writes durations as seconds, with the unit in the key, and ids as text. JSON would have
// nanoseconds and arrays of bytes.
func readable(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case time.Duration:
		if a.Key != "seconds" && !strings.HasSuffix(a.Key, "_seconds") {
			a.Key += "_seconds"
		}
		return slog.Float64(a.Key, v.Seconds())
	case slog.Level, time.Time, error:
		return a
	case fmt.Stringer:
		return slog.String(a.Key, v.String())
	}
	return a
}

// TakeOver routes all logs of this process through log, including what libraries would print to
// standard error.
func TakeOver(log *slog.Logger) {
	slog.SetDefault(log) // this includes the standard library's package log
	otel.SetLogger(logr.FromSlogHandler(log.Handler()))
}

// shortTime omits the date in output for people.
func shortTime(groups []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey && len(groups) == 0 {
		return slog.String(slog.TimeKey, a.Value.Time().Format("15:04:05"))
	}
	return a
}

// Package telemetry is how bctl is watched: logs, metrics (Prometheus) and
// traces (OpenTelemetry). It is the only package that knows these libraries.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"

	"github.com/bctl/bctl/internal/backup"
)

// NewLogger returns a logger to w. level is debug, info, warn or error; format
// is text, json, or auto: text where w is a terminal (as terminal says), JSON elsewhere.
func NewLogger(w io.Writer, terminal bool, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log level %q is not debug, info, warn or error: %w", level, backup.ErrInvalid)
	}
	o := &slog.HandlerOptions{Level: l}
	switch {
	case format == "text" || format == "auto" && terminal:
		if terminal {
			o.ReplaceAttr = shortTime
		}
		return slog.New(slog.NewTextHandler(w, o)), nil
	case format == "json" || format == "auto":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, fmt.Errorf("log format %q is not text, json or auto: %w", format, backup.ErrInvalid)
}

// shortTime leaves the date away for people, who know what day it is.
func shortTime(groups []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey && len(groups) == 0 {
		return slog.String(slog.TimeKey, a.Value.Time().Format("15:04:05"))
	}
	return a
}

// IsTerminal reports whether a person looks at f.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

package telemetry

import (
	"context"
	"log/slog"
	"time"
)

// A pair is a warning that something is wrong, and the line that it is right again. They are
// limited together, so that the last of them in the log is true. In one continuing failure the log
// says once, at once, that it is right again. If it then goes wrong once more, the log says so at
// once. From then on, it is right again when the failure is over.
type pair struct {
	last  *failing  // that the last warning belongs to
	right time.Time // when the log last said that it is right again; zero: something is wrong
}

// Pair returns a logger whose warnings and whose lines below that level are one pair: each of these
// lines takes back the warnings before it. log was made by NewLogger.
func Pair(log *slog.Logger) *slog.Logger {
	l, ok := log.Handler().(*limited)
	if !ok {
		return log
	}
	of := *l
	of.pair = &pair{}
	return slog.New(&of)
}

// right logs that something is right again, or leaves that to the end of the failure.
func (p *repeats) right(ctx context.Context, l *limited, r slog.Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	say := func(now time.Time) error {
		l.pair.right, r.Time = now, now
		return l.Handler.Handle(ctx, r)
	}
	f := l.pair.last
	if f == nil || f.ended {
		return say(r.Time)
	}
	if f.right {
		r, ctx = r.Clone(), context.WithoutCancel(ctx)
		f.held = func() { _ = say(time.Now()) } // as slog.Logger ignores it
		return nil
	}
	f.right = true
	return say(r.Time)
}

// wrong notes that a warning of the pair belongs to f; nil: to a failure that is not tracked. It
// reports whether the log must say that at once, because its last line says otherwise.
func (p *pair) wrong(f *failing) (now bool) {
	if p.last != nil {
		p.last.held = nil
	}
	now = f != nil && f.said.Before(p.right)
	p.last, p.right = f, time.Time{}
	return now
}

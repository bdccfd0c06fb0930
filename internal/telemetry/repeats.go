package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A repeated failure is logged at once when it first occurs, then at increasing intervals with the
// number of occurrences, and once more when it is over.
const (
	// sayAgain is the time until a continuing failure is logged again. It doubles each time, up to
	// sayRarely.
	sayAgain  = time.Minute
	sayRarely = 16 * time.Minute
	// overAfter is the time without a failure after which it counts as over. It is longer than the
	// longest pause of a loop that retries.
	overAfter = time.Minute
	// maxRepeats bounds the number of distinct failures that are tracked.
	maxRepeats = 1000
)

// repeatKeys are the keys that distinguish failures. Failures that differ in other keys (the batch,
// the attempt), or in the names and numbers in their error, count as the same failure.
var repeatKeys = map[string]bool{
	"snapshot": true, "filer": true, "shard": true, "source": true, "policy": true, "directory": true, "pack": true, "stream": true, "consumer": true,
	"role": true, "lost_worker": true,
}

// A limited handler is a slog.Handler that limits how often a warning or an error repeats. While a
// dependency is unavailable, all failures caused by that count as one.
type limited struct {
	slog.Handler
	service slog.Handler // without the attributes of what failed, if With has set some
	about   string       // the attributes in repeatKeys that were set by With
	repeats *repeats
	pair    *pair // not nil: of what Pair has returned
}

func newLimited(h slog.Handler) slog.Handler {
	return &limited{Handler: h, service: h, repeats: &repeats{failing: map[string]*failing{}}}
}

// repeats are the failures of a process that are not over.
type repeats struct {
	mu      sync.Mutex
	failing map[string]*failing
	usable  func(ctx context.Context, dependency string) error // nil: not known
}

// CheckOutages makes a log report the end of an outage only if the dependency can be used: usable
// returns nil. The absence of failures proves nothing, because something else may keep the process
// from using it. log was made by NewLogger.
func CheckOutages(log *slog.Logger, usable func(ctx context.Context, dependency string) error) {
	if l, ok := log.Handler().(*limited); ok {
		l.repeats.mu.Lock()
		defer l.repeats.mu.Unlock()
		l.repeats.usable = usable
	}
}

// A failing is one continuing failure.
type failing struct {
	handler     slog.Handler
	away        backup.Away // the dependency that is away; "": the failure has another cause
	event       string
	about       string // as in limited
	first, last time.Time
	next        time.Time // when it is logged again
	pause       time.Duration
	failures    int
	unsaid      int
	said        time.Time // when it was last logged
	over        *time.Timer
	ended       bool
	right       bool   // the log has said that what it had put wrong is right again
	held        func() // says so when it is over; nil: nothing is to be said
}

func (l *limited) Handle(ctx context.Context, r slog.Record) error {
	switch {
	case r.Level >= slog.LevelWarn:
	case l.pair != nil:
		return l.repeats.right(ctx, l, r)
	default:
		return l.Handler.Handle(ctx, r)
	}
	failures := l.repeats.note(l, &r)
	if failures == 0 {
		return nil
	}
	if failures > 1 {
		r = r.Clone()
		r.AddAttrs(slog.Int("failures", failures))
	}
	return l.Handler.Handle(ctx, r)
}

// note counts a failure. It returns the number of occurrences, or 0 if this one is not to be
// logged.
func (p *repeats) note(l *limited, r *slog.Record) int {
	key, away := l.key(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.failing[key]
	if f == nil {
		if len(p.failing) >= maxRepeats {
			if l.pair != nil {
				l.pair.wrong(nil)
			}
			return 1
		}
		f = &failing{handler: l.Handler, away: away, event: r.Message, about: l.about, first: r.Time, next: r.Time, pause: sayAgain}
		if away != "" { // an outage is not about what happened to fail first
			f.handler = l.service
		}
		f.over = time.AfterFunc(overAfter, func() { p.end(key, f) })
		p.failing[key] = f
	}
	f.over.Reset(overAfter)
	f.failures++
	f.last = r.Time
	now := l.pair != nil && l.pair.wrong(f)
	due := !r.Time.Before(f.next)
	if !due && !now {
		f.unsaid++
		return 0
	}
	f.said = r.Time
	if due {
		f.next = r.Time.Add(f.pause)
		f.pause = min(2*f.pause, sayRarely)
	}
	return f.failures
}

// end forgets a failure that is over, and logs that if some occurrences were not logged. An outage
// that is not over is looked at again later.
func (p *repeats) end(key string, f *failing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	checked := false
	if usable := p.usable; usable != nil && f.away != "" {
		p.mu.Unlock()
		err := usable(context.Background(), f.away.Dependency())
		p.mu.Lock()
		if err != nil {
			f.over.Reset(overAfter)
			return
		}
		checked = true
	}
	if p.failing[key] != f || time.Since(f.last) < overAfter { // it has just failed once more
		return
	}
	delete(p.failing, key)
	f.ended = true
	log, seconds := slog.New(f.handler), f.last.Sub(f.first).Seconds()
	switch {
	case f.unsaid == 0 || !checked && p.goesOn(f):
	case checked:
		log.Info("outage over: the dependency is usable again", "dependency", f.away.Dependency(), "event", f.event, "failures", f.failures, "seconds", seconds)
	case f.away != "":
		log.Info("no failure of this dependency for a minute", "dependency", f.away.Dependency(), "event", f.event, "failures", f.failures, "seconds", seconds)
	default:
		log.Info("no failure of this kind for a minute", "event", f.event, "failures", f.failures, "seconds", seconds)
	}
	if f.held != nil {
		f.held()
	}
}

// goesOn reports whether a failure that counts as over still occurs with another wording of its
// error.
func (p *repeats) goesOn(f *failing) bool {
	for _, other := range p.failing {
		if other.event == f.event && other.about == f.about {
			return true
		}
	}
	return false
}

// key returns a string that distinguishes failures, and the dependency that causes this one.
func (l *limited) key(r *slog.Record) (string, backup.Away) {
	var about strings.Builder
	about.WriteString(r.Message)
	about.WriteString(l.about)
	var away backup.Away
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		if ok {
			if away = outageOf(err); away != "" {
				return false
			}
		}
		if ok {
			about.WriteString("\x00" + a.Key + "\x00" + wording(err))
		}
		say(&about, a)
		return true
	})
	if away != "" {
		return string(away), away
	}
	return about.String(), ""
}

// outageOf returns the outage that an error belongs to; "": it has another cause.
func outageOf(err error) (away backup.Away) {
	if refused, ok := errors.AsType[interface {
		error
		Outage() backup.Away
	}](err); ok && refused.Outage() != "" {
		return refused.Outage()
	}
	errors.As(err, &away)
	return away
}

// wording returns the text of an error without the words that differ between occurrences: names,
// numbers and quoted strings.
func wording(err error) string {
	words := strings.Fields(err.Error())
	for i, word := range words {
		if strings.ContainsAny(word, "0123456789/\\\"`'") {
			words[i] = "#"
		}
	}
	return strings.Join(words, " ")
}

func say(to *strings.Builder, a slog.Attr) {
	if repeatKeys[a.Key] {
		to.WriteString("\x00" + a.Key + "\x00" + a.Value.String())
	}
}

// WithAttrs implements slog.Handler.
func (l *limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	var about strings.Builder
	about.WriteString(l.about)
	for _, a := range attrs {
		say(&about, a)
	}
	with := &limited{Handler: l.Handler.WithAttrs(attrs), service: l.service, about: about.String(), repeats: l.repeats, pair: l.pair}
	if with.about == "" {
		with.service = with.Handler
	}
	return with
}

// WithGroup implements slog.Handler.
func (l *limited) WithGroup(name string) slog.Handler {
	return &limited{Handler: l.Handler.WithGroup(name), service: l.service, about: l.about, repeats: l.repeats, pair: l.pair}
}

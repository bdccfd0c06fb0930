package cli

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/loop"
)

// While a command waits for a fleet, it reports what the fleet lacks, and not only that there is no
// progress.

// lookoutEvery is the interval between checks for missing services. A lack is reported when two
// consecutive checks find it, so that a committer has time to take over from another.
const lookoutEvery = 4 * time.Second

// A lookout reports missing services while a command waits.
type lookout struct {
	app    *app
	ask    func(context.Context, []string) crew
	sites  []string // the sites whose workers the command waits for
	advice string   // printed once, after the first report

	before []string
	said   map[string]bool
}

// watch runs until stop is called.
func (l *lookout) watch(ctx context.Context, every time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		loop.Every(ctx, every, func() {
			if c := l.ask(ctx, l.sites); ctx.Err() == nil {
				l.look(&c)
			}
		})
	}()
	return sync.OnceFunc(func() { cancel(); <-ended })
}

// look reports what is missing now and was missing before, unless it was reported already. If it
// becomes available and is missing again, it is reported again.
func (l *lookout) look(c *crew) {
	now := texts(slices.DeleteFunc(c.lacks(l.sites), func(l lack) bool { return !l.Stops }), func(l *lack) string { return l.Text })
	said := map[string]bool{}
	for _, text := range now {
		switch {
		case l.said[text]:
			said[text] = true
		case slices.Contains(l.before, text):
			l.app.note("%s", text)
			said[text] = true
			if l.advice != "" {
				l.app.note("%s", l.advice)
				l.advice = ""
			}
		}
	}
	l.before, l.said = now, said
}

package cli

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Whoever waits for a fleet is told what the fleet lacks, and not only that nothing moves.

// lookoutEvery is how often is asked what is missing. It is told when it was missing twice: a committer that
// takes over from another has done so by then.
const lookoutEvery = 4 * time.Second

// A lookout says what is missing while a command waits.
type lookout struct {
	app    *app
	ask    func(context.Context, []string) crew
	sites  []string // whose workers the command waits for
	advice string   // said once, after the first that is missing

	before []string
	said   map[string]bool
}

// watch looks out until stop is called.
func (l *lookout) watch(ctx context.Context, every time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if c := l.ask(ctx, l.sites); ctx.Err() == nil {
				l.look(&c)
			}
		}
	}()
	return sync.OnceFunc(func() { cancel(); <-ended })
}

// look says what is missing now, was missing before, and was not said yet. What comes back and goes again is said again.
func (l *lookout) look(c *crew) {
	now := texts(slices.DeleteFunc(c.lacks(l.sites), func(l lack) bool { return !l.Stops }))
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

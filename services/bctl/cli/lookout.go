package cli

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/backup"
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

	// The snapshots of which the command reports that work is handed back, by name; nil: none.
	snapshots map[backup.SnapshotID]string

	before []string
	said   map[string]bool
	handed map[string]bool // reported already
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
	said := map[string]bool{}
	var now []string
	for _, lack := range c.lacks(l.sites) {
		if !lack.Stops {
			continue
		}
		gist := gistOf(&lack)
		now = append(now, gist)
		switch {
		case l.said[gist]:
			said[gist] = true
		case slices.Contains(l.before, gist):
			l.app.note("%s", lack.Text)
			said[gist] = true
			if l.advice != "" {
				l.app.note("%s", l.advice)
				l.advice = ""
			}
		}
	}
	l.before, l.said = now, said
	l.lookAtHandBacks(c)
}

// maxHandedNotes bounds the notes on work that is handed back.
const maxHandedNotes = 16

// lookAtHandBacks reports, once per reason, that workers have handed back work of the snapshots.
func (l *lookout) lookAtHandBacks(c *crew) {
	for n := range c.services {
		s := &c.services[n]
		for h := range s.HandBacks {
			back := &s.HandBacks[h]
			var names []string
			for _, id := range back.Snapshots {
				if name := l.snapshots[id]; name != "" {
					names = append(names, name)
				}
			}
			gist := string(s.Role) + " " + withoutNumbers(back.Why)
			if len(names) == 0 || back.Why == "" || l.handed[gist] || len(l.handed) >= maxHandedNotes {
				continue
			}
			if l.handed == nil {
				l.handed = map[string]bool{}
			}
			l.handed[gist] = true
			l.app.note("%s %s%s has handed back work of %s, for any %s to take: %s", s.Role, display(s.Name), at(s.Site), someNames(names), s.Role, display(firstLine(back.Why)))
		}
	}
}

// gistOf returns what distinguishes a lack from others: not the names of objects and the numbers in
// its text, which may change with each look.
func gistOf(l *lack) string {
	return l.What + " " + l.Site + " " + withoutNumbers(l.Text)
}

// withoutNumbers returns a text without the words that are paths or contain digits.
func withoutNumbers(text string) string {
	words := slices.DeleteFunc(strings.Fields(text), func(word string) bool { return strings.ContainsAny(word, "0123456789/") })
	return strings.Join(words, " ")
}

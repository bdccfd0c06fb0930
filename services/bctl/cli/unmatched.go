package cli

import (
	"reflect"
	"slices"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/selection"
)

// A patternWatch determines which patterns match nothing in a snapshot that this process makes.
type patternWatch struct {
	mu      sync.Mutex
	of      backup.Selection
	matcher *selection.Matcher // shared by all of the snapshot's walk tasks
}

// compile is the Compile function of walk.Options.
func (w *patternWatch) compile(s backup.Selection) (*selection.Matcher, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.matcher != nil && reflect.DeepEqual(w.of, s) {
		return w.matcher, nil
	}
	m, err := selection.Compile(s)
	if err != nil {
		return nil, err
	}
	m.Watch()
	w.of, w.matcher = s, m
	return m, nil
}

// A given is the exclusions of a command that should match something: patterns of --exclude, and
// names of --exclude-if-present.
type given struct{ patterns, ifPresent []string }

func (g given) json() unmatchedJSON { return unmatchedJSON{g.patterns, g.ifPresent} }

// unmatched returns those that have matched nothing.
func (w *patternWatch) unmatched(g given) given {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.matcher == nil {
		return given{}
	}
	return g.only(given{w.matcher.Unmatched(), w.matcher.AbsentMarkers()})
}

// only returns those that are among the others, too.
func (g given) only(others given) given {
	return given{only(g.patterns, others.patterns), only(g.ifPresent, others.ifPresent)}
}

// only returns the texts that are among those.
func only(texts, those []string) (kept []string) {
	for _, text := range texts {
		if slices.Contains(those, text) {
			kept = append(kept, text)
		}
	}
	return kept
}

// noteUnmatched prints a note with a flag's patterns that matched nothing, because a misspelt
// pattern is not noticed otherwise.
func (a *app) noteUnmatched(flag, relativeTo string, patterns []string) {
	for _, p := range patterns {
		a.note("--%s %s matched nothing; patterns are relative to %s", flag, display(p), relativeTo)
	}
}

// noteGiven is noteUnmatched for the exclusions of a backup.
func (a *app) noteGiven(g given) {
	a.noteUnmatched("exclude", "PATH", g.patterns)
	for _, name := range g.ifPresent {
		a.note("--exclude-if-present %s matched nothing: no directory has an entry of this name", display(name))
	}
}

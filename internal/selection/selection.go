// Package selection decides what of a shard is left out: it compiles a
// backup.Selection into a Matcher.
//
// Patterns are gitignore's (https://git-scm.com/docs/gitignore), relative to
// the shard's root, and mean what git makes of them, byte for byte (a test
// compares with git itself):
//
//   - the last pattern that matches a path decides; "!" at its beginning takes
//     the path in again
//   - "/" at the beginning or in the middle ties the pattern to the root; without one
//     it is for the last component, at any depth
//   - "/" at the end: directories only
//   - "*", "?" and "[…]" match within a component; "**" as a whole component,
//     any number of components
//   - "\" takes the meaning from what follows it; spaces at the end do not count without it
//
// A pattern that git passes over in silence is an error here: an empty
// one, a comment, one that ends in a lone "\" or in the middle of "[…]"; so is
// one with an empty component ("//").
//
// An excluded directory is not entered, so nothing below it can be taken in
// again: Excluded is asked on the way down, and answers for its own path only.
package selection

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/bctl/bctl/internal/backup"
)

// MaxPatternBytes is the most that one pattern may have; a path is not longer.
const MaxPatternBytes = 4096

// MaxPatterns is the most patterns of one selection: each entry of the tree is
// compared with all of them.
const MaxPatterns = 10_000

// A Matcher is a compiled backup.Selection. It is for concurrent use, and
// matching allocates nothing.
type Matcher struct {
	patterns  []pattern // last first: the first that matches decides
	markers   []string
	selection backup.Selection
	matched   []atomic.Bool // of patterns, where somebody watches
}

// Compile returns a Matcher. Its error wraps backup.ErrInvalid and names what
// is wrong with which pattern.
func Compile(s backup.Selection) (*Matcher, error) {
	m := &Matcher{selection: s, markers: s.ExcludeIfPresent}
	if len(s.Exclude) > MaxPatterns {
		return nil, fmt.Errorf("%d exclude patterns: at most %d: %w", len(s.Exclude), MaxPatterns, backup.ErrInvalid)
	}
	for _, text := range slices.Backward(s.Exclude) {
		p, err := compile(text)
		if err != nil {
			return nil, fmt.Errorf("exclude pattern %q: %w: %w", text, err, backup.ErrInvalid)
		}
		m.patterns = append(m.patterns, p)
	}
	for _, name := range s.ExcludeIfPresent {
		if err := backup.CheckName(name); err != nil {
			return nil, fmt.Errorf("exclude if present: %w", err)
		}
	}
	if s.ExcludeLargerBytes < 0 {
		return nil, fmt.Errorf("exclude larger than %d bytes: %w", s.ExcludeLargerBytes, backup.ErrInvalid)
	}
	return m, nil
}

// Lines returns the patterns of a gitignore file: its lines without comments
// and blank ones.
func Lines(text string) []string {
	var patterns []string
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSuffix(line, "\r")
		if line != "" && line[0] != '#' && trimSpaces(line) != "" {
			patterns = append(patterns, line)
		}
	}
	return patterns
}

// Empty reports whether nothing is ever left out, so that nobody need ask.
func (m *Matcher) Empty() bool {
	return len(m.patterns) == 0 && len(m.markers) == 0 && !m.selection.OneFileSystem && m.selection.ExcludeLargerBytes == 0
}

// HasPatterns reports whether Excluded can be true.
func (m *Matcher) HasPatterns() bool { return len(m.patterns) > 0 }

// Excluded reports whether the patterns leave path out, which is relative to
// the shard's root. None of the directories above it is.
func (m *Matcher) Excluded(path string, isDir bool) bool {
	if path == "" { // the root is what was asked for
		return false
	}
	base := path[strings.LastIndexByte(path, '/')+1:]
	for i := range m.patterns {
		if p := &m.patterns[i]; p.match(path, base, isDir) {
			m.mark(i, path, base, isDir)
			return !p.negated
		}
	}
	return false
}

// Watch has the Matcher note which patterns match, for Unmatched. It is called before anything is matched.
func (m *Matcher) Watch() { m.matched = make([]atomic.Bool, len(m.patterns)) }

// Unmatched returns the patterns that have matched none of the paths that Excluded was asked for since Watch, in
// their order. A pattern counts as matching also where a later one decided.
func (m *Matcher) Unmatched() []string {
	var texts []string
	for i := range slices.Backward(m.matched) {
		if !m.matched[i].Load() {
			texts = append(texts, m.selection.Exclude[len(m.patterns)-1-i])
		}
	}
	return texts
}

// mark notes that pattern i matches, and which of those after it do, too.
func (m *Matcher) mark(i int, path, base string, isDir bool) {
	if m.matched == nil {
		return
	}
	for ; i < len(m.matched); i++ {
		if !m.matched[i].Load() && m.patterns[i].match(path, base, isDir) {
			m.matched[i].Store(true)
		}
	}
}

// HasMarkers reports whether IsMarker can be true.
func (m *Matcher) HasMarkers() bool { return len(m.markers) > 0 }

// IsMarker reports whether a directory that holds an entry of this name is
// kept empty.
func (m *Matcher) IsMarker(name string) bool { return slices.Contains(m.markers, name) }

// TooLarge reports whether a file of this size is left out.
func (m *Matcher) TooLarge(sizeBytes int64) bool {
	return m.selection.ExcludeLargerBytes > 0 && sizeBytes > m.selection.ExcludeLargerBytes
}

// OneFileSystem reports whether what is mounted below the root is left out:
// directories are kept empty.
func (m *Matcher) OneFileSystem() bool { return m.selection.OneFileSystem }

// LeavesOutMounted reports whether the entry is a file that is left out because
// it is mounted where it is.
func (m *Matcher) LeavesOutMounted(e backup.Entry) bool {
	return m.selection.OneFileSystem && e.Kind != backup.Directory && e.Flags&backup.Boundary != 0
}

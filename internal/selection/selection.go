// Package selection decides what a backup of a shard leaves out. It compiles a backup.Selection
// into a Matcher.
//
// Patterns are those of gitignore (https://git-scm.com/docs/gitignore), relative to the shard's
// root, and have the same meaning as in git, byte for byte (a test compares with git itself):
//
//   - The last pattern that matches a path decides. "!" at the beginning includes the path again.
//   - "/" at the beginning or in the middle anchors the pattern at the root. Without it, the
//     pattern applies to the last component, at any depth.
//   - "/" at the end: directories only.
//   - "*", "?" and "[…]" match within a component. "**" as a whole component matches any number of
//     components.
//   - "\" escapes the next byte. Trailing spaces are ignored unless they are escaped.
//
// A pattern that git silently ignores is an error here: an empty pattern, a comment, and a pattern
// that ends in a lone "\" or within "[…]". A pattern with an empty component ("//") is an error as
// well.
//
// The backup does not descend into an excluded directory, so nothing below it can be included
// again. Matches must therefore be called on the way down; its answer is for its own path only.
package selection

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/bctl/bctl/internal/backup"
)

// MaxPatternBytes is the maximum length of one pattern. A path is not longer.
const MaxPatternBytes = 4096

// MaxPatterns is the maximum number of patterns per selection. Each entry of the tree is compared
// with all of them.
const MaxPatterns = 10_000

// A Matcher is a compiled backup.Selection. It may be used concurrently, and matching does not
// allocate.
type Matcher struct {
	patterns  []pattern // last first: the first match decides
	markers   []string
	selection backup.Selection
	matched   []atomic.Bool // by pattern; set by Watch
	present   []atomic.Bool // by marker; set by Watch
}

// Compile returns a Matcher. Its error wraps backup.ErrInvalid and names the pattern and what is
// wrong with it.
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

// Lines returns the patterns of a gitignore file: its lines except comments and blank lines.
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

// Empty reports whether the selection never leaves anything out, so that no other method need be
// called.
func (m *Matcher) Empty() bool {
	return len(m.patterns) == 0 && len(m.markers) == 0 && !m.selection.OneFileSystem && m.selection.ExcludeLargerBytes == 0
}

// HasPatterns reports whether Matches can be true.
func (m *Matcher) HasPatterns() bool { return len(m.patterns) > 0 }

// Matches reports whether the patterns leave out path, which is relative to the shard's root. No
// directory above path may be excluded.
func (m *Matcher) Matches(path string, isDir bool) bool {
	if path == "" { // the root was requested explicitly
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

// Watch makes the Matcher record which patterns match and which markers exist, for Unmatched and
// AbsentMarkers. It must be called before the first match.
func (m *Matcher) Watch() {
	m.matched, m.present = make([]atomic.Bool, len(m.patterns)), make([]atomic.Bool, len(m.markers))
}

// Unmatched returns, in order, the patterns that have matched no path passed to Matches since
// Watch. A pattern also counts as a match if a later one decided.
func (m *Matcher) Unmatched() []string {
	var texts []string
	for i := range slices.Backward(m.matched) {
		if !m.matched[i].Load() {
			texts = append(texts, m.selection.Exclude[len(m.patterns)-1-i])
		}
	}
	return texts
}

// mark records that pattern i matches, and which of those after it in m.patterns match as well.
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

// IsMarker reports whether a directory that contains an entry of this name is kept empty.
func (m *Matcher) IsMarker(name string) bool { return slices.Contains(m.markers, name) }

// AnyMarker reports whether an entry of a directory is a marker.
func (m *Matcher) AnyMarker(entries []backup.Entry) (found bool) {
	for i := range entries {
		at := slices.Index(m.markers, entries[i].Name)
		if at < 0 {
			continue
		}
		if found = true; m.present == nil {
			return true
		}
		m.present[at].Store(true) // further entries may be other markers
	}
	return found
}

// AbsentMarkers returns, in order, the markers that were in no directory passed to AnyMarker since
// Watch.
func (m *Matcher) AbsentMarkers() (names []string) {
	for i := range m.present {
		if !m.present[i].Load() {
			names = append(names, m.markers[i])
		}
	}
	return names
}

// TooLarge reports whether a file of this size is left out.
func (m *Matcher) TooLarge(sizeBytes int64) bool {
	return m.selection.ExcludeLargerBytes > 0 && sizeBytes > m.selection.ExcludeLargerBytes
}

// OneFileSystem reports whether file systems mounted below the root are left out. Their directories
// are kept empty.
func (m *Matcher) OneFileSystem() bool { return m.selection.OneFileSystem }

// LeavesOutMounted reports whether the entry is a file that is left out because it is a mount
// point.
func (m *Matcher) LeavesOutMounted(e backup.Entry) bool {
	return m.selection.OneFileSystem && e.Kind != backup.Directory && e.Flags&backup.Boundary != 0
}

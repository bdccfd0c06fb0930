package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/selection"
)

// --files-from is a selection: patterns exclude everything else in the directories above the listed
// paths. The snapshot records these patterns, so that it does not seem to be of the whole tree, and
// a restore with --delete keeps what they exclude. A shard that was backed up as a whole refuses a
// list, because its other files would seem to be removed.

// allElse is the first pattern of a list: it excludes what is not listed.
const allElse = "/*"

// A fileList is the paths of --files-from.
type fileList struct {
	file string // "-" is stdin
	nul  bool   // paths end with NUL, not with a newline

	patterns []string
	wanted   map[string]string // the pattern that matches only a listed path, and that path
}

// read reads the list, for the tree at root.
func (l *fileList) read(a *app, stdin io.Reader, root string) error {
	text, err := l.text(a, stdin)
	if err != nil {
		return fmt.Errorf("--files-from: %w", err)
	}
	end := "\n"
	if l.nul {
		end = "\x00"
	}
	var paths []string
	for line := range strings.SplitSeq(string(text), end) {
		if line == "" {
			continue
		}
		within, err := listedPath(root, line)
		if err != nil {
			return usage("--files-from %s: %v", l.file, err)
		}
		paths = append(paths, within)
	}
	if len(paths) == 0 {
		return usage("--files-from %s lists no path: nothing would be backed up", l.file)
	}
	l.patterns, l.wanted = onlyPaths(paths)
	if len(l.patterns) > selection.MaxPatterns {
		return usage("--files-from %s needs %d patterns for %d paths, and at most %d are possible: list directories instead of the files in them",
			l.file, len(l.patterns), len(paths), selection.MaxPatterns)
	}
	if _, err := selection.Compile(backup.Selection{Exclude: l.patterns}); err != nil {
		return usage("--files-from %s: %v", l.file, err)
	}
	return nil
}

func (l *fileList) text(a *app, stdin io.Reader) ([]byte, error) {
	if l.file == "-" {
		return io.ReadAll(stdin)
	}
	name, err := config.ExpandHome(l.file, a.env)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(name)
	if l.nul || err != nil || !bytes.ContainsRune(text, 0) {
		return text, err
	}
	return nil, fmt.Errorf("%s contains NULs: read it with -0", l.file)
}

// listedPath returns a listed path relative to root: "" for root itself. A path that is not
// absolute is relative to root.
func listedPath(root, line string) (string, error) {
	within := line
	if filepath.IsAbs(line) {
		var err error
		if within, err = filepath.Rel(root, line); err != nil {
			return "", err
		}
	}
	within = filepath.Clean(within)
	switch {
	case within == ".":
		return "", nil
	case within == ".." || strings.HasPrefix(within, "../"):
		return "", fmt.Errorf("%s is not below %s", display(line), display(root))
	case strings.Contains(within, "\n"):
		return "", errors.New("the path " + display(line) + " contains a newline, which a pattern cannot contain: list its directory")
	}
	return within, nil
}

// onlyPaths returns patterns that exclude everything but the given paths, what is below them, and
// the directories above them. wanted maps the pattern of each path to the path.
func onlyPaths(paths []string) (patterns []string, wanted map[string]string) {
	wanted = map[string]string{}
	above := map[string]bool{} // directories of which only a part is wanted
	whole := map[string]bool{}
	for _, p := range paths {
		whole[p] = true
	}
	for p := range whole {
		if !slices.ContainsFunc(parents(p), func(dir string) bool { return whole[dir] }) {
			for _, dir := range parents(p) {
				above[dir] = true
			}
		}
	}
	// The last pattern that matches decides: an outer directory comes before those in it.
	for _, dir := range slices.Sorted(maps.Keys(above)) {
		if dir == "" {
			patterns = append(patterns, allElse)
			continue
		}
		patterns = append(patterns, "!/"+escapePattern(dir)+"/", "/"+escapePattern(dir)+"/*")
	}
	for _, p := range slices.Sorted(maps.Keys(whole)) {
		if p == "" {
			continue
		}
		pattern := "!/" + escapePattern(p)
		patterns = append(patterns, pattern)
		wanted[pattern] = p
	}
	return patterns, wanted
}

// parents returns the directories above a path, the root "" included.
func parents(p string) (dirs []string) {
	for p != "" {
		if p = path.Dir(p); p == "." {
			p = ""
		}
		dirs = append(dirs, p)
	}
	return dirs
}

// partial reports whether the list excludes anything.
func (l *fileList) partial() bool { return slices.Contains(l.patterns, allElse) }

// notFound returns the listed paths that the walk did not find, according to the patterns that
// matched nothing.
func (l *fileList) notFound(unmatched []string) (paths []string) {
	for _, pattern := range unmatched {
		if p, is := l.wanted[pattern]; is {
			paths = append(paths, p)
		}
	}
	return paths
}

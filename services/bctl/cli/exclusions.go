package cli

import (
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/selection"
)

// exclusions are the exclusion flags: of one backup, of all backups of a shard, or of a filer.
type exclusions struct {
	patterns, files, ifPresent []string
	oneFileSystem              bool
	largerBytes                int64
}

// flags adds the flags to a command. root describes the directory to which patterns are relative.
func (x *exclusions) flags(cmd *cobra.Command, root string) {
	flags := cmd.Flags()
	flags.StringArrayVar(&x.patterns, "exclude", nil, "exclude files that match `PATTERN`, relative to "+root+" (may be repeated)")
	flags.StringArrayVar(&x.files, "exclude-file", nil, "exclude the patterns in `FILE`, written as in .gitignore (may be repeated)")
	flags.StringArrayVar(&x.ifPresent, "exclude-if-present", nil, "exclude the contents of directories that contain a file called `NAME` (may be repeated)")
	flags.BoolVar(&x.oneFileSystem, "one-file-system", false, "exclude file systems that are mounted below "+root)
	sizeFlag(flags, &x.largerBytes, "exclude-larger-than", "exclude files larger than `SIZE` (500MB, 2GiB)")
}

// apply returns s with the given flags in place of its values. An empty pattern or name, and a size
// of 0, remove the previous values.
func (x *exclusions) apply(cmd *cobra.Command, s backup.Selection) (backup.Selection, error) {
	given := cmd.Flags().Changed
	if given("exclude") || given("exclude-file") {
		s.Exclude = nil
		for _, path := range x.files {
			path, err := config.ExpandHome(path, os.LookupEnv)
			if err != nil {
				return s, fmt.Errorf("exclude file: %w", err)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return s, fmt.Errorf("exclude file: %w", err)
			}
			s.Exclude = append(s.Exclude, selection.Lines(string(text))...)
		}
		s.Exclude = append(s.Exclude, notEmpty(x.patterns)...)
	}
	if given("exclude-if-present") {
		s.ExcludeIfPresent = notEmpty(x.ifPresent)
	}
	setIf(given("one-file-system"), &s.OneFileSystem, x.oneFileSystem)
	setIf(given("exclude-larger-than"), &s.ExcludeLargerBytes, x.largerBytes)
	if _, err := selection.Compile(s); err != nil {
		return s, usage("%v", err)
	}
	return s, nil
}

// setIf sets a value if its flag is given.
func setIf[T any](given bool, to *T, value T) {
	if given {
		*to = value
	}
}

func notEmpty(texts []string) (kept []string) {
	for _, text := range texts {
		if text != "" {
			kept = append(kept, text)
		}
	}
	return kept
}

// A rowFunc adds a row to a table of names and values.
type rowFunc func(name, format string, args ...any)

// details prints the rows that add adds, with their values aligned. Long values are broken, so that
// they fit the terminal.
func (a *app) details(add func(row rowFunc)) error {
	var names, values []string
	most := 0
	add(func(name, format string, args ...any) {
		names, values = append(names, name), append(values, fmt.Sprintf(format, args...))
		most = max(most, utf8.RuneCountInString(name))
	})
	var lines []string
	for n, name := range names {
		for _, part := range flowed(strings.Split(values[n], " "), " ", "", besides(a.width(), most+len(gap))) {
			lines = append(lines, strings.TrimRight(padded(name, most, false)+gap+part, " "))
			name = ""
		}
	}
	return writeLines(a.out, lines)
}

// besides returns the width that a column leaves; 0 means no limit.
func besides(width, column int) int {
	if width == 0 {
		return 0
	}
	return max(width-column, 1)
}

// exclusionRows adds the rows that show a selection.
func exclusionRows(row rowFunc, s *backup.Selection) {
	for _, p := range s.Exclude {
		row("exclude", "%s", display(p))
	}
	for _, p := range s.ExcludeIfPresent {
		row("exclude if present", "%s", display(p))
	}
	if s.OneFileSystem {
		row("one file system", "yes")
	}
	if s.ExcludeLargerBytes > 0 {
		row("exclude larger", "%s", size(s.ExcludeLargerBytes))
	}
}

package e2e_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// pages returns the texts of the pages that describe the present state. Decisions and the changelog
// also describe the past.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "decisions" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != ".."):
			return filepath.SkipDir
		case filepath.Ext(path) != ".md" || d.Name() == "CHANGELOG.md":
			return nil
		}
		text, err := os.ReadFile(path)
		texts[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

func exists(path string) bool {
	_, err := os.Stat(filepath.Join("..", filepath.FromSlash(path)))
	return err == nil
}

// Each package, directory or file of the source that a page names exists. A name that ends with a
// hyphen is the beginning of several.
func TestPagesNamePackagesThatExist(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile("(?m)(?:`|^\\| *)((?:internal|services|e2e|migrations|proto|deploy)/[a-z0-9_/.-]*[a-z0-9_])(-?)")
	count := 0
	for page, text := range pages(t) {
		for _, found := range name.FindAllStringSubmatch(text, -1) {
			count++
			if found[2] == "" && !exists(found[1]) && found[1] != "deploy/.env" { // users write that one
				t.Errorf("%s names %s, which does not exist", page, found[1])
			}
		}
	}
	if count < 100 {
		t.Errorf("the pages name only %d packages", count)
	}
}

// Each package that a rule of the linter names exists.
func TestRulesNamePackagesThatExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../.golangci.yml")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, found := range regexp.MustCompile(`"!?\*\*/([a-z0-9/]+)/(?:\*/)?\*|github\.com/bctl/bctl/([a-z0-9/]*[a-z0-9])`).FindAllStringSubmatch(string(text), -1) {
		count++
		if name := found[1] + found[2]; !exists(name) {
			t.Errorf(".golangci.yml names %s, which does not exist", name)
		}
	}
	if count < 50 {
		t.Errorf(".golangci.yml names only %d packages", count)
	}
}

// The lines of comments end at column 100, with tabs of 4.
func TestCommentsAreWrapped(t *testing.T) {
	t.Parallel()
	comment := regexp.MustCompile(`^\t*// ?`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "../internal/index/ent" || strings.HasPrefix(d.Name(), ".") && path != ".."):
			return filepath.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, ".pb.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		number := 0
		for line := range strings.Lines(string(text)) {
			number++
			line = strings.TrimSuffix(line, "\n")
			if !comment.MatchString(line) || strings.HasPrefix(strings.TrimLeft(line, "\t"), "//go:") {
				continue
			}
			// A tab after "//" ends at column 4.
			columns := utf8.RuneCountInString(strings.ReplaceAll(strings.Replace(line, "//\t", "//  ", 1), "\t", "    "))
			if columns > 100 {
				t.Errorf("%s:%d: a comment has %d columns", path, number, columns)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

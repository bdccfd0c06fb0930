package e2e_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest   = regexp.MustCompile("`(Test[A-Za-z0-9]+(?:/[^`]+)?)`")
	writtenTest = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t \*testing\.T\)`)
)

// Each test that docs/security.md names exists, and what it names behind a slash is the name of a part of it.
func TestSecurityNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string][]string{} // texts of the test files, by directory
	homes := map[string][]string{}    // directories, by test
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		directory := filepath.Dir(path)
		packages[directory] = append(packages[directory], string(text))
		for _, found := range writtenTest.FindAllSubmatch(text, -1) {
			homes[string(found[1])] = append(homes[string(found[1])], directory)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	names := namedTest.FindAllSubmatch(page, -1)
	if len(names) < 100 {
		t.Errorf("the page names only %d tests", len(names))
	}
	for _, found := range names {
		test, parts, _ := strings.Cut(string(found[1]), "/")
		if parts == "…" {
			parts = "" // of which there are several
		}
		if len(homes[test]) == 0 {
			t.Errorf("there is no %s", test)
		}
		var beside strings.Builder
		for _, home := range homes[test] {
			beside.WriteString(strings.Join(packages[home], "\n"))
		}
		for part := range strings.SplitSeq(parts, "/") {
			if part != "" && part != "…" && !strings.Contains(beside.String(), `"`+part+`"`) {
				t.Errorf("%s has no part %q", test, part)
			}
		}
	}
}

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
	namedTest   = regexp.MustCompile("`(Test[A-Za-z0-9]+(?:/[^`]+)?)`|\\b(Test[A-Z][A-Za-z0-9]*)\\b")
	writtenTest = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t \*testing\.T\)`)
)

// testFiles are the tests of the project.
type testFiles struct {
	texts map[string]string   // of all test files of a directory
	homes map[string][]string // directories, by test
}

func readTestFiles(t *testing.T) testFiles {
	t.Helper()
	f := testFiles{map[string]string{}, map[string][]string{}}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		directory := filepath.Dir(path)
		f.texts[directory] += string(text) + "\n"
		for _, found := range writtenTest.FindAllSubmatch(text, -1) {
			f.homes[string(found[1])] = append(f.homes[string(found[1])], directory)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// has reports whether one of a test's directories has a part of it: a text in the test, or a
// script.
func (f testFiles) has(test, part string) bool {
	for _, home := range f.homes[test] {
		if strings.Contains(f.texts[home], `"`+part+`"`) {
			return true
		}
		if _, err := os.Stat(filepath.Join(home, "testdata", "script", part+".txtar")); err == nil {
			return true
		}
	}
	return false
}

// Each test that a page names exists, and what it names behind a slash is the name of a part of it.
func TestPagesNameTestsThatExist(t *testing.T) {
	t.Parallel()
	files := readTestFiles(t)
	for page, least := range map[string]int{"security.md": 100, "promises.md": 60, "invariants.md": 60} {
		text, err := os.ReadFile("../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		names := namedTest.FindAllStringSubmatch(string(text), -1)
		if len(names) < least {
			t.Errorf("%s names only %d tests", page, len(names))
		}
		for _, found := range names {
			test, parts, _ := strings.Cut(found[1]+found[2], "/")
			if len(files.homes[test]) == 0 {
				t.Errorf("%s: there is no %s", page, test)
				continue
			}
			for part := range strings.SplitSeq(parts, "/") {
				if part != "" && part != "…" && !files.has(test, part) { // "…": there are several
					t.Errorf("%s: %s has no part %q", page, test, part)
				}
			}
		}
	}
}

// The tour in a package's documentation names each of its files once. A line of it begins with the
// names of one or more files.
func TestDocsNameEachFile(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile(`(?m)^//\t((?:[a-z_0-9]+\.go(?:, ?|$| ))+)`)
	for _, directory := range []string{
		"services/walker/walk", "services/reader/read", "services/committer/commit", "services/bctl/cli", "services/bctl/serve",
		"internal/doctor", "internal/flow", "internal/forget", "internal/index/entindex", "internal/installation", "internal/journal",
		"internal/pack", "internal/restore", "internal/stall",
	} {
		files, err := filepath.Glob(filepath.Join("..", directory, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		tour := map[string]bool{}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), "\n// Package ") && !strings.HasPrefix(string(text), "// Package ") {
				continue
			}
			if filepath.Base(file) == "doc.go" {
				tour["doc.go"] = true
			}
			documentation, _, _ := strings.Cut(string(text), "\npackage ")
			for _, found := range named.FindAllStringSubmatch(documentation, -1) {
				for _, name := range strings.FieldsFunc(found[1], func(r rune) bool { return r == ',' || r == ' ' }) {
					if tour[name] {
						t.Errorf("%s: the tour names %s twice", directory, name)
					}
					tour[name] = true
				}
			}
		}
		for _, file := range files {
			if name := filepath.Base(file); !strings.HasSuffix(name, "_test.go") {
				if !tour[name] {
					t.Errorf("%s: the tour does not name %s", directory, name)
				}
				delete(tour, name)
			}
		}
		for name := range tour {
			t.Errorf("%s: the tour names %s, which does not exist", directory, name)
		}
	}
}

// The arrows in package flow's documentation name functions that exist.
func TestFlowNamesFunctions(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../internal/flow/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	step := regexp.MustCompile(`^//\t([a-z]+/[a-z/]+)`)
	named := regexp.MustCompile(`([a-z_/]+\.go): ([A-Za-z]+(?:, [A-Za-z]+)*)`)
	directory, names := "", 0
	for line := range strings.Lines(string(text)) {
		if found := step.FindStringSubmatch(line); found != nil {
			directory = found[1]
		}
		if !strings.Contains(line, "→") {
			continue
		}
		for _, found := range named.FindAllStringSubmatch(line, -1) {
			file := found[1]
			if !strings.Contains(file, "/") {
				file = directory + "/" + file
			}
			code, err := os.ReadFile(filepath.Join("..", file))
			if err != nil {
				t.Error(err)
				continue
			}
			for name := range strings.SplitSeq(found[2], ", ") {
				names++
				if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + name + `[(\[]`).Match(code) {
					t.Errorf("%s has no function %s", file, name)
				}
			}
		}
	}
	if names < 30 {
		t.Errorf("the arrows name only %d functions", names)
	}
}

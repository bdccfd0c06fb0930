package selection_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/selection"
)

func compile(tb testing.TB, patterns ...string) *selection.Matcher {
	tb.Helper()
	m, err := selection.Compile(backup.Selection{Exclude: patterns})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func TestExcluded(t *testing.T) {
	for _, test := range []struct {
		patterns string // separated by spaces
		path     string // with a slash at the end: a directory
		want     bool
	}{
		{"*.log", "a.log", true},
		{"*.log", "x/y/a.log", true},
		{"*.log", "a.logs", false},
		{"/a", "a", true},
		{"/a", "x/a", false},
		{"x/a", "x/a", true},
		{"x/a", "y/x/a", false},
		{"cache/", "x/cache/", true},
		{"cache/", "x/cache", false},
		{"*.log !keep.log", "keep.log", false},
		{"!keep.log *.log", "keep.log", true},
		{"**/b", "b", true},
		{"**/b", "a/a/b", true},
		{"a/**", "a/", false},
		{"a/**", "a/x/y", true},
		{"a/**/b", "a/b", true},
		{"a/**/b", "a/x/y/b", true},
		{"a/**/b", "ax/b", false},
		{"a/*/b", "a/x/y/b", false},
		{"a/?", "a//", false},
		{"[a-c]x", "bx", true},
		{"[!a-c]x", "bx", false},
		{"[!a-c]x", "\xffx", true},
		{`\#a`, "#a", true},
		{`\!a`, "!a", true},
	} {
		path, isDir := strings.CutSuffix(test.path, "/")
		if got := compile(t, strings.Fields(test.patterns)...).Matches(path, isDir); got != test.want {
			t.Errorf("patterns %q, path %q: excluded %v, want %v", test.patterns, test.path, got, test.want)
		}
	}
}

func TestOtherRules(t *testing.T) {
	if !compile(t).Empty() {
		t.Error("a selection without rules is not Empty")
	}
	m, err := selection.Compile(backup.Selection{ExcludeIfPresent: []string{"CACHEDIR.TAG", ".nobackup"}, ExcludeLargerBytes: 100})
	if err != nil {
		t.Fatal(err)
	}
	if m.Empty() || m.HasPatterns() || !m.IsMarker(".nobackup") || m.IsMarker("nobackup") || m.TooLarge(100) || !m.TooLarge(101) {
		t.Error("markers and sizes are not what the selection says")
	}
}

func TestInvalid(t *testing.T) {
	for pattern, want := range map[string]string{
		"":                        "empty",
		"   ":                     "empty",
		"!":                       "empty",
		"/":                       "empty",
		"#*#":                     "comment",
		`a\`:                      "escapes nothing",
		"a[bc":                    `without its "]"`,
		"a[[:nosuch:]]":           "unknown class",
		"a//b":                    "empty component",
		"a//":                     "empty component",
		"a\nb":                    "newline",
		strings.Repeat("a", 5000): "more than 4096",
	} {
		_, err := selection.Compile(backup.Selection{Exclude: []string{pattern}})
		if !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("pattern %q: error %v, want one that says %q", pattern, err, want)
		}
	}
	for _, s := range []backup.Selection{{ExcludeLargerBytes: -1}, {ExcludeIfPresent: []string{"a/b"}}} {
		if _, err := selection.Compile(s); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%+v: error %v, want ErrInvalid", s, err)
		}
	}
}

func TestLines(t *testing.T) {
	got := selection.Lines("# comment\n\n*.o\r\n   \n\\#a\n")
	if want := []string{"*.o", `\#a`}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A pattern for which naive matchers take exponential time.
func TestManyStars(t *testing.T) {
	compile(t, "/"+strings.Repeat("**/*a*", 300)+"/b").Matches(strings.Repeat("a", 255)+"/"+strings.Repeat("a/", 1500)+"c", false)
}

// TestAsGit compares with git check-ignore on one tree and many random lists of patterns.
func TestAsGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	root := t.TempDir()
	git(t, root, nil, "init", "-q")
	random := rand.New(rand.NewPCG(1, 2))
	paths := makeTree(t, root, random)
	lists := 400
	if testing.Short() {
		lists = 50
	}
	matches, compared := 0, 0
	for range lists {
		patterns := make([]string, 1+random.IntN(4))
		for i := range patterns {
			patterns[i] = randomPattern(random)
		}
		patterns = slices.DeleteFunc(patterns, func(p string) bool { // git ignores it
			_, err := selection.Compile(backup.Selection{Exclude: []string{p}})
			return err != nil
		})
		want := ignoredByGit(t, root, patterns, paths)
		m := compile(t, patterns...)
		for _, path := range paths {
			got := excludedFromTop(m, path)
			if got != want[strings.TrimSuffix(path, "/")] {
				t.Errorf("patterns %q, path %q: excluded %v, git says %v", patterns, path, got, !got)
			}
			if compared++; got {
				matches++
			}
		}
		if t.Failed() {
			break
		}
	}
	if matches < compared/50 {
		t.Errorf("only %d of %d comparisons were of excluded paths: the patterns are no test", matches, compared)
	}
	t.Logf("%d comparisons, %d excluded", compared, matches)
}

// git silently ignores the patterns that Compile refuses.
func TestInvalidPatternsMatchNothingInGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed")
	}
	root := t.TempDir()
	git(t, root, nil, "init", "-q")
	random := rand.New(rand.NewPCG(3, 4))
	paths := makeTree(t, root, random)
	for range 3000 {
		p := randomPattern(random)
		if _, err := selection.Compile(backup.Selection{Exclude: []string{p}}); err == nil || strings.Contains(p, "//") {
			continue // git accepts some empty components, by accident, since no path has any
		}
		if ignored := ignoredByGit(t, root, []string{p}, paths); len(ignored) > 0 {
			t.Errorf("pattern %q is refused, but git ignores %d paths by it", p, len(ignored))
		}
	}
}

// excludedFromTop calls Matches for each directory on the way to path, as a walk does.
func excludedFromTop(m *selection.Matcher, path string) bool {
	path, isDir := strings.CutSuffix(path, "/")
	for i := range len(path) {
		if path[i] == '/' && m.Matches(path[:i], true) {
			return true
		}
	}
	return m.Matches(path, isDir)
}

var names = []string{"a", "b", "ab", "aa", "abc", "b.o", "a.log", "x[1]", "#a", "!b", "a ", "A", "é", "\xff", "-", "]", "\\", "1"}

// makeTree creates a tree of random names and returns its paths. Directories end in a slash.
func makeTree(t *testing.T, root string, random *rand.Rand) (paths []string) {
	dirs := []string{"a/", "a/b/", "a/b/a/", "ab/", "ab/a/", "b/", "b/ab/", "b/ab/abc/"}
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range append(dirs, "") {
		if dir != "" {
			paths = append(paths, dir)
		}
		for _, name := range names {
			path := filepath.Join(root, dir) + "/" + name
			if _, err := os.Lstat(path); err == nil || random.IntN(3) == 0 {
				continue
			}
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			paths = append(paths, dir+name)
		}
	}
	return paths
}

func randomPattern(random *rand.Rand) string {
	pieces := []string{"a", "b", "ab", "abc", "*", "**", "?", "/", "/", "**/", "/**", "/**/", ".o", "[ab]", "[!a]", "[^a]", "[a-c]",
		"[[:alpha:]]", "[[:upper:][:digit:]]", "[]-]", "[\\]]", "[a\\-c]", "[[:x]", "[c-a]", "[/]", "\\a", "\\*", "\\[", "\\ ", " ", "#", "!",
		"é", "\xff", "-", "x[1]", "x\\[1]", "[", "]", "\\", "\\\\", "[!-/]", "[a-]", "[--0]", "[[-a]"}
	var b strings.Builder
	if random.IntN(5) == 0 {
		b.WriteByte('!')
	}
	for range 1 + random.IntN(5) {
		if random.IntN(2) == 0 {
			b.WriteString(pieces[random.IntN(12)])
		} else {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
	}
	return b.String()
}

func ignoredByGit(t *testing.T, root string, patterns, paths []string) map[string]bool {
	if err := os.WriteFile(filepath.Join(root, ".git/info/exclude"), []byte(strings.Join(patterns, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var stdin bytes.Buffer
	for _, p := range paths {
		// git determines itself whether a path is a directory, and would read the slash as an empty
		// name.
		fmt.Fprintf(&stdin, "./%s\x00", strings.TrimSuffix(p, "/"))
	}
	ignored := map[string]bool{}
	for p := range bytes.SplitSeq(git(t, root, &stdin, "check-ignore", "--no-index", "--stdin", "-z"), []byte{0}) {
		if len(p) > 0 {
			ignored[strings.TrimPrefix(string(p), "./")] = true
		}
	}
	return ignored
}

func git(t *testing.T, dir string, stdin *bytes.Buffer, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "core.excludesFile=/dev/null", "-c", "core.ignoreCase=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	if stdin != nil {
		cmd.Stdin = stdin
	}
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); ok && (exit.ExitCode() != 1 || args[0] != "check-ignore") {
		t.Fatalf("git %q: %v: %s", args, err, exit.Stderr)
	} else if err != nil && !ok {
		t.Fatal(err)
	}
	return out
}

// A watched Matcher reports which patterns match nothing, without an allocation.
func TestUnmatched(t *testing.T) {
	for _, test := range []struct{ patterns, paths, want string }{
		{"*.log *.tmp", "a.log b", "*.tmp"},
		{"*.log *.tmp", "", "*.log *.tmp"},
		{"a b c", "c a", "b"},
		{"*.log a.log", "a.log", ""},  // the last one decides, and both match
		{"*.log !a.log", "a.log", ""}, // both matched the path that is included again
		{"*.log !a.log", "b.log", "!a.log"},
		{"cache/ cache", "cache", "cache/"}, // a file
		{"cache/ cache", "cache/", ""},
		{"/x a", "y/x a/", "/x"},
		{"a a", "a", ""},
		{"", "a", ""},
	} {
		m := compile(t, strings.Fields(test.patterns)...)
		if got := m.Unmatched(); got != nil {
			t.Errorf("%q: %q of a Matcher that nobody watches", test.patterns, got)
		}
		m.Watch()
		for path := range strings.FieldsSeq(test.paths) {
			name, isDir := strings.CutSuffix(path, "/")
			want := compile(t, strings.Fields(test.patterns)...).Matches(name, isDir)
			if got := m.Matches(name, isDir); got != want {
				t.Errorf("%q: %s is excluded: %v, want %v", test.patterns, path, got, want)
			}
		}
		if got := strings.Join(m.Unmatched(), " "); got != test.want {
			t.Errorf("%q of %q: %q match nothing, want %q", test.patterns, test.paths, got, test.want)
		}
	}
	m := compile(t, "*.log", "a/*/b", "[a-c]?", "**/x")
	m.Watch()
	if n := testing.AllocsPerRun(100, func() { m.Matches("a/y/b", false); m.Matches("nothing", true) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzExcluded(f *testing.F) {
	f.Add("a/**/[!b-c]*\\?", "a/x/y/dd?", true)
	f.Fuzz(func(t *testing.T, pattern, path string, isDir bool) {
		m, err := selection.Compile(backup.Selection{Exclude: []string{pattern}})
		if err != nil {
			if !errors.Is(err, backup.ErrInvalid) {
				t.Errorf("%q: %v", pattern, err)
			}
			return
		}
		m.Matches(path, isDir)
	})
}

func BenchmarkExcluded(b *testing.B) {
	m := compile(b, "*.log", "*~", "/var/cache/", "node_modules/", ".DS_Store", "**/target/debug/**", "*.py[co]", "/home/*/.cache")
	b.ReportAllocs()
	for b.Loop() {
		m.Matches("home/user/src/project/internal/source/main.go", false)
	}
}

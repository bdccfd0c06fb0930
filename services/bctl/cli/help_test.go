package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// everyCommand calls do with each command of bctl, including the root.
func everyCommand(root *cobra.Command, do func(*cobra.Command)) {
	for queue := []*cobra.Command{root}; len(queue) > 0; queue = queue[1:] {
		queue = append(queue, queue[0].Commands()...)
		do(queue[0])
	}
}

// The help of every command fits into a terminal of 80 columns, also if it is shown because of an
// error.
func TestHelpFitsIntoATerminal(t *testing.T) {
	var out bytes.Buffer
	root := (&app{out: &out, term: &terminal{}}).root()
	root.InitDefaultHelpFlag()
	everyCommand(root, func(cmd *cobra.Command) {
		out.Reset()
		if err := cmd.Help(); err != nil {
			t.Fatal(err)
		}
		if out.Len() == 0 {
			t.Fatalf("%s has no help", cmd.CommandPath())
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
				t.Errorf("%s --help has a line of %d columns: %s", cmd.CommandPath(), n, line)
			}
		}
	})
}

// The help of bctl lists each command in a group.
func TestCommandsAreGrouped(t *testing.T) {
	var out bytes.Buffer
	root := (&app{out: &out, term: &terminal{}}).root()
	if err := root.Help(); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range root.Commands() {
		if !cmd.Hidden && (!root.ContainsGroup(cmd.GroupID) || !strings.Contains(out.String(), "\n  "+cmd.Name()+" ")) {
			t.Errorf("the help does not list %s, which is in group %q", cmd.Name(), cmd.GroupID)
		}
	}
}

func TestDidYouMean(t *testing.T) {
	candidates := []string{"snapshot", "status", "restore", "exclude", "exclude-file", "/export/home", "/export/projects", "nas1", "nas2", "latest", "ls"}
	for given, want := range map[string]string{
		"snpashot": "snapshot", "snapshots": "snapshot", "Status": "status", "resotre": "restore", "exlude": "exclude", "excludefile": "exclude-file",
		"/export/hoem": "/export/home", "export/home": "/export/home", "nas": "nas1", "nas12": "nas1", "lastest": "latest", "ll": "ls",
		"": "", "x": "", "verify": "", "/srv/data": "",
	} {
		asked := ""
		if want != "" {
			asked = "; did you mean " + want + "?"
		}
		if got := didYouMean(given, candidates); got != asked {
			t.Errorf("%q: %q, want %q", given, got, asked)
		}
	}
}

// Every command has a description and an example.
func TestHelp(t *testing.T) {
	a := &app{out: os.Stdout, term: &terminal{}}
	commands := []string{}
	for queue := a.root().Commands(); len(queue) > 0; queue = queue[1:] {
		cmd := queue[0]
		if cmd.Hidden {
			continue // another name of a command
		}
		queue = append(queue, cmd.Commands()...)
		commands = append(commands, cmd.CommandPath())
		if cmd.Short == "" || !cmd.HasSubCommands() && cmd.Example == "" {
			t.Errorf("%s has no description or example", cmd.CommandPath())
		}
	}
	docs, err := os.ReadFile(filepath.FromSlash("../../../docs/cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(commands)
	for _, c := range commands {
		if !strings.Contains(string(docs), "`"+c) {
			t.Errorf("docs/cli.md does not describe %s", c)
		}
	}
}

// Each command that a page names exists. Decisions and the changelog also describe the past.
func TestPagesNameCommandsThatExist(t *testing.T) {
	root := (&app{out: &bytes.Buffer{}, term: &terminal{}}).root()
	root.InitDefaultHelpCmd()
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/formats/*.md"} {
		found, err := filepath.Glob(filepath.Join("../../..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	named := regexp.MustCompile("(?m)(?:`|^)bctl ([a-z][a-z-]*)(?: ([a-z][a-z-]*)\\b)?")
	count := 0
	for _, page := range pages {
		if filepath.Base(page) == "CHANGELOG.md" {
			continue
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range named.FindAllStringSubmatch(codeOf(string(text)), -1) {
			count++
			cmd, rest, err := root.Find([]string{found[1]})
			if err != nil || cmd == root {
				t.Errorf("%s names bctl %s, which does not exist", page, found[1])
				continue
			}
			if cmd.Runnable() || found[2] == "" || len(rest) > 0 {
				continue
			}
			if sub, _, err := cmd.Find([]string{found[2]}); err != nil || sub == cmd {
				t.Errorf("%s names %q, which does not exist", page, found[0])
			}
		}
	}
	if count < 300 {
		t.Errorf("the pages name only %d commands", count)
	}
}

// codeOf returns the lines of a page that are code, without indentation, and the others with a
// space before them.
func codeOf(page string) string {
	var lines []string
	fenced := false
	for line := range strings.Lines(page) {
		switch indented, isCode := strings.CutPrefix(line, "    "); {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case fenced || isCode:
			lines = append(lines, strings.TrimLeft(indented, " "))
		default:
			lines = append(lines, " "+line)
		}
	}
	return strings.Join(lines, "")
}

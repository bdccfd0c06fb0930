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
	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/policy"
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

// Each flag that takes a value names the value in capitals, and has a description on one line,
// which the help breaks.
func TestFlagsNameTheirValues(t *testing.T) {
	root := (&app{out: &bytes.Buffer{}, term: &terminal{}}).root()
	everyCommand(root, func(cmd *cobra.Command) {
		check := func(f *pflag.Flag) {
			value, text := pflag.UnquoteUsage(f)
			switch {
			case f.Hidden:
			case strings.TrimSpace(text) == "" || strings.HasPrefix(text, " "):
				t.Errorf("%s --%s has no description: %q", cmd.CommandPath(), f.Name, text)
			case value != strings.ToUpper(value):
				t.Errorf("%s --%s %s does not name its value in capitals", cmd.CommandPath(), f.Name, value)
			case strings.Contains(text, "\n"):
				t.Errorf("%s --%s has a line break in its description", cmd.CommandPath(), f.Name)
			case strings.Contains(text, "the same of"):
				t.Errorf("%s --%s refers to another flag: flags are listed by name", cmd.CommandPath(), f.Name)
			}
		}
		cmd.LocalNonPersistentFlags().VisitAll(check)
		cmd.PersistentFlags().VisitAll(check)
	})
}

// The paragraphs of the help fill its lines. Lists, which are indented, do not.
func TestHelpFillsItsLines(t *testing.T) {
	root := (&app{out: &bytes.Buffer{}, term: &terminal{}}).root()
	everyCommand(root, func(cmd *cobra.Command) {
		lines := strings.Split(cmd.Long, "\n")
		for n, line := range lines[1:] {
			before := lines[n]
			first, _, _ := strings.Cut(line, " ")
			if before == "" || first == "" || strings.HasPrefix(before, " ") {
				continue
			}
			if width := utf8.RuneCountInString(before + " " + first); width <= helpWidth {
				t.Errorf("%s: %q would fit on the line %q", cmd.CommandPath(), first, before)
			}
		}
	})
}

// The examples of the help are valid: bctl accepts their flags, values and arguments.
func TestExamplesAreValid(t *testing.T) {
	count := 0
	everyCommand((&app{out: &bytes.Buffer{}, term: &terminal{}}).root(), func(cmd *cobra.Command) {
		text := strings.ReplaceAll(cmd.Example, "\\\n", " ")
		for line := range strings.Lines(text) {
			_, line, found := strings.Cut(" "+strings.TrimSpace(line), " bctl ")
			if !found {
				continue
			}
			line, _, _ = strings.Cut(line, " | ")
			count++
			words := shellWords(line)
			root := (&app{out: &bytes.Buffer{}, term: &terminal{}}).root()
			root.InitDefaultHelpCmd()
			about, rest, err := root.Find(words)
			if err == nil {
				err = about.ParseFlags(rest)
			}
			if err == nil {
				err = about.ValidateArgs(about.Flags().Args())
			}
			if err == nil && about.Flags().Lookup("window") != nil {
				windows, _ := about.Flags().GetStringArray("window")
				_, err = policy.Parse(backup.Policy{Schedule: "@daily", Windows: windows})
			}
			if err != nil {
				t.Errorf("%s --help has an invalid example: bctl %s: %v", cmd.CommandPath(), line, err)
			}
		}
	})
	if count < 100 {
		t.Errorf("only %d examples", count)
	}
}

// shellWords splits a line as a shell does. It knows single and double quotes, and ends at a
// redirection.
func shellWords(line string) (words []string) {
	for _, found := range regexp.MustCompile(`(?:'[^']*'|"[^"]*"|[^ '"])+`).FindAllString(line, -1) {
		if strings.HasPrefix(found, ">") {
			break
		}
		words = append(words, strings.NewReplacer("'", "", `"`, "").Replace(found))
	}
	return words
}

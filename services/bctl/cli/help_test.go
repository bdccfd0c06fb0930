package cli

import (
	"bytes"
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

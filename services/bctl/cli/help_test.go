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

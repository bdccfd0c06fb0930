package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A second value of a flag that selects what a command applies to is an error: the command would
// apply to the last one only.
func TestSelectorsAreGivenOnce(t *testing.T) {
	tried := 0
	everyCommand((&app{out: &bytes.Buffer{}, term: &terminal{}}).root(), func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if _, list := f.Value.(pflag.SliceValue); list || !slices.Contains(selectors, f.Name) {
				return
			}
			value := "a"
			if f.Name == "role" {
				value = "walker"
			}
			args := append(strings.Fields(cmd.CommandPath())[1:], "--"+f.Name, value, "--"+f.Name, value)
			for _, word := range strings.Fields(cmd.Use)[1:] {
				if strings.HasPrefix(word, "--") {
					break
				}
				args = append(args, "x")
			}
			status, _, stderr := runHere(t, nil, args...)
			if status != exitUsage || !strings.Contains(stderr, "is given 2 times, and takes one value") {
				t.Errorf("%q: status %d, %s", args, status, stderr)
			}
			tried++
		})
	})
	if tried < 15 {
		t.Errorf("%d flags tried", tried)
	}
}

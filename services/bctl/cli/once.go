package cli

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// selectors are flags that select what a command applies to.
var selectors = []string{"filer", "shard", "path", "policy", "site", "role"}

// A once is the value of a flag that can be given once: if it were given twice, the command would
// silently apply to the last value only. It counts the values. Completion sets them several times.
type once struct {
	pflag.Value
	given int
}

func (v *once) Set(text string) error {
	v.given++
	return v.Value.Set(text)
}

// countSelectors makes the selectors of all commands that take one value count their values.
func countSelectors(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, list := f.Value.(pflag.SliceValue); !list && slices.Contains(selectors, f.Name) {
			f.Value = &once{Value: f.Value}
		}
	})
	for _, c := range cmd.Commands() {
		countSelectors(c)
	}
}

// selectedTwice refuses a second value of a selector that takes one.
func selectedTwice(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if v, ok := f.Value.(*once); ok && v.given > 1 && err == nil {
			err = usage("--%s is given %d times, and takes one value: run the command once per value", f.Name, v.given)
		}
	})
	return err
}

package cli

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// selectors are flags that select what a command applies to.
var selectors = []string{"filer", "shard", "path", "policy", "site", "role"}

// A once is the value of a flag that can be given once: if it were given twice, the command would
// silently apply to the last value only.
type once struct {
	pflag.Value
	given bool
}

func (v *once) Set(text string) error {
	if v.given {
		return wrongValue("is the second value, and only one can be given: run the command once per value")
	}
	v.given = true
	return v.Value.Set(text)
}

// selectOnce makes each selector that takes one value refuse a second one, in all commands.
func selectOnce(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, list := f.Value.(pflag.SliceValue); !list && slices.Contains(selectors, f.Name) {
			f.Value = &once{Value: f.Value}
		}
	})
	for _, c := range cmd.Commands() {
		selectOnce(c)
	}
}

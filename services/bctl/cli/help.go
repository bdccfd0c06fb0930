package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Help: the commands in groups, the global flags in a topic of their own, and what the user may
// have meant by a name that does not exist.

// helpWidth is the maximum width of the help, in characters.
const helpWidth = 80

// The groups of commands, in the order of the help.
const (
	useGroup   = "use"
	fleetGroup = "fleet"
	serveGroup = "serve"
	adminGroup = "admin"
)

var groups = []*cobra.Group{
	{ID: useGroup, Title: "Back up and restore:"},
	{ID: fleetGroup, Title: "Fleet:"},
	{ID: serveGroup, Title: "Services:"},
	{ID: adminGroup, Title: "Administration:"},
}

// addGroup adds commands to root, as one group of its help.
func addGroup(root *cobra.Command, id string, commands ...*cobra.Command) {
	for _, cmd := range commands {
		cmd.GroupID = id
	}
	root.AddCommand(commands...)
}

// helpTemplate is the part of a command's help that follows its description.
const helpTemplate = `Usage:
  {{if doesItself .}}{{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}{{if doesItself .}}
  {{end}}{{.CommandPath}} COMMAND [flags]{{end}}{{if .Aliases}}

Aliases:
  {{.NameAndAliases}}{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$all := .Commands}}{{if not .Groups}}

Commands:{{range $all}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{else}}{{range $group := .Groups}}

{{.Title}}{{range $all}}{{if and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{localFlags . | trimTrailingWhitespaces}}{{end}}

{{if .HasAvailableSubCommands}}Describe a command: {{.CommandPath}} COMMAND --help
{{end}}List the global flags (--repo, --config, --json …): bctl help flags
`

// setHelp gives root and its subcommands bctl's help.
func setHelp(root *cobra.Command) {
	cobra.AddTemplateFunc("localFlags", func(cmd *cobra.Command) string { return localFlags(cmd).FlagUsagesWrapped(helpWidth) })
	cobra.AddTemplateFunc("doesItself", doesItself)
	cobra.EnableCommandSorting = false // the most used come first
	root.SetUsageTemplate(helpTemplate)
	root.AddGroup(groups...)
}

// newHelp returns the help command. Its one topic beside the commands is "flags".
func newHelp(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Describe a command, or the global flags",
		Example: "  bctl help snapshot ls\n  bctl help flags",
		RunE: func(cmd *cobra.Command, words []string) error {
			root := cmd.Root()
			if len(words) == 1 && words[0] == "flags" {
				_, err := fmt.Fprintf(a.out, "These flags work with every command. The environment variables in parentheses\n"+
					"have the same effect; docs/configuration.md lists all settings.\n\n%s", root.PersistentFlags().FlagUsagesWrapped(helpWidth))
				return err
			}
			about, rest, err := root.Find(words)
			if err != nil || len(rest) > 0 {
				return unknownCommand(about, rest[0])
			}
			about.InitDefaultHelpFlag() // so that it is listed
			return about.Help()
		},
		ValidArgsFunction: func(cmd *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
			about, rest, err := cmd.Root().Find(words)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []string
			for _, c := range about.Commands() {
				if c.IsAvailableCommand() {
					names = append(names, cobra.CompletionWithDesc(c.Name(), c.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// addAliases gives commands the names that other tools have for them.
func addAliases(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		if c.Name() == "ls" {
			c.Aliases = []string{"list"}
		}
		addAliases(c)
	}
}

// doesItself reports whether a command does something without a subcommand.
func doesItself(cmd *cobra.Command) bool { return cmd.HasParent() && cmd.Annotations[onlyGroups] == "" }

// localFlags returns the flags of a command without the global ones, of which the root's help would
// otherwise be full.
func localFlags(cmd *cobra.Command) *pflag.FlagSet {
	if cmd.HasParent() {
		return cmd.LocalFlags()
	}
	local := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	local.SortFlags = false
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if cmd.PersistentFlags().Lookup(f.Name) == nil || slices.Contains([]string{"repo", "config", "json"}, f.Name) {
			local.AddFlag(f)
		}
	})
	return local
}

// unknownCommand is the error for a command that does not exist.
func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	return usage("unknown command %q%s (%s --help lists the commands)", name, didYouMean(name, names), cmd.CommandPath())
}

// unknownFlag is the error for a flag that does not exist. given is the flag as pflag reports it.
func unknownFlag(cmd *cobra.Command, given string) error {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if !strings.HasPrefix(given, "--") {
		names = nil // one letter resembles everything
	}
	return usage("unknown flag %s%s (%s --help lists the flags)", given, didYouMean(strings.TrimPrefix(given, "--"), names, "--"), cmd.CommandPath())
}

// didYouMean returns a question that names the candidate closest to a name, or nothing if none is
// close.
func didYouMean(name string, candidates []string, prefix ...string) string {
	best, least := "", min(len(name), 6)/2+1
	for _, c := range candidates {
		if d := edits(name, c); d < least {
			best, least = c, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + strings.Join(prefix, "") + display(best) + "?"
}

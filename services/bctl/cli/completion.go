package cli

import (
	"io"

	"github.com/spf13/cobra"
)

func newCompletion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:       "completion bash|zsh|fish|powershell",
		Short:     "Print a completion script for a shell",
		Example:   "  source <(bctl completion bash)",
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		Args:      args(cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs)),
		RunE: func(cmd *cobra.Command, shells []string) error {
			root := cmd.Root()
			switch shells[0] {
			case "bash":
				if err := root.GenBashCompletionV2(a.out, true); err != nil {
					return err
				}
				_, err := io.WriteString(a.out, bashWords)
				return err
			case "zsh":
				return root.GenZshCompletion(a.out)
			case "fish":
				return root.GenFishCompletion(a.out, true)
			}
			return root.GenPowerShellCompletionWithDesc(a.out)
		},
	}
}

// bashWords replaces the function of cobra's script that needs the bash-completion package.
// Readline splits words at ":" and "=", and they have to be joined again: "latest", ":" and "etc/"
// are one.
const bashWords = `
__bctl_init_completion()
{
    COMPREPLY=()
    if declare -F _get_comp_words_by_ref >/dev/null 2>&1; then
        _get_comp_words_by_ref "$@" cur prev words cword
        return
    fi

    # The bash-completion package is not loaded. Up to the cursor, join the
    # words that readline splits at ":" and "=" without a blank between them.
    local rest=${COMP_LINE:0:COMP_POINT} i word blank joins=no
    words=() cword=-1
    for ((i = 0; i <= COMP_CWORD; i++)); do
        blank=${rest%%[![:space:]]*}
        rest=${rest#"$blank"}
        word=${COMP_WORDS[i]}
        ((i < COMP_CWORD)) || word=$rest
        rest=${rest#"$word"}
        if [[ $word == [:=]* ]]; then
            joins=yes
        fi
        if ((i == 0)) || [[ -n $blank || $joins == no ]]; then
            words[++cword]=$word
        else
            words[cword]+=$word
        fi
        joins=no
        if [[ $word == *[:=] ]]; then
            joins=yes
        fi
    done
    cur=${words[cword]}
    prev=
    ((cword == 0)) || prev=${words[cword-1]}
}
`

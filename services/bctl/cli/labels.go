package cli

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// labelFlag adds --label to a command that selects filers by labels.
func labelFlag(cmd *cobra.Command, to *[]string) {
	cmd.Flags().StringArrayVar(to, "label", nil, "only filers with the label `KEY=VALUE` (may be repeated: with all of them)")
}

// parseLabels parses KEY=VALUE arguments.
func parseLabels(given []string) (map[string]string, error) {
	labels, err := changeLabels(nil, given)
	if err != nil {
		return nil, err
	}
	for _, text := range given {
		if !strings.Contains(text, "=") {
			return nil, usage("--label %q is not KEY=VALUE", text)
		}
	}
	return labels, nil
}

// changeLabels returns labels with the changes applied: KEY=VALUE sets a label, and KEY- removes
// one.
func changeLabels(labels map[string]string, given []string) (map[string]string, error) {
	changed := maps.Clone(labels)
	if changed == nil {
		changed = map[string]string{}
	}
	for _, text := range given {
		key, value, set := strings.Cut(text, "=")
		if !set {
			var removed bool
			if key, removed = strings.CutSuffix(text, "-"); !removed {
				return nil, usage("--label %q is not KEY=VALUE, or KEY- to remove one", text)
			}
		}
		if !isLabel(key, value) {
			return nil, usage("--label %q: a key has no spaces, commas or - at its end, a value no commas", text)
		}
		if set {
			changed[key] = value
		} else {
			delete(changed, key)
		}
	}
	return changed, nil
}

// isLabel reports whether the key and value form a valid label.
func isLabel(key, value string) bool {
	return key != "" && !strings.ContainsAny(key, " \t\n,") && !strings.HasSuffix(key, "-") && !strings.ContainsAny(value, "\n,")
}

// labelText returns labels for display: "env=prod,rack=7".
func labelText(labels map[string]string) string {
	parts := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, key+"="+labels[key])
	}
	return strings.Join(parts, ",")
}

package cli

import (
	"bytes"
	"context"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/bctl/bctl/internal/index"
)

func newExport(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "Print filers, shards and policies as a file for bctl apply",
		Long: `Prints the registered filers with their shards, and the policies, as a file that
bctl apply reads. Defaults and retired filers and shards are omitted. Applied to
the same repository, the file changes nothing; applied to an empty one, it
registers everything.`,
		Example: `  bctl export >fleet.yaml
  bctl export --json | jq '.filers[].name'`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error { return a.export(cmd.Context(), i) })
		},
	}
}

func (a *app) export(ctx context.Context, i index.Index) error {
	fleet, err := declareAll(ctx, i)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	if err := encoder.Encode(fleet); err != nil {
		return err
	}
	if a.json {
		var object any
		if err := yaml.Unmarshal(text.Bytes(), &object); err != nil {
			return err
		}
		return a.print(object)
	}
	_, err = a.out.Write(text.Bytes())
	return err
}

// declareAll returns the declaration of everything that is registered and not retired.
func declareAll(ctx context.Context, i index.Catalog) (declaredFleet, error) {
	fleet := declaredFleet{Filers: []declaredFiler{}, Policies: []declaredPolicy{}}
	filers, err := i.ListFilers(ctx, index.FilerFilter{})
	if err != nil {
		return fleet, err
	}
	shards, err := i.ListShards(ctx, index.ShardFilter{})
	if err != nil {
		return fleet, err
	}
	policies, err := i.ListPolicies(ctx)
	if err != nil {
		return fleet, err
	}
	of := map[string][]declaredShard{}
	for n := range shards {
		s := &shards[n]
		of[s.Filer.Name] = append(of[s.Filer.Name], declareShard(&s.Shard))
	}
	for n := range filers {
		d := declareFiler(&filers[n].Filer)
		d.Shards = of[d.Name]
		fleet.Filers = append(fleet.Filers, d)
	}
	for n := range policies {
		fleet.Policies = append(fleet.Policies, declarePolicy(&policies[n]))
	}
	return fleet, nil
}

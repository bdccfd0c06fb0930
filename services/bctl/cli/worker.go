package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/services/bctl/open"
)

func newWorker(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "worker", Short: "List services, and drain workers", Aliases: []string{"workers"},
		Long: `Lists the services of a fleet, and stops walkers and readers from taking new
work, for instance before an upgrade.`,
	})
	cmd.AddCommand(newWorkerLs(a), newWorkerDrain(a), newWorkerUndrain(a))
	return cmd
}

// A services selects services of a fleet.
type services struct{ role, site string }

func (s *services) flags(a *app, cmd *cobra.Command, roles string) {
	cmd.Flags().StringVar(&s.role, "role", "", "only those of this `ROLE`: "+roles)
	cmd.Flags().StringVar(&s.site, "site", "", "only those at this `SITE`")
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(strings.Split(roles, ", "), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("site", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.completeServices(cmd, func(i *flow.Instance) string { return i.Site })
	})
}

func (s *services) check() error {
	switch flow.Role(s.role) {
	case "", flow.RoleCommitter, flow.RoleWalker, flow.RoleReader, flow.RolePruner, flow.RoleScrubber, flow.RoleRestorer:
	default:
		return usage("--role %s is not committer, walker, reader, pruner, scrubber or restorer", display(s.role))
	}
	if s.site == "" {
		return nil
	}
	return wrongSetting(backup.CheckSite(s.site))
}

func (s *services) among(all []flow.Instance) []flow.Instance {
	return slices.DeleteFunc(slices.Clone(all), func(i flow.Instance) bool {
		return s.role != "" && string(i.Role) != s.role || s.site != "" && i.Site != s.site
	})
}

// indexWithin is how long a command that otherwise does not need the index waits for it to identify
// the repository.
const indexWithin = 3 * time.Second

// withServices connects to NATS. It does so even while the index is unavailable, so that services
// that wait for the index can be seen.
func (a *app) withServices(ctx context.Context, do func(*flow.Conn) error) error {
	if !a.cfg.Fleet() {
		return usage("workers exist only in a fleet: set nats.url in --config FILE, or BCTL_NATS")
	}
	repository, err := a.repositoryID(ctx)
	if err != nil {
		return err
	}
	conn, err := open.NATS(a.cfg, "bctl worker", repository, slog.New(slog.DiscardHandler)) // failures are returned
	if err != nil {
		return wrongSetting(err)
	}
	defer conn.Close()
	return do(conn)
}

// repositoryID returns the repository's id, or zero, which matches any, if the index does not
// respond, or refuses this client.
func (a *app) repositoryID(ctx context.Context) (backup.RepositoryID, error) {
	asking, cancel := context.WithTimeout(ctx, indexWithin)
	defer cancel()
	i, err := a.openIndex(asking, toRead)
	if err == nil {
		defer i.Close()
		var r backup.Repository
		if r, err = i.Repository(asking); err == nil {
			return r.ID, nil
		}
	}
	switch without := "the services that answer are listed without it"; {
	case ctx.Err() != nil:
	case errors.Is(err, backup.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		a.note("the index %s does not answer: %v; %s", a.indexPlace(), err, without)
		return backup.RepositoryID{}, nil
	case open.IndexRefuses(err):
		a.note("the index %s refuses this client: %v; %s", a.indexPlace(), err, without)
		return backup.RepositoryID{}, nil
	}
	return backup.RepositoryID{}, err
}

// completeServices completes with a part of each running service.
func (a *app) completeServices(cmd *cobra.Command, part func(*flow.Instance) string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	var found []string
	err := a.configure(cmd)
	if err == nil {
		err = a.withServices(ctx, func(conn *flow.Conn) error {
			all, err := conn.Instances(ctx)
			for n := range all {
				if text := part(&all[n]); text != "" && !strings.ContainsAny(text, "\t\n") {
					found = append(found, text)
				}
			}
			return err
		})
	}
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	slices.Sort(found)
	return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
}

// find returns the one worker with the given name or instance.
func (s *services) find(all []flow.Instance, name string) (*flow.Instance, error) {
	some := s.among(all)
	var found []flow.Instance
	for _, i := range some {
		if i.Name == name || i.ID == name {
			found = append(found, i)
		}
	}
	// Lost services are ignored if another one has the name.
	if there := slices.DeleteFunc(slices.Clone(found), func(i flow.Instance) bool { return i.Lost }); len(there) > 0 {
		found = there
	}
	switch len(found) {
	case 0:
		if n := slices.IndexFunc(all, func(i flow.Instance) bool { return i.Name == name }); n >= 0 {
			return nil, absent("%s is a %s%s, which --role or --site excludes", display(name), all[n].Role, at(all[n].Site))
		}
		return nil, absent("no worker is called %s%s", display(name), nearText(name, some))
	case 1:
		return &found[0], nil
	}
	text := ""
	for n := range found {
		i := &found[n]
		text += fmt.Sprintf("\n  %s%s, instance %s, started %s", i.Role, at(i.Site), i.ID, zoned(i.Started))
	}
	return nil, usage("%d services are called %s: select one with --role and --site, or give its instance:%s", len(found), display(name), text)
}

// maxNear is the maximum number of names listed in an error.
const maxNear = 5

// nearText lists the names most similar to a name that does not exist.
func nearText(name string, all []flow.Instance) string {
	if len(all) == 0 {
		return ": none answers (bctl worker ls)"
	}
	var names []string
	for n := range all {
		names = append(names, all[n].Name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	slices.SortStableFunc(names, func(a, b string) int { return edits(name, a) - edits(name, b) })
	for n := range names {
		names[n] = display(names[n])
	}
	if len(names) > maxNear {
		return fmt.Sprintf("; near it are %s (bctl worker ls lists all %d)", strings.Join(names[:maxNear], ", "), len(names))
	}
	return "; there are " + strings.Join(names, ", ")
}

// edits returns the number of characters to replace, add or remove to turn a into b.
func edits(a, b string) int {
	from, to := []rune(a), []rune(b)
	row := make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i, r := range from {
		before := row[0]
		row[0] = i + 1
		for j, s := range to {
			change := before
			if r != s {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, row[j]+1, before+1)
		}
	}
	return row[len(to)]
}

package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/telemetry"
	"github.com/bctl/bctl/services/bctl/serve"
)

func newService(a *app, name, short string, service Service) *cobra.Command {
	return &cobra.Command{
		Use:   name,
		Short: short,
		Long: short + `.

It runs until it receives SIGINT or SIGTERM, then finishes its work or hands it
back. Any number of instances may run.

With http.listen set, it serves /metrics for Prometheus, /healthz (the process
works) and /readyz (its dependencies answer). With trace.url set, it sends
traces. docs/observability.md describes metrics, logs and traces.`,
		Example: "  bctl " + name + " --config fleet.yaml",
		Args:    args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !a.cfg.Fleet() && name != "pruner" && name != "scrubber" && name != "restorer" { // which need no NATS
				return usage("bctl %s is part of a fleet and needs NATS: set nats.url in --config FILE, or BCTL_NATS", name)
			}
			if service == nil {
				return errors.New("this build has no " + name)
			}
			log := a.log
			a.log = serve.Named(log, name, a.cfg) // the service names its own lines
			a.serves.Store(true)
			telemetry.TakeOver(a.log)
			return service(cmd.Context(), a.cfg, log)
		},
	}
}

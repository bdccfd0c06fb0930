package wire

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/bctl/bctl/internal/tty"

	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/run"
	"github.com/bctl/bctl/internal/telemetry"
)

// Main is the main function of a service that has a program of its own. It returns the exit status:
// 0; 1 for a failure; 2 for a usage error.
func Main(name string, service Runner) int {
	run.TuneMemory()
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	file := flags.String("config", os.Getenv("BCTL_CONFIG"), "`FILE` with settings, YAML (BCTL_CONFIG); each has an environment variable, too")
	if err := flags.Parse(os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	path, err := config.ExpandHome(*file, os.LookupEnv)
	var c *config.Config
	if err == nil {
		c, err = config.Load(config.Sources{Env: os.LookupEnv, File: path})
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 2
	}
	log, err := telemetry.NewLogger(os.Stderr, tty.Is(os.Stderr), c.Log.Level, c.Log.Format)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 2
	}
	named := Named(log, name, c)
	telemetry.TakeOver(named)
	ctx, stop := run.Context(context.Background(), func() { named.Info("stopping") })
	defer stop()
	if err := service(ctx, c, log); err != nil && !errors.Is(err, run.ErrInterrupted) {
		named.Error("service failed", "error", err)
		return 1
	}
	return 0
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/doctor"
	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/services/bctl/open"
)

type doctorCommand struct {
	app        *app
	as         string
	sources    []string
	strict     bool
	throughput bool
	settings   error // why the settings could not be read
}

func newDoctor(a *app) *cobra.Command {
	c := &doctorCommand{app: a}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check everything that bctl depends on",
		Long: `Checks everything that bctl depends on, from this machine and with these
settings: the settings themselves, NATS, the index, the store, the directories
to back up, and the machine. Each check ends as ok, a warning, a failure or not
tested, with the observation and the remedy. docs/doctor.md describes the
checks.

With --as, it checks the permissions that a role needs and those that it must
not have. Without, it checks the needs of all roles. Run it where the service
runs, as the user of the service and with its settings.

It changes nothing except for small objects in the store. It deletes these
again; if it may not, it names the objects that remain.

Exit status: 0 no check fails; 1 a check fails (with --strict, or has a
warning).`,
		Example: `  bctl doctor --repo /backup --source /home
  bctl doctor --config /etc/bctl/bctl.yaml --as walker --source /mnt/filer1
  bctl doctor --config /etc/bctl/bctl.yaml --as committer --strict
  bctl doctor --json | jq 'select(.status == "failure")'`,
		Args: args(cobra.NoArgs),
		// Unreadable settings are reported as the result of a check.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			c.settings = a.configure(cmd)
			var wrongUse *usageError
			var misplaced *config.MisplacedError
			if errors.As(c.settings, &wrongUse) && wrongUse.setting == nil || errors.As(c.settings, &misplaced) {
				return c.settings
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&c.as, "as", "", "check the permissions of `ROLE`: walker, reader, committer, pruner or operator")
	flags.StringArrayVar(&c.sources, "source", nil, "check a `DIR` or nfs:// URL to be backed up (may be repeated)")
	flags.BoolVar(&c.strict, "strict", false, "treat warnings as failures")
	flags.BoolVar(&c.throughput, "throughput", false, "measure the store's throughput, even if an 8 MiB object remains")
	return cmd
}

func (c *doctorCommand) run(ctx context.Context) error {
	a := c.app
	if role := installation.Role(c.as); role != "" && !doctor.KnowsRole(role) {
		return usage("--as %s is not walker, reader, committer, pruner or operator", c.as)
	}
	for n, dir := range c.sources {
		if isNFS(dir) {
			continue
		}
		absolute, err := config.ExpandHome(dir, a.env)
		if err == nil {
			absolute, err = filepath.Abs(absolute)
		}
		if err != nil {
			return fmt.Errorf("--source %s: %w", dir, err)
		}
		c.sources[n] = absolute
	}
	cfg := a.cfg
	if c.settings != nil {
		cfg = nil
	}
	p := open.Doctor(cfg)
	p.ConfigFile, p.ConfigError, p.Environ = a.configFile, c.settings, os.Environ()
	p.Ask = a.askFiles()
	p.Role, p.Sources, p.Throughput = installation.Role(c.as), c.sources, c.throughput
	a.interruptible.Store(true)
	printer := doctorPrinter{app: a}
	s := doctor.Run(ctx, doctor.Groups(&p), printer.print)
	if err := errors.Join(printer.failed, printer.summary(s)); err != nil {
		return err
	}
	switch {
	case ctx.Err() != nil:
		return process.ErrInterrupted
	case s.Failures > 0:
		return fmt.Errorf("%s failed", counted(s.Failures, "check"))
	case c.strict && s.Warnings > 0:
		return fmt.Errorf("%s (--strict)", counted(s.Warnings, "warning"))
	}
	return nil
}

// A doctorPrinter prints outcomes as they arrive.
type doctorPrinter struct {
	app    *app
	group  string
	failed error
	skips  []doctor.Outcome // consecutive outcomes that were skipped for the same reason
}

// checkJSON is a line of doctor. The names are fixed.
type checkJSON struct {
	Type    string  `json:"type"` // check
	Group   string  `json:"group"`
	ID      string  `json:"id"`
	Status  string  `json:"status"` // ok, warning, failure, not_tested
	Seen    string  `json:"seen"`
	Advice  string  `json:"advice,omitempty"`
	Seconds float64 `json:"seconds"`
}

var statusWords = map[doctor.Status]string{
	doctor.OK: "ok", doctor.Warning: "WARNING", doctor.Failure: "FAILURE", doctor.NotTested: "not tested",
}

func (p *doctorPrinter) print(o doctor.Outcome) {
	if p.failed != nil {
		return
	}
	if p.app.json {
		p.failed = p.app.print(checkJSON{"check", o.Group, o.ID, string(o.Status), o.Seen, o.Advice, math.Round(o.Took.Seconds()*1e4) / 1e4})
		return
	}
	if len(p.skips) > 0 && (o.Status != doctor.NotTested || o.Group != p.group || o.Seen != p.skips[0].Seen) {
		p.flush()
	}
	if o.Group != p.group {
		p.group = o.Group
		p.println(o.Group)
	}
	if o.Status == doctor.NotTested {
		p.skips = append(p.skips, o)
		return
	}
	p.line(o.Status, p.name(&o), o.Finding)
}

// flush prints the pending skipped outcomes on one line, because they have the same reason.
func (p *doctorPrinter) flush() {
	if len(p.skips) == 0 {
		return
	}
	name := p.name(&p.skips[0])
	if more := len(p.skips) - 1; more > 0 {
		name += fmt.Sprintf(" and %d more", more)
	}
	p.line(doctor.NotTested, name, p.skips[0].Finding)
	p.skips = p.skips[:0]
}

// name returns the name of a check within its group.
func (p *doctorPrinter) name(o *doctor.Outcome) string {
	_, name, found := strings.Cut(o.ID, ".")
	if !found {
		return o.ID
	}
	if dir, ok := strings.CutPrefix(o.Group, "source"); ok {
		name = strings.TrimSuffix(name, dir)
	}
	return name
}

func (p *doctorPrinter) line(status doctor.Status, name string, r doctor.Finding) {
	text := name + ": " + r.Seen
	if r.Advice != "" {
		text += " -> " + r.Advice
	}
	head := fmt.Sprintf("  %-10s  ", statusWords[status])
	for _, line := range flowed(strings.Split(display(text), " "), " ", "", besides(p.app.width(), len(head))) {
		p.println(head + line)
		head = strings.Repeat(" ", len(head))
	}
}

func (p *doctorPrinter) println(text string) {
	_, err := fmt.Fprintln(p.app.out, display(text))
	p.failed = errors.Join(p.failed, err)
}

func (p *doctorPrinter) summary(s doctor.Summary) error {
	if p.app.json {
		return p.app.print(struct {
			Type      string `json:"type"` // summary
			OK        int    `json:"ok"`
			Warnings  int    `json:"warnings"`
			Failures  int    `json:"failures"`
			NotTested int    `json:"not_tested"`
		}{"summary", s.OK, s.Warnings, s.Failures, s.NotTested})
	}
	p.flush()
	_, err := fmt.Fprintf(p.app.out, "%d ok, %s, %s, %d not tested\n", s.OK, counted(s.Warnings, "warning"), counted(s.Failures, "failure"), s.NotTested)
	return err
}

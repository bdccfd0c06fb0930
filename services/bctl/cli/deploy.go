package cli

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/store"
)

func newDeploy(a *app) *cobra.Command {
	cmd := group(&cobra.Command{
		Use: "deploy", Short: "Create and rotate a fleet's certificates, keys and settings",
		Long: `Creates a directory with everything that the servers and services of a fleet
need to authenticate each other: a certificate authority, a certificate and key
for each server, role and site, a settings file for each role, and the
configurations of NATS, Postgres, the store and Prometheus, which grant each
role its permissions. Its README lists the folder for each machine;
docs/deploy.md is the guide.

These commands contact no server: changes take effect when you copy the folders.
They do not read the file that BCTL_CONFIG names, only one given with --config.
The directory contains all private keys: keep it offline.`,
	})
	cmd.AddCommand(newDeployInit(a), newDeployShow(a), newDeployRotate(a), newDeployRetire(a), newDeployRefresh(a))
	return cmd
}

// onlyDir requires a directory as the first argument, and allows up to more further arguments; if
// more is negative, any number.
func onlyDir(more int) cobra.PositionalArgs {
	if more < 0 {
		return args(cobra.MinimumNArgs(1))
	}
	return args(cobra.RangeArgs(1, 1+more))
}

// inInstallation calls do with the installation in dir.
func inInstallation(dir string, do func(*installation.Installation) error) error {
	dir, err := config.ExpandHome(dir, os.LookupEnv)
	if err != nil {
		return err
	}
	i, err := installation.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(do(i), i.Close())
}

type deployInit struct {
	app            *app
	plan           installation.Plan
	postgres, kind string
	inPlace        bool
	ifMissing      bool
}

// maxDays is the maximum validity of a certificate, which is that of its authority.
const maxDays = 10 * 365

func newDeployInit(a *app) *cobra.Command {
	c := &deployInit{app: a}
	cmd := &cobra.Command{
		Use:   "init DIR",
		Short: "Create certificates, keys and configuration files",
		Long: `Creates an installation in DIR, which must be empty or not exist. With
--if-missing, an existing installation is left unchanged.

--nats names one server or all servers of a cluster. With three servers or more,
each stream is kept in three copies. Clients must reach the servers by the names
given here, because the certificates contain them. --store-kind selects how keys
and policies reach the store: with aws, AWS creates the keys and you copy them
into s3-credentials; with minio and versitygw, this command creates them, and
--store-endpoint is required.

Give each operator an identity of their own (--operator) where two of them must
confirm large deletions (bctl brake set --operators 2).`,
		Example: `  bctl deploy init fleet --nats nats1,nats2,nats3 --site paris --site oslo \
    --postgres db.example.com --store s3://backups/repo
  bctl deploy init fleet --nats nats1 --postgres db:5433/backups \
    --store s3://bctl/repo \
    --store-kind versitygw --store-endpoint https://s3.example.com:7070
  bctl deploy init /tmp/trial --in-place \
    --nats 127.0.0.1 --postgres 127.0.0.1 --store s3://bctl/repo \
    --store-kind minio --store-endpoint https://127.0.0.1:9000`,
		Args: onlyDir(0),
		RunE: func(_ *cobra.Command, args []string) error { return c.run(args[0]) },
	}
	flags, p := cmd.Flags(), &c.plan
	flags.StringSliceVar(&p.NATS, "nats", nil, "`HOST` or HOST:PORT of each NATS server, separated by commas; a cluster route uses the port plus 2000")
	flags.StringVar(&c.postgres, "postgres", "", "`HOST`[:PORT][/DATABASE] of Postgres (default: port 5432, database bctl)")
	flags.StringVar(&p.Store.Endpoint, "store-endpoint", "", "`URL` of the store's server, https://host:port (default: Amazon's)")
	flags.StringVar(&c.kind, "store-kind", string(installation.AWS), "`KIND` of the store: aws, minio or versitygw")
	flags.StringVar(&p.Store.Region, "store-region", "", "`REGION` of the store")
	flags.StringSliceVar(&p.Sites, "site", []string{backup.DefaultSite}, "`SITE` of walkers and readers (may be repeated)")
	flags.StringSliceVar(&p.Operators, "operator", nil, "`PERSON` with an operator's identity of their own (may be repeated)")
	flags.StringVar(&p.Name, "name", "bctl", "`NAME` of the installation, the prefix of its Postgres roles and store keys")
	numberFlag(flags, &p.Days, "days", 365, 1, maxDays, "validity of certificates in `DAYS`")
	flags.BoolVar(&c.inPlace, "in-place", false, "use the files in DIR in the servers' configurations, for a trial on one machine")
	flags.BoolVar(&c.ifMissing, "if-missing", false, "do nothing if the installation exists")
	return cmd
}

func (c *deployInit) run(dir string) error {
	if len(c.plan.NATS) == 0 || c.postgres == "" || c.app.cfg.Store.URL == "" {
		return usage("bctl deploy init needs --nats, --postgres and --store")
	}
	dir, err := config.ExpandHome(dir, c.app.env)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return err
	}
	if c.inPlace {
		c.plan.InPlace = dir
	}
	c.plan.Store.Kind = installation.StoreKind(c.kind)
	c.plan.Store.URL, c.plan.Store.DeleteVersions = c.app.cfg.Store.URL, c.app.cfg.Store.DeleteVersions
	if c.plan.Store.ObjectLock, err = store.ParseLockMode(c.app.cfg.Store.ObjectLock); err != nil {
		return wrongSetting(fmt.Errorf("--object-lock: %w", err))
	}
	if c.plan.Postgres, err = parseDatabase(c.postgres); err != nil {
		return err
	}
	switch err := installation.Init(dir, c.plan, time.Now()); {
	case err == nil:
		c.app.term.println("created " + dir + "; its README lists the folder for each machine. It contains all private keys: keep it offline.")
	case c.ifMissing && errors.Is(err, backup.ErrExists):
		c.app.term.println("an installation already exists in " + dir + " and was not changed (bctl deploy refresh and rotate change it)")
	default:
		return wrongSetting(err)
	}
	return c.app.showInstallation(dir)
}

// parseDatabase parses host[:port][/database].
func parseDatabase(text string) (d installation.Database, err error) {
	u, err := url.Parse("postgres://" + text)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" {
		return d, usage("--postgres %q is not HOST[:PORT][/DATABASE]", text)
	}
	d = installation.Database{Host: u.Hostname(), Port: 5432, Name: strings.TrimPrefix(u.Path, "/")}
	if _, port, err := net.SplitHostPort(u.Host); err == nil {
		if d.Port, err = strconv.Atoi(port); err != nil {
			return d, usage("--postgres %q is not HOST[:PORT][/DATABASE]", text)
		}
	}
	if d.Name == "" {
		d.Name = "bctl"
	}
	return d, nil
}

func newDeployShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show DIR",
		Short: "List certificates, and when they expire",
		Long: `Shows the authority, each identity and each server: the folder, the generations
that servers accept, and when the newest certificate expires.`,
		Example: "  bctl deploy show fleet\n  bctl deploy show fleet --json",
		Args:    onlyDir(0),
		RunE:    func(_ *cobra.Command, args []string) error { return a.showInstallation(args[0]) },
	}
}

// certificateJSON is a line of deploy show. The names are fixed.
type certificateJSON struct {
	Name        string  `json:"name"`
	Kind        string  `json:"kind"` // authority, identity or server
	Folder      string  `json:"folder"`
	Generations []int   `json:"generations"` // accepted ones, the newest last; none for a server
	Ends        *string `json:"ends"`
}

func (a *app) showInstallation(dir string) error {
	var entries []installation.Entry
	if err := inInstallation(dir, func(i *installation.Installation) (err error) {
		entries, err = i.Entries()
		return err
	}); err != nil {
		return err
	}
	now := time.Now()
	table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	if !a.json {
		fmt.Fprintln(table, "NAME\tKIND\tFOLDER\tACCEPTED\tCERTIFICATE ENDS")
	}
	for _, e := range entries {
		if a.json {
			line := certificateJSON{e.Name, string(e.Kind), e.Folder, e.Generations, jsonTime(e.Ends)}
			if line.Generations == nil {
				line.Generations = []int{}
			}
			if err := a.print(line); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", e.Name, e.Kind, e.Folder, generations(e.Generations), expected(e.Ends, now))
	}
	return table.Flush()
}

func generations(list []int) string {
	if len(list) == 0 {
		return "-"
	}
	text := make([]string, len(list))
	for n, g := range list {
		text[n] = strconv.Itoa(g)
	}
	return strings.Join(text, ",")
}

package doctor

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/pgindex"
	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/source/nfs"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/s3store"
)

// Parts define what to test, and for which role.
type Parts struct {
	Config      *config.Config
	ConfigFile  string // empty: none
	ConfigError error  // why there is no Config
	Environ     []string

	// Role is the role to test for: everything that it needs must be allowed, and everything else
	// refused. If it is empty, everything that any role needs must be allowed.
	Role    installation.Role
	Sources []string // directories and nfs:// URLs to be backed up

	// Ask reaches the person who runs doctor, for a protected identity file.
	Ask repo.Asker

	// Throughput puts large objects even if they cannot be deleted.
	Throughput bool

	// Functions that open what the settings name. Only those for named components are called.
	NATS      func() flow.Options
	Postgres  func() (dsn string, o pgindex.Options, err error)
	S3        func() (s3store.Options, error)
	OpenIndex func(ctx context.Context) (index.Index, error)
	OpenStore func(ctx context.Context) (store.Store, error)
}

// The roles that doctor supports.
var roles = []installation.Role{installation.Walker, installation.Reader, installation.Committer, installation.Pruner, installation.Scrubber, installation.Restorer, installation.Operator}

// KnowsRole reports whether doctor supports a role.
func KnowsRole(role installation.Role) bool { return slices.Contains(roles, role) }

// is reports whether the tested role is one of these, or no role is set.
func (p *Parts) is(one ...installation.Role) bool {
	return p.Role == "" || slices.Contains(one, p.Role)
}

// whom describes the tested role: "a walker".
func (p *Parts) whom() string {
	if p.Role == installation.Operator {
		return "an operator"
	}
	return "a " + string(p.Role)
}

// Groups returns all checks for the given parts.
func Groups(p *Parts) []Group {
	groups := []Group{configurationGroup(p)}
	if p.Config == nil {
		for _, name := range []string{"nats", "index", "store"} {
			groups = append(groups, known(name, skip("no configuration names it")))
		}
	} else {
		groups = append(groups, natsGroup(p), indexGroup(p), storeGroup(p))
		if p.restores() {
			groups = append(groups, restoringGroup(p))
		}
	}
	for _, dir := range p.Sources {
		if strings.HasPrefix(dir, nfs.Scheme+"://") {
			groups = append(groups, nfsGroup(dir))
		} else {
			groups = append(groups, sourceGroup(p, dir))
		}
	}
	return append(groups, machineGroup(p))
}

// known returns a group whose only check has a finding that is known already.
func known(name string, f Finding) Group {
	return Group{Name: name, Checks: []Check{{ID: name, Run: func(context.Context) Finding { return f }}}}
}

func indexGroup(p *Parts) Group {
	switch _, local := p.Config.IndexPath(); {
	case p.Config.Index.URL == "":
		return known("index", fail("set index.url (BCTL_INDEX), or repo (BCTL_REPO)", "no index is named"))
	case local:
		return sqliteGroup(p)
	}
	return postgresGroup(p)
}

func storeGroup(p *Parts) Group {
	switch _, local := p.Config.StorePath(); {
	case p.Config.Store.URL == "" && p.Role == installation.Walker:
		return known("store", skip("walkers need none, and none is set"))
	case p.Config.Store.URL == "":
		return known("store", fail("set store.url (BCTL_STORE), or repo (BCTL_REPO)", "no store is named"))
	case local:
		return directoryGroup(p)
	}
	return s3Group(p)
}

// withoutPassword returns a URL for display.
func withoutPassword(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "(not a URL)"
	}
	return u.Redacted()
}

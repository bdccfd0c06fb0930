package installation

import (
	"bytes"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// planVersion is the version of installation.yaml.
const planVersion = 1

const planFile = "installation.yaml"

// A Plan holds the requested configuration, and the live generations of certificates: everything
// from which the generated files follow, except keys. It is stored in installation.yaml.
type Plan struct {
	Version int `yaml:"version"`
	// Name is the installation's name, and the prefix of the names of roles at Postgres and the
	// store.
	Name     string   `yaml:"name"`
	NATS     []string `yaml:"nats"` // host or host:port each; several form a cluster
	Postgres Database `yaml:"postgres"`
	Store    Store    `yaml:"store"`
	Sites    []string `yaml:"sites"`
	// Operators are people with an operator's identity of their own, so that two can confirm what
	// one alone may not.
	Operators []string `yaml:"operators,omitempty"`
	Days      int      `yaml:"days"` // validity of a new certificate
	// InPlace is the installation's directory, if everything is used where it was created.
	InPlace     string `yaml:"in_place,omitempty"`
	Authorities []int  `yaml:"authorities"` // live generations, the oldest first
	// Generations are the generations that servers accept, by identity folder, the oldest first.
	Generations map[string][]int `yaml:"generations"`
}

// A Database locates the index.
type Database struct {
	Host string `yaml:"host"`
	Port int    `yaml:"port"`
	Name string `yaml:"name"`
}

// A Store locates the packs.
type Store struct {
	URL      string    `yaml:"url"`                // s3://bucket/prefix
	Endpoint string    `yaml:"endpoint,omitempty"` // empty: Amazon's
	Region   string    `yaml:"region,omitempty"`
	Kind     StoreKind `yaml:"kind"`
	// ObjectLock is the mode in which objects are locked.
	ObjectLock store.LockMode `yaml:"object_lock,omitempty"`
	// DeleteVersions lets the pruner delete versions of objects, too.
	DeleteVersions bool `yaml:"delete_versions,omitempty"`
}

// A StoreKind is the type of the store's server. Each type has its own configuration of keys and
// policies.
type StoreKind string

// The kinds of stores.
const (
	AWS       StoreKind = "aws"
	MinIO     StoreKind = "minio"
	VersityGW StoreKind = "versitygw"
)

// Ours reports whether the store is a server of this installation, with a certificate of its
// authority and keys that the installation chooses.
func (k StoreKind) Ours() bool { return k != AWS }

// A StoreKey is the credential of one generation of an identity at the store.
type StoreKey struct {
	Access string `yaml:"access"`
	Secret string `yaml:"secret"`
}

// databaseRoles are the roles with access to the index, in display order.
var databaseRoles = []Role{Admin, Committer, Walker, Reader, Operator, Pruner, Scrubber, Restorer, Monitor}

// roles are all roles.
var roles = append(slices.Clone(databaseRoles), Mirror)

// usesIndex reports whether a role has access to the index.
func (r Role) usesIndex() bool { return slices.Contains(databaseRoles, r) }

// sited reports whether a role is bound to a site.
func (r Role) sited() bool { return r == Walker || r == Reader }

// usesStore reports whether a role has a key for the store.
func (r Role) usesStore() bool { return slices.Contains(storeRoles, r) }

// check fails with backup.ErrInvalid unless an installation can be created from the plan.
func (p *Plan) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), backup.ErrInvalid)
	}
	if !installationName.MatchString(p.Name) {
		return bad("name %q is not 1 to 20 lower-case letters and digits that begin with a letter", p.Name)
	}
	if len(p.NATS) == 0 || len(p.Sites) == 0 || p.Postgres.Host == "" || p.Postgres.Name == "" {
		return bad("an installation needs NATS servers, a Postgres server, a store and a site")
	}
	hosts := map[string]bool{}
	for _, address := range p.NATS {
		host, port, err := splitHost(address, natsPort)
		if err != nil || !hostName.MatchString(host) || hosts[host] || port+routesAbove > 65535 {
			return bad("NATS server %q is not HOST or HOST:PORT, or is named twice", address)
		}
		hosts[host] = true
	}
	if !hostName.MatchString(p.Postgres.Host) || p.Postgres.Port < 1 || p.Postgres.Port > 65535 {
		return bad("Postgres server %q is not a host name or address with a valid port", p.Postgres.Host)
	}
	for n, site := range p.Sites {
		if err := backup.CheckSite(site); err != nil {
			return err
		}
		if slices.Contains(p.Sites[:n], site) {
			return bad("site %s is named twice", site)
		}
	}
	for n, person := range p.Operators {
		if !personName.MatchString(person) || slices.Contains(p.Operators[:n], person) {
			return bad("operator %q is not 1 to 30 lower-case letters, digits and hyphens that begin with a letter, or is named twice", person)
		}
	}
	if p.Days < 1 || p.Days > authorityDays {
		return bad("certificates cannot be valid for %d days, but for 1 to %d", p.Days, authorityDays)
	}
	return p.Store.check()
}

var (
	installationName = regexp.MustCompile(`^[a-z][a-z0-9]{0,19}$`)
	personName       = regexp.MustCompile(`^[a-z][a-z0-9-]{0,29}$`)
	hostName         = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.:_-]{0,251}[A-Za-z0-9])?$`)
	bucketName       = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	bucketURL        = regexp.MustCompile(`^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+)*/?$`)
)

func (s *Store) check() error {
	bucket, _, _ := strings.Cut(strings.TrimPrefix(s.URL, "s3://"), "/")
	switch {
	case bucketURL.MatchString(s.URL):
	case strings.HasPrefix(s.URL, "s3://") && !bucketName.MatchString(bucket):
		return fmt.Errorf("store %q: a bucket's name has 3 to 63 characters, of a to z, 0 to 9, dots and hyphens, and begins and ends with a letter or a digit: %w", s.URL, backup.ErrInvalid)
	default:
		return fmt.Errorf("store %q is not s3://BUCKET/PREFIX, with a prefix of letters, digits and ._- between slashes: %w", s.URL, backup.ErrInvalid)
	}
	if _, err := store.ParseLockMode(string(s.ObjectLock)); err != nil {
		return fmt.Errorf("store object_lock: %w", err)
	}
	if s.DeleteVersions && s.Kind == VersityGW {
		return fmt.Errorf("store delete_versions: a versitygw of this kind keeps no versions: %w", backup.ErrInvalid)
	}
	switch s.Kind {
	case AWS:
		return nil
	case MinIO, VersityGW:
	default:
		return fmt.Errorf("store kind %q is not aws, minio or versitygw: %w", s.Kind, backup.ErrInvalid)
	}
	if u, err := url.Parse(s.Endpoint); err != nil || u.Scheme != "https" || !hostName.MatchString(u.Hostname()) || u.User != nil || u.Path != "" {
		return fmt.Errorf("store endpoint %q is not https://host:port: %w", s.Endpoint, backup.ErrInvalid)
	}
	return nil
}

// host returns the host of the store's server.
func (s *Store) host() string {
	u, err := url.Parse(s.Endpoint)
	if err != nil {
		return "" // check has validated it
	}
	return u.Hostname()
}

// parsePlan parses installation.yaml.
func parsePlan(data []byte) (*Plan, error) {
	p := &Plan{}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(p); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", planFile, err, backup.ErrInvalid)
	}
	if p.Version != planVersion {
		return nil, fmt.Errorf("%s has version %d, and this bctl supports version %d: %w", planFile, p.Version, planVersion, backup.ErrInvalid)
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", planFile, err)
	}
	for _, i := range p.newest() {
		if i.Generation < 1 && i.Role != Pruner && i.Role != Scrubber && i.Role != Restorer && i.Role != Mirror { // which older installations do not have: Refresh adds them
			return nil, fmt.Errorf("%s has no generation of %s: %w", planFile, i.Folder(), backup.ErrInvalid)
		}
	}
	if len(p.Authorities) == 0 {
		return nil, fmt.Errorf("%s has no authority: %w", planFile, backup.ErrInvalid)
	}
	return p, nil
}

// Identities returns all generations of each identity that servers accept.
func (p *Plan) Identities() []Identity {
	var all []Identity
	for _, i := range p.subjects() {
		for _, generation := range p.Generations[i.Folder()] {
			i.Generation = generation
			all = append(all, i)
		}
	}
	return all
}

// newest returns each identity in the generation whose certificate is in its folder.
func (p *Plan) newest() []Identity {
	all := p.subjects()
	for n, i := range all {
		if live := p.Generations[i.Folder()]; len(live) > 0 {
			all[n].Generation = live[len(live)-1]
		}
	}
	return all
}

// subjects returns each identity of the plan, without a generation.
func (p *Plan) subjects() []Identity {
	var all []Identity
	for _, role := range roles {
		if !role.sited() {
			all = append(all, Identity{Role: role})
			continue
		}
		for _, site := range slices.Sorted(slices.Values(p.Sites)) {
			all = append(all, Identity{Role: role, Site: site})
		}
	}
	for _, person := range slices.Sorted(slices.Values(p.Operators)) {
		all = append(all, Identity{Role: Operator, Person: person})
	}
	return all
}

// Directories to which folders are copied, unless those of servers are used in place. The folder of
// an identity works in any directory.
const (
	identityEtc   = "/etc/bctl"
	natsEtc       = "/etc/nats"
	natsData      = "/var/lib/nats"
	postgresEtc   = "/etc/postgresql/bctl"
	storeEtc      = "/etc/bctl-store"
	prometheusEtc = "/etc/prometheus/bctl"
)

// place returns the path of a server's file, such as nats/<host>/server.pem, on the server's
// machine.
func (p *Plan) place(file string) string {
	if p.InPlace != "" {
		return filepath.Join(p.InPlace, filepath.FromSlash(file))
	}
	first, _, _ := strings.Cut(file, "/")
	name := path.Base(file)
	switch first {
	case "nats":
		return path.Join(natsEtc, name)
	case "postgres":
		return path.Join(postgresEtc, name)
	case "s3":
		return path.Join(storeEtc, name)
	}
	return path.Join(prometheusEtc, name)
}

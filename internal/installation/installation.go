// Package installation creates what a fleet's servers and services need to trust only one another:
// an authority, a certificate per identity, and the configurations with the permissions of each
// identity.
//
// An installation is a directory. Its plan (installation.yaml) holds the requested configuration
// and the live generations of each identity. All other files follow from the plan, and from keys
// that are created once. Rotate adds a new generation to the live ones, and Retire ends the old
// ones. In between, the new files are distributed to one machine after another without an
// interruption of service.
//
// A change is atomic, even if bctl is killed during it.
//
// # Files
//
//	installation.go  creates and refreshes an installation
//	plan.go          the requested configuration
//	identity.go      roles and identities
//	authority.go     issues certificates
//	file.go          a generated file, and its permissions
//	directory.go     replaces the files atomically
//	changing.go      rotates and retires generations of keys
//	locking.go       which changes of the object lock are possible
//	settings.go      settings of the services
//	nats.go          configuration of NATS
//	postgres.go      roles and configuration of Postgres
//	s3.go            users and policies of the store
//	readme.go        where each folder belongs
//	show.go          lists certificates, and when they expire
package installation

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// An Installation is a directory that no other process changes until Close.
type Installation struct {
	Plan *Plan

	dir    string
	locked *os.File
}

// Init creates an installation in dir, which must not exist or be empty. It ignores the live
// generations in the plan, because all start with generation 1.
func Init(dir string, p Plan, now time.Time) error {
	if _, err := os.Stat(filepath.Join(dir, planFile)); err == nil {
		return fmt.Errorf("an installation exists in %s: %w", dir, backup.ErrExists)
	}
	if found, err := os.ReadDir(dir); err == nil && len(found) > 0 {
		return fmt.Errorf("%s is not empty: %w", dir, backup.ErrInvalid)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := p.check(); err != nil {
		return err
	}
	p.Version, p.Authorities, p.Generations = planVersion, []int{1}, map[string][]int{}
	a, certificate, key, err := newAuthority(p.Name, 1, now)
	if err != nil {
		return err
	}
	c := changing{plan: &p, signer: a, bundle: certificate, now: now, keys: map[Identity]StoreKey{}}
	c.add(File{Path: authorityKeyFile, Data: key, Secret: true})
	for _, i := range p.subjects() {
		if err := c.begin(i); err != nil {
			return err
		}
	}
	for _, s := range p.servers() {
		if err := c.certifyServer(s); err != nil {
			return err
		}
	}
	if err := c.generate(); err != nil {
		return err
	}
	mode := fs.FileMode(0o700)
	if p.InPlace != "" {
		mode = 0o755 // servers that run as other users read their files in it
	}
	return create(dir, mode, c.files)
}

// Open opens the installation in dir, and finishes an interrupted change.
func Open(dir string) (*Installation, error) {
	locked, err := lock(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no installation in %s (bctl deploy init creates one): %w", dir, backup.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	i := &Installation{dir: dir, locked: locked}
	if err := finishChange(dir); err != nil {
		return nil, errors.Join(err, i.Close())
	}
	data, err := os.ReadFile(filepath.Join(dir, planFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("there is no installation in %s (bctl deploy init creates one): %w", dir, backup.ErrNotFound)
	}
	if err == nil {
		i.Plan, err = parsePlan(data)
	}
	if err != nil {
		return nil, errors.Join(err, i.Close())
	}
	return i, nil
}

// Close allows other processes to change the installation.
func (i *Installation) Close() error { return i.locked.Close() }

// begin starts a change of the current installation.
func (i *Installation) begin(now time.Time) (*changing, error) {
	c := &changing{plan: i.Plan, now: now, keys: map[Identity]StoreKey{}}
	var err error
	if c.bundle, err = os.ReadFile(filepath.Join(i.dir, authorityFile)); err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	err = c.readStoreKeys(filepath.Join(i.dir, storeKeysFile))
	return c, err
}

// beginComplete is begin, but fails if an identity is missing that this version of bctl has added.
func (i *Installation) beginComplete(now time.Time) (*changing, error) {
	for _, identity := range i.Plan.newest() {
		if identity.Generation < 1 {
			return nil, fmt.Errorf("the installation has no identity %s yet: run bctl deploy refresh first: %w", identity.Folder(), backup.ErrInvalid)
		}
	}
	return i.begin(now)
}

// sign enables a change to create certificates. It needs the authority's key, which may be stored
// elsewhere.
func (i *Installation) sign(c *changing) error {
	key, err := os.ReadFile(filepath.Join(i.dir, authorityKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the authority's key %s is missing: copy it there for the duration of this command: %w",
			filepath.Join(i.dir, authorityKeyFile), backup.ErrNotFound)
	}
	if err != nil {
		return err
	}
	c.signer, err = parseAuthority(c.bundle, key)
	return err
}

// AuthorityName is the authority's name for Rotate and Retire.
const AuthorityName = "ca"

// Rotate creates a new certificate and key for each name: an identity's folder, or a server's.
// Without names it does so for all of them except the authority. Servers accept the identities' old
// generations until Retire. The authority, "ca", can only be rotated alone: the new authority signs
// all later certificates, and both are trusted.
func (i *Installation) Rotate(now time.Time, names ...string) error {
	c, err := i.beginComplete(now)
	if err != nil {
		return err
	}
	switch {
	case slices.Contains(names, AuthorityName) && len(names) > 1:
		return fmt.Errorf("rotate the authority alone: certificates that the new authority signs are useless until all machines trust it: %w", backup.ErrInvalid)
	case len(names) == 1 && names[0] == AuthorityName:
		if err := c.rotateAuthority(); err != nil {
			return err
		}
	default:
		if err := i.sign(c); err != nil {
			return err
		}
		if err := c.rotate(names); err != nil {
			return err
		}
	}
	return i.make(c)
}

// Retire makes servers accept only the newest generation of these identities, or of all identities
// without names. With "ca" the old authorities are no longer trusted: everything that they signed
// must be rotated before.
func (i *Installation) Retire(names ...string) error {
	c, err := i.beginComplete(time.Time{})
	if err != nil {
		return err
	}
	known := c.plan.folders()
	for _, name := range names {
		switch {
		case name == AuthorityName:
			if err := i.retireAuthority(c); err != nil {
				return err
			}
		case !slices.Contains(known, name):
			return fmt.Errorf("no such identity %q: it must be one of %q, or ca: %w", name, known, backup.ErrNotFound)
		}
	}
	for _, name := range known {
		if len(names) == 0 || slices.Contains(names, name) {
			live := c.plan.Generations[name]
			c.plan.Generations[name] = live[len(live)-1:]
		}
	}
	return i.make(c)
}

// retireAuthority removes all authorities except the newest, unless another one signed a
// certificate in the installation.
func (i *Installation) retireAuthority(c *changing) error {
	newest, err := c.newestAuthority()
	if err != nil {
		return err
	}
	var old []string
	for _, e := range c.plan.entries() {
		certificate, err := i.certificateOf(e)
		if err != nil {
			return err
		}
		if certificate.CheckSignatureFrom(newest) != nil {
			old = append(old, e.Name)
		}
	}
	if len(old) > 0 {
		return fmt.Errorf("the old authority signed the certificates of %q: rotate them and distribute the new ones before you retire the authority: %w", old, backup.ErrInvalid)
	}
	for _, name := range slices.Sorted(maps.Keys(c.plan.Generations)) {
		// The folders contain only the newest generation. An older one that is still accepted may
		// be signed by another authority.
		if len(c.plan.Generations[name]) > 1 {
			return fmt.Errorf("older generations of %q are still accepted: retire the identities before the authority: %w", name, backup.ErrInvalid)
		}
	}
	c.bundle = pemOf(newest)
	c.plan.Authorities = c.plan.Authorities[len(c.plan.Authorities)-1:]
	return nil
}

// A Refreshing is what Refresh changes in the plan.
type Refreshing struct {
	Sites, Operators []string        // to add
	ObjectLock       *store.LockMode // of the store; nil: it stays
}

// Refresh writes again all files that follow from the plan, in the form of this version of bctl,
// after changing the plan.
func (i *Installation) Refresh(now time.Time, r Refreshing) error {
	c, err := i.begin(now)
	if err != nil {
		return err
	}
	if r.ObjectLock != nil {
		if err := c.plan.Store.switchLock(*r.ObjectLock); err != nil {
			return err
		}
	}
	add := func(to *[]string, names []string) {
		for _, name := range names {
			if !slices.Contains(*to, name) {
				*to = append(*to, name)
			}
		}
	}
	add(&c.plan.Sites, r.Sites)
	add(&c.plan.Operators, r.Operators)
	if err := c.plan.check(); err != nil {
		return err
	}
	for _, identity := range c.plan.newest() {
		if identity.Generation > 0 {
			continue
		}
		if c.signer == nil {
			if err := i.sign(c); err != nil {
				return err
			}
		}
		if err := c.begin(identity); err != nil {
			return err
		}
	}
	return i.make(c)
}

// make makes a change effective.
func (i *Installation) make(c *changing) error {
	if err := c.generate(); err != nil {
		return err
	}
	return change(i.dir, c.files)
}

package installation

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/bctl/bctl/internal/backup"
)

// storeKeysFile has the keys of all live generations. It is kept with the authority.
const storeKeysFile = "ca/store-keys.yaml"

// A changing is a change of an installation: the new plan, and the files to write.
type changing struct {
	plan   *Plan
	signer *authority // nil until certificates are needed
	bundle []byte     // trusted authorities, the oldest first, in PEM
	keys   map[Identity]StoreKey
	now    time.Time
	files  []File
}

func (c *changing) add(files ...File) { c.files = append(c.files, files...) }

// A server has a certificate that replaces the previous one immediately, because clients trust the
// authority.
type server struct {
	folder  string // also its name for Rotate
	subject subject
}

func (p *Plan) servers() (all []server) {
	for _, n := range p.natsNodes() {
		all = append(all, server{n.folder(), subject{name: n.folder(), hosts: []string{n.host}, serves: true, connect: true, route: true}})
	}
	all = append(all, server{"postgres", subject{name: "postgres", hosts: []string{p.Postgres.Host}, serves: true}})
	if p.Store.Kind.Ours() {
		all = append(all, server{"s3", subject{name: "s3", hosts: []string{p.Store.host()}, serves: true}})
	}
	return all
}

// folders returns the names of all identities.
func (p *Plan) folders() (names []string) {
	for _, i := range p.subjects() {
		names = append(names, i.Folder())
	}
	return names
}

// certifyServer creates the certificate and key of a server.
func (c *changing) certifyServer(s server) error {
	return c.certify(s.folder, serverCertificateName, serverKeyName, s.subject)
}

// certify creates a certificate and its key in two files of a folder.
func (c *changing) certify(folder, certificateFile, keyFile string, s subject) error {
	certificate, key, err := c.signer.issue(s, c.now, c.plan.Days)
	if err != nil {
		return err
	}
	c.add(File{Path: folder + "/" + certificateFile, Data: certificate}, File{Path: folder + "/" + keyFile, Data: key, Secret: true})
	return nil
}

// begin starts the next generation of an identity.
func (c *changing) begin(i Identity) error {
	live := c.plan.Generations[i.Folder()]
	i.Generation = 1
	if len(live) > 0 {
		i.Generation = live[len(live)-1] + 1
	}
	c.plan.Generations[i.Folder()] = append(live, i.Generation)
	if i.Role.usesStore() && c.plan.Store.Kind.Ours() {
		c.keys[i] = StoreKey{Access: c.plan.accessKey(i), Secret: rand.Text() + rand.Text()}
	}
	s := subject{name: i.Name(), connect: true}
	if slices.Contains(services, i.Role) {
		s.serves, s.hosts = true, []string{c.plan.serverName(i.Role)}
	}
	return c.certify(i.home(), certificateName, keyName, s)
}

// accessKey returns a generation's name at the store: "bctl-reader-paris-2".
func (p *Plan) accessKey(i Identity) string {
	parts := []string{p.Name, string(i.Role)}
	if i.Site+i.Person != "" {
		parts = append(parts, i.Site+i.Person)
	}
	return strings.Join(append(parts, strconv.Itoa(i.Generation)), "-")
}

// rotate starts the next generation of the named identities, or of all if none are named.
func (c *changing) rotate(names []string) error {
	left := slices.Clone(names)
	wanted := func(name string) bool {
		left = slices.DeleteFunc(left, func(n string) bool { return n == name })
		return len(names) == 0 || slices.Contains(names, name)
	}
	for _, i := range c.plan.subjects() {
		if wanted(i.Folder()) {
			if err := c.begin(i); err != nil {
				return err
			}
		}
	}
	for _, s := range c.plan.servers() {
		if wanted(s.folder) {
			if err := c.certifyServer(s); err != nil {
				return err
			}
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("no such identity or server %q (bctl deploy show lists them): %w", left, backup.ErrNotFound)
	}
	return nil
}

// rotateAuthority adds a new authority, which signs all new certificates.
func (c *changing) rotateAuthority() error {
	generation := c.plan.Authorities[len(c.plan.Authorities)-1] + 1
	_, certificate, key, err := newAuthority(c.plan.Name, generation, c.now)
	if err != nil {
		return err
	}
	c.plan.Authorities = append(c.plan.Authorities, generation)
	c.bundle = append(bytes.Clone(c.bundle), certificate...)
	c.add(File{Path: authorityKeyFile, Data: key, Secret: true})
	return nil
}

// generate adds all files that follow from the plan.
func (c *changing) generate() error {
	p := c.plan
	for i := range c.keys {
		if !slices.Contains(p.Generations[i.Folder()], i.Generation) {
			delete(c.keys, i) // it was retired
		}
	}
	var plan bytes.Buffer
	plan.WriteString("# Written and read by bctl deploy. It contains no secrets.\n")
	if err := encodeYAML(&plan, p); err != nil {
		return err
	}
	c.add(File{Path: planFile, Data: plan.Bytes()}, readme(p))
	for _, folder := range c.trusting() {
		c.add(File{Path: folder + "/" + authoritiesName, Data: c.bundle})
	}
	c.add(natsFiles(p)...)
	for _, list := range []func() ([]File, error){
		func() ([]File, error) { return settingsFiles(p, c.keys) },
		func() ([]File, error) { return postgresFiles(p) },
		func() ([]File, error) { return storeFiles(p, c.keys) },
		func() ([]File, error) { return prometheusFiles(p) },
		func() ([]File, error) { return storeKeyFiles(p, c.keys) },
	} {
		files, err := list()
		if err != nil {
			return err
		}
		c.add(files...)
	}
	return nil
}

// trusting returns all folders that contain the authorities.
func (c *changing) trusting() []string {
	folders := []string{"ca"}
	for _, s := range c.plan.servers() {
		folders = append(folders, s.folder)
	}
	for _, i := range c.plan.subjects() {
		folders = append(folders, i.home())
	}
	return folders
}

func storeKeyFiles(p *Plan, keys map[Identity]StoreKey) ([]File, error) {
	if !p.Store.Kind.Ours() {
		return nil, nil
	}
	named := map[string]StoreKey{}
	for i, key := range keys {
		named[i.Name()] = key
	}
	var text bytes.Buffer
	err := encodeYAML(&text, named)
	return []File{{Path: storeKeysFile, Data: text.Bytes(), Secret: true}}, err
}

func (c *changing) readStoreKeys(path string) error {
	if !c.plan.Store.Kind.Ours() {
		return nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the file with the store's keys, %s, is missing: copy it there for the duration of this command: %w", path, backup.ErrNotFound)
	}
	if err != nil {
		return err
	}
	named := map[string]StoreKey{}
	if err := yaml.Unmarshal(data, &named); err != nil {
		// The error is omitted, because it could contain a key.
		return fmt.Errorf("%s cannot be read: %w", path, backup.ErrCorrupt)
	}
	for _, i := range c.plan.Identities() {
		if key, ok := named[i.Name()]; ok {
			c.keys[i] = key
		} else if i.Role.usesStore() {
			return fmt.Errorf("%s has no key of %s: %w", path, i.Name(), backup.ErrCorrupt)
		}
	}
	return nil
}

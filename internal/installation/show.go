package installation

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// A Kind is the type of a certificate's holder.
type Kind string

// The kinds.
const (
	KindAuthority Kind = "authority"
	KindServer    Kind = "server"
	KindIdentity  Kind = "identity"
)

// An Entry is an authority, identity or server with a certificate.
type Entry struct {
	Name        string // for Rotate and Retire
	Kind        Kind
	Folder      string
	Generations []int     // live ones, the oldest first; none for a server
	Ends        time.Time // expiry of the newest certificate

	file string
}

// entries returns all identities and servers.
func (p *Plan) entries() (all []Entry) {
	for _, i := range p.newest() {
		if i.Generation < 1 {
			continue // Refresh adds it
		}
		all = append(all, Entry{Name: i.Folder(), Kind: KindIdentity, Folder: i.home(), Generations: p.Generations[i.Folder()], file: certificateName})
	}
	for _, s := range p.servers() {
		all = append(all, Entry{Name: s.folder, Kind: KindServer, Folder: s.folder, file: serverCertificateName})
	}
	return all
}

// Entries lists the authority, the identities and the servers.
func (i *Installation) Entries() ([]Entry, error) {
	bundle, err := os.ReadFile(filepath.Join(i.dir, authorityFile))
	if err != nil {
		return nil, err
	}
	authorities, err := parseCertificates(bundle)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", authorityFile, err)
	}
	all := []Entry{{
		Name: AuthorityName, Kind: KindAuthority, Folder: "ca",
		Generations: i.Plan.Authorities, Ends: authorities[len(authorities)-1].NotAfter,
	}}
	for _, e := range i.Plan.entries() {
		certificate, err := i.certificateOf(e)
		if err != nil {
			return nil, err
		}
		e.Ends = certificate.NotAfter
		all = append(all, e)
	}
	return all, nil
}

func (i *Installation) certificateOf(e Entry) (*x509.Certificate, error) {
	path := filepath.Join(i.dir, filepath.FromSlash(e.Folder), e.file)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	certificate, err := firstCertificate(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return certificate, nil
}

// newestAuthority returns the last authority of the bundle.
func (c *changing) newestAuthority() (*x509.Certificate, error) {
	all, err := parseCertificates(c.bundle)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", authorityFile, err)
	}
	return all[len(all)-1], nil
}

func pemOf(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

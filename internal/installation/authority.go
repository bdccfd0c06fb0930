package installation

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

const (
	authorityFile    = "ca/ca.pem"
	authorityKeyFile = "ca/ca.key"

	authorityDays = 10 * 365
	// backdate makes new certificates valid immediately for clocks that are behind.
	backdate = 10 * time.Minute
)

// routeName is a URI that only the certificates of NATS servers contain: any client accepted as a
// node of the cluster has unlimited access.
const routeName = "bctl:nats-route"

// An authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// newAuthority creates an authority, and returns it with its certificate and key in PEM.
func newAuthority(name string, generation int, now time.Time) (a *authority, certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}
	template, err := newTemplate(fmt.Sprintf("%s authority/%d", name, generation), now, authorityDays)
	if err != nil {
		return nil, nil, nil, err
	}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	a = &authority{template, private}
	certificate, key, err = a.sign(template, private)
	if err != nil {
		return nil, nil, nil, err
	}
	a.certificate, err = firstCertificate(certificate)
	return a, certificate, key, err
}

// parseAuthority returns the authority in a bundle to which a key belongs.
func parseAuthority(bundle, key []byte) (*authority, error) {
	block, _ := pem.Decode(key)
	if block == nil {
		return nil, fmt.Errorf("%s is not in PEM format: %w", authorityKeyFile, backup.ErrCorrupt)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", authorityKeyFile, err, backup.ErrCorrupt)
	}
	private, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s is not an ECDSA key: %w", authorityKeyFile, backup.ErrInvalid)
	}
	certificates, err := parseCertificates(bundle)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", authorityFile, err)
	}
	for _, c := range certificates {
		if private.PublicKey.Equal(c.PublicKey) {
			return &authority{c, private}, nil
		}
	}
	return nil, fmt.Errorf("%s is not the key of a certificate in %s: %w", authorityKeyFile, authorityFile, backup.ErrInvalid)
}

func newTemplate(commonName string, now time.Time, days int) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: commonName},
		NotBefore: now.Add(-backdate), NotAfter: now.AddDate(0, 0, days),
	}, nil
}

// A subject is the holder of a certificate.
type subject struct {
	name    string   // common name
	hosts   []string // names and addresses at which it serves
	serves  bool
	connect bool // also uses the certificate as a client
	route   bool // is a node of the NATS cluster
}

// issue creates a key and its certificate, both in PEM.
func (a *authority) issue(s subject, now time.Time, days int) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template, err := newTemplate(s.name, now, days)
	if err != nil {
		return nil, nil, err
	}
	if template.NotAfter.After(a.certificate.NotAfter) {
		template.NotAfter = a.certificate.NotAfter
	}
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if s.serves {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if s.connect {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	if s.route {
		template.URIs = []*url.URL{{Scheme: "bctl", Opaque: "nats-route"}}
	}
	for _, host := range s.hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.sign(template, private)
}

// sign returns a certificate for a key, and the key, in PEM.
func (a *authority) sign(template *x509.Certificate, private *ecdsa.PrivateKey) (certificate, key []byte, err error) {
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &private.PublicKey, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of %s: %w: %w", template.Subject.CommonName, err, backup.ErrInvalid)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), nil
}

func firstCertificate(data []byte) (*x509.Certificate, error) {
	all, err := parseCertificates(data)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// parseCertificates parses one or more certificates.
func parseCertificates(data []byte) (all []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate: %w: %w", err, backup.ErrCorrupt)
		}
		all = append(all, c)
	}
	if len(all) == 0 || len(bytes.TrimSpace(data)) > 0 {
		return nil, fmt.Errorf("not a certificate: %w", backup.ErrCorrupt)
	}
	return all, nil
}

package doctor

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// certificateWarns is the remaining validity at which a certificate should have been replaced; it
// leaves time to do so.
const certificateWarns = 30 * 24 * time.Hour

// secured reports on a connection's TLS. local means that the other end is this machine, so that
// the connection cannot be intercepted.
func secured(state *tls.ConnectionState, local bool, now time.Time) Finding {
	if state == nil {
		if local {
			return warn("acceptable for a trial; a fleet's connections need TLS (bctl deploy init creates certificates)", "no TLS, but the connection is to this machine")
		}
		return warn("use TLS: without it, passwords, file names and results can be read on the network (bctl deploy init creates certificates)", "no TLS")
	}
	var v verdict
	if len(state.PeerCertificates) > 0 {
		v.add(certificate(state.PeerCertificates[0], now))
	}
	if state.Version < tls.VersionTLS12 {
		v.add(warn("configure the server to refuse versions before TLS 1.2", "%s", tls.VersionName(state.Version)))
	} else {
		v.ok("%s", tls.VersionName(state.Version))
	}
	return v.finding()
}

// certificate reports the subject, the issuer and the validity of a certificate.
func certificate(c *x509.Certificate, now time.Time) Finding {
	text := fmt.Sprintf("certificate of %s by %s", subject(c), c.Issuer.CommonName)
	left := c.NotAfter.Sub(now)
	switch {
	case left <= 0:
		return fail("replace it (bctl deploy rotate)", "%s, expired %s ago", text, duration(left))
	case now.Before(c.NotBefore):
		return fail("check this machine's clock, or wait", "%s, valid only in %s", text, duration(c.NotBefore.Sub(now)))
	case left < certificateWarns:
		return warn("replace it (bctl deploy rotate)", "%s, %s left", text, duration(left))
	}
	return ok("%s, %d days left", text, int(left.Hours()/24))
}

// subject returns a certificate's common name, or the first of its other names.
func subject(c *x509.Certificate) string {
	switch {
	case c.Subject.CommonName != "":
		return c.Subject.CommonName
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.IPAddresses) > 0:
		return c.IPAddresses[0].String()
	}
	return "nobody"
}

// unreachable returns advice for a failed connection. who is the other end, and ca is the setting
// with its authorities.
func unreachable(err error, who, ca string) Finding {
	seen := oneLine(err)
	var (
		invalid   x509.CertificateInvalidError
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
	)
	text := strings.ToLower(seen)
	advice := "start " + who + ", or correct its address; check the firewalls between"
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		advice = "replace the server's certificate (bctl deploy rotate), or set this machine's clock"
	case errors.As(err, &invalid):
		advice = "replace the server's certificate: it is not a server certificate"
	case errors.As(err, &authority):
		advice = "set " + ca + " to the authority that signed the server's certificate"
	case errors.As(err, &name):
		advice = "use a name that is in the server's certificate, or create a certificate with this name (bctl deploy refresh)"
	case errors.Is(err, http.ErrSchemeMismatch), strings.Contains(text, "first record does not look like a tls"),
		strings.Contains(text, "secure connection not available"), strings.Contains(text, "server refused tls"):
		advice = "enable TLS on the server, or set an address without TLS"
	case strings.Contains(text, "remote error: tls"), strings.Contains(text, "after tls handshake"), strings.Contains(text, "certificate required"), strings.Contains(text, "requires a valid client certificate"):
		advice = "set this client's certificate and key: the server requires a valid certificate from its authority"
	case strings.Contains(text, "no such host"), strings.Contains(text, "server misbehaving"):
		advice = "correct the name of " + who + ", or add it to the DNS of this machine"
	case errors.Is(err, backup.ErrInvalid) && strings.Contains(text, "no such file"):
		advice = "correct the path of the file"
	}
	return Finding{Failure, seen, advice}
}

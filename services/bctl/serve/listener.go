package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
)

// listen opens the listener for metrics and health, with TLS if the settings have a certificate.
func listen(ctx context.Context, c *config.HTTP) (net.Listener, error) {
	files := 0
	for _, file := range []string{c.CertFile, c.KeyFile} {
		if file != "" {
			files++
		}
	}
	if files == 1 || files == 0 && c.ClientCAFile != "" || c.ClientCAFile == "" && len(c.Clients) > 0 {
		return nil, fmt.Errorf("set http.cert_file and http.key_file together; http.client_ca_file requires both, and http.clients requires http.client_ca_file: %w", backup.ErrInvalid)
	}
	if files > 0 {
		if _, err := serverTLS(c); err != nil { // reports an error before the first client connects
			return nil, err
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("http.listen: %w", err)
	}
	if files == 0 {
		return listener, nil
	}
	return tls.NewListener(listener, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return serverTLS(c) },
	}), nil
}

// serverTLS reads the files again for each connection, because they may have been rotated.
func serverTLS(c *config.HTTP) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("http.cert_file: %w: %w", err, backup.ErrInvalid)
	}
	server := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}}
	if c.ClientCAFile == "" {
		return server, nil
	}
	pem, err := os.ReadFile(c.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("http.client_ca_file: %w: %w", err, backup.ErrInvalid)
	}
	server.ClientCAs = x509.NewCertPool()
	if !server.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("http.client_ca_file: no certificate in %s: %w", c.ClientCAFile, backup.ErrInvalid)
	}
	// Health checks have no certificate: onlyClients decides.
	server.ClientAuth = tls.VerifyClientCertIfGiven
	return server, nil
}

// onlyClients refuses clients without a certificate that the settings allow.
func onlyClients(c *config.HTTP, next http.Handler) http.Handler {
	if c.ClientCAFile == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			http.Error(w, "a client certificate is needed", http.StatusUnauthorized)
			return
		}
		name := r.TLS.VerifiedChains[0][0].Subject.CommonName
		if len(c.Clients) > 0 && !slices.Contains(c.Clients, name) {
			http.Error(w, "this certificate is not in http.clients", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

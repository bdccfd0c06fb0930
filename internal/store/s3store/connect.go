package s3store

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/bctl/bctl/internal/backup"
)

const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 20 * time.Second
	idleTimeout      = 90 * time.Second
	idleConnections  = 128      // kept for further requests; more can be open
	bufferBytes      = 64 << 10 // per connection, in each direction
)

// newTransport returns the transport of a store. It sets no time limit for an answer, because a
// watchdog has one for each phase of an attempt.
func newTransport(o Options) (*http.Transport, error) {
	tlsConfig, err := newTLSConfig(o)
	if err != nil {
		return nil, err
	}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:       tlsConfig,
		TLSHandshakeTimeout:   handshakeTimeout,
		MaxIdleConns:          idleConnections,
		MaxIdleConnsPerHost:   idleConnections,
		IdleConnTimeout:       idleTimeout,
		ExpectContinueTimeout: time.Second,
		WriteBufferSize:       bufferBytes,
		ReadBufferSize:        bufferBytes,
		DisableCompression:    true, // otherwise bytes would not match Content-Length and Range
	}, nil
}

func newTLSConfig(o Options) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: o.Insecure}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("certificate authorities: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("certificate authorities: no certificate in %s: %w", o.CAFile, backup.ErrInvalid)
		}
	}
	if o.ClientCertFile != "" {
		load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(o.ClientCertFile, o.ClientKeyFile)
			return &pair, err
		}
		if _, err := load(nil); err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		config.GetClientCertificate = load
	}
	return config, nil
}

var errNoCredentials = errors.New("no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, " +
	"or BCTL_S3_ACCESS_KEY_ID and BCTL_S3_SECRET_ACCESS_KEY, or name a credentials file")

// newCredentials returns the first available credentials. It fails if there are none, because
// minio-go would continue without, and be refused.
func newCredentials(ctx context.Context, o Options, client *http.Client) (*credentials.Credentials, error) {
	found := credentials.NewChainCredentials(providers(o))
	value, err := found.GetWithContext(&credentials.CredContext{Client: client, Context: ctx})
	switch {
	case err != nil:
		return nil, fmt.Errorf("credentials: %w", err)
	case value.SignerType == credentials.SignatureAnonymous && o.CredentialsFile != "":
		return nil, fmt.Errorf("no credentials in %s: %w", o.CredentialsFile, backup.ErrInvalid)
	case value.SignerType == credentials.SignatureAnonymous:
		return nil, fmt.Errorf("%w: %w", errNoCredentials, backup.ErrInvalid)
	}
	return found, nil
}

func providers(o Options) []credentials.Provider {
	if o.AccessKey != "" {
		return []credentials.Provider{&credentials.Static{Value: credentials.Value{
			AccessKeyID: o.AccessKey, SecretAccessKey: o.SecretKey, SessionToken: o.SessionToken,
			SignerType: credentials.SignatureV4,
		}}}
	}
	if o.CredentialsFile != "" {
		return []credentials.Provider{&credentials.FileAWSCredentials{Filename: o.CredentialsFile, Profile: o.Profile}}
	}
	chain := []credentials.Provider{
		&credentials.Static{Value: credentials.Value{
			AccessKeyID:     os.Getenv("BCTL_S3_ACCESS_KEY_ID"),
			SecretAccessKey: os.Getenv("BCTL_S3_SECRET_ACCESS_KEY"),
			SessionToken:    os.Getenv("BCTL_S3_SESSION_TOKEN"),
			SignerType:      credentials.SignatureV4,
		}},
		&credentials.EnvAWS{},
		&credentials.FileAWSCredentials{Profile: o.Profile},
	}
	if o.InstanceRole || roleVariable() {
		// Only on request: on other machines nothing answers at its address, and the timeout is
		// long.
		chain = append(chain, &credentials.IAM{})
	}
	return chain
}

// roleVariable reports whether a container platform offers an identity.
func roleVariable() bool {
	for _, name := range []string{
		"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
	} {
		if os.Getenv(name) != "" {
			return true
		}
	}
	return false
}

package open

import (
	"context"
	"fmt"
	"math"
	"net/url"
	"os"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/pgindex"
)

// openPostgres connects with settings outside the URL, if there are any: the password, and the TLS
// files.
func openPostgres(ctx context.Context, c *config.Config) (index.Index, error) {
	dsn, err := postgresURL(&c.Index)
	if err != nil {
		return nil, err
	}
	return pgindex.Open(ctx, dsn, pgindex.Options{MaxConns: int32(min(c.Index.MaxConnections, math.MaxInt32))})
}

func postgresURL(c *config.Index) (string, error) {
	if (c.CertFile == "") != (c.KeyFile == "") {
		return "", fmt.Errorf("index.cert_file and index.key_file need each other: %w", backup.ErrInvalid)
	}
	if c.Password+c.CAFile+c.CertFile == "" {
		return c.URL, nil
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		// The error is omitted, because it would contain the URL.
		return "", fmt.Errorf("index.url cannot be parsed: %w", backup.ErrInvalid)
	}
	if c.Password != "" {
		u.User = url.UserPassword(u.User.Username(), c.Password)
	}
	query := u.Query()
	for parameter, file := range map[string]string{"sslrootcert": c.CAFile, "sslcert": c.CertFile, "sslkey": c.KeyFile} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil { // pgx would report only that the URL is wrong
			return "", fmt.Errorf("index: %w: %w", err, backup.ErrInvalid)
		}
		query.Set(parameter, file)
	}
	if c.CAFile != "" && !query.Has("sslmode") {
		query.Set("sslmode", "verify-full")
	}
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// IndexRefuses reports whether an error of an index means that its server refuses this client: its
// password, certificate or user, or that the database is missing.
func IndexRefuses(err error) bool {
	_, refused := pgindex.Refused(err)
	return refused
}

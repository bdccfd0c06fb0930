// Package open opens the components that the settings name: it is where bctl chooses adapters.
package open

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/internal/store/s3store"
)

// errNotNamed is returned if the settings do not name a repository.
var errNotNamed = fmt.Errorf("%w is named: use --repo DIR (BCTL_REPO), or --config FILE (BCTL_CONFIG)", backup.ErrNoRepository)

// Index opens the index. A missing SQLite index is backup.ErrNoRepository unless create is set.
func Index(ctx context.Context, c *config.Config, create bool) (index.Index, error) {
	return openIndex(ctx, c, create, sqliteindex.Open)
}

// IndexReadOnly opens the index for a command that only reads. A SQLite index may then be on a
// file system that is full, or mounted read-only. The methods that write fail.
func IndexReadOnly(ctx context.Context, c *config.Config) (index.Index, error) {
	return openIndex(ctx, c, false, sqliteindex.OpenReadOnly)
}

func openIndex(ctx context.Context, c *config.Config, create bool, sqlite func(context.Context, string) (*sqliteindex.Index, error)) (index.Index, error) {
	if c.Index.URL == "" {
		return nil, errNotNamed
	}
	path, local := c.IndexPath()
	if !local {
		return openPostgres(ctx, c)
	}
	where := filepath.Dir(path)
	if create {
		if err := deadLink(where); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(where, 0o700); err != nil {
			return nil, fmt.Errorf("make repository: %w", err)
		}
	} else if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := deadLink(path); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w in %s (bctl init --repo %s makes one)", backup.ErrNoRepository, where, where)
	}
	i, err := sqlite(ctx, path)
	if err != nil {
		return nil, err // otherwise a nil *sqliteindex.Index would become a non-nil index.Index
	}
	return i, nil
}

// Store opens the store. A missing directory store is backup.ErrNoRepository unless create is
// set.
func Store(ctx context.Context, c *config.Config, create bool, log *slog.Logger) (store.Store, error) {
	return ServiceStore(ctx, c, create, log, func(*store.Error) {})
}

// ServiceStore is Store for a service. onRetry is called with the reason for each retry of the
// store's client, which may try for minutes.
func ServiceStore(ctx context.Context, c *config.Config, create bool, log *slog.Logger, onRetry func(*store.Error)) (store.Store, error) {
	if c.Store.URL == "" {
		return nil, errNotNamed
	}
	path, local := c.StorePath()
	if mode, err := store.ParseLockMode(c.Store.ObjectLock); err != nil {
		return nil, fmt.Errorf("store.object_lock (--object-lock): %w", err)
	} else if local && mode != store.Unlocked {
		return nil, fmt.Errorf("store.object_lock (--object-lock): a directory cannot lock objects; use an S3 store, or off: %w", backup.ErrInvalid)
	}
	if !local {
		o, err := s3Options(c, log, onRetry)
		if err != nil {
			return nil, err
		}
		return s3store.Open(ctx, o)
	}
	if err := deadLink(path); err != nil {
		return nil, err
	}
	if create {
		return dirstore.Create(path)
	}
	s, err := dirstore.Open(path)
	if errors.Is(err, backup.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: there is no store in %s", backup.ErrNoRepository, path)
	}
	return s, err
}

func s3Options(c *config.Config, log *slog.Logger, onRetry func(*store.Error)) (s3store.Options, error) {
	o, err := s3store.ParseURL(c.Store.URL)
	if err != nil {
		return o, err
	}
	for to, value := range map[*string]string{
		&o.Endpoint: c.Store.Endpoint, &o.Region: c.Store.Region, &o.AccessKey: c.Store.AccessKey, &o.SecretKey: c.Store.SecretKey,
		&o.SessionToken: c.Store.SessionToken, &o.CredentialsFile: c.Store.CredentialsFile, &o.Profile: c.Store.Profile,
		&o.CAFile: c.Store.CAFile, &o.ClientCertFile: c.Store.CertFile, &o.ClientKeyFile: c.Store.KeyFile,
	} {
		if value != "" {
			*to = value // the setting overrides the URL
		}
	}
	if o.ObjectLock, err = store.ParseLockMode(c.Store.ObjectLock); err != nil {
		return o, fmt.Errorf("store.object_lock (--object-lock): %w", err)
	}
	o.DeleteVersions = c.Store.DeleteVersions
	o.InstanceRole = o.InstanceRole || c.Store.InstanceRole
	if c.Store.Retry != s3store.DefaultRetryFor { // the URL overrides the default
		o.RetryFor = c.Store.Retry
	}
	switch c.Store.Addressing {
	case "path":
		o.Addressing = s3store.AddressingPath
	case "host":
		o.Addressing = s3store.AddressingHost
	case "auto":
	default:
		return o, fmt.Errorf("store.addressing %q is not path, host or auto: %w", c.Store.Addressing, backup.ErrInvalid)
	}
	o.OnRetry = func(r s3store.Retry) {
		reason := &store.Error{Store: r.Store, Op: r.Op, Name: r.Name, Kind: r.Kind, Err: r.Err}
		onRetry(reason)
		logRetry(log, r, reason)
	}
	return o, nil
}

// logRetry logs a problem with the store, in the detail that its response allows.
func logRetry(log *slog.Logger, r s3store.Retry, err error) {
	pause, left := r.Pause.Seconds(), r.Remaining.Seconds()
	switch {
	case errors.Is(err, store.ErrFull):
		log.Warn("the store is full, will retry", "error", err, "attempt", r.Attempt, "pause_seconds", pause, "remaining_seconds", left)
	case errors.Is(err, fs.ErrPermission):
		log.Warn("the store refuses these credentials, will retry", "error", err, "attempt", r.Attempt, "pause_seconds", pause, "remaining_seconds", left)
	default:
		log.Warn("store request failed, will retry", "error", err, "attempt", r.Attempt, "pause_seconds", pause, "remaining_seconds", left)
	}
}

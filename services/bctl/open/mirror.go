package open

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/internal/store/ratestore"
)

// errNoMirror is returned if the settings name no mirror.
var errNoMirror = fmt.Errorf("no mirror is named: use --mirror DIR or s3://… (BCTL_MIRROR), or mirror.url in --config FILE: %w", backup.ErrInvalid)

// Mirror opens the mirror. A missing directory is backup.ErrNoRepository unless create is set.
func Mirror(ctx context.Context, c *config.Config, create bool, log *slog.Logger) (store.Store, error) {
	return mirror(ctx, c, create, log, func(*store.Error) {})
}

func mirror(ctx context.Context, c *config.Config, create bool, log *slog.Logger, onRetry func(*store.Error)) (store.Store, error) {
	at := c.AtMirror()
	switch {
	case at.Store.URL == "":
		return nil, errNoMirror
	case samePlace(c, at):
		return nil, fmt.Errorf("mirror.url %s is the place of the store itself, or one of the two is in the other: %w", at.Store.URL, backup.ErrInvalid)
	}
	s, err := ServiceStore(ctx, at, create, log, onRetry)
	if err != nil {
		return nil, fmt.Errorf("mirror: %w", err)
	}
	return ratestore.New(s, c.Mirror.RequestsPerSecond, c.Mirror.BytesPerSecond), nil
}

// WriteStore opens the store for a command that changes it. It fails with backup.ErrInvalid if the
// store is the mirror of the repository: what is written there, the store itself would lack.
func WriteStore(ctx context.Context, c *config.Config, log *slog.Logger) (store.Store, error) {
	if c.Mirror.URL != "" && samePlace(c, c.AtMirror()) {
		return nil, fmt.Errorf("%s is the mirror of this repository (mirror.url, BCTL_MIRROR): what is written there, the store would lack. Leave --store out. "+
			"If the store is lost, and the mirror is the store from now on, remove mirror.url first: %w", c.Store.URL, backup.ErrInvalid)
	}
	s, err := Store(ctx, c, false, log)
	if err != nil {
		return nil, err
	}
	if own := ownStore(ctx, c, s); own != "" {
		return nil, errors.Join(fmt.Errorf("%s is a mirror of the store in %s: what is written there, that store would lack. Leave --store out. "+
			"If the mirror is the store from now on, move %[2]s away first: %w", c.Store.URL, own, backup.ErrInvalid), s.Close())
	}
	return s, nil
}

// ownStore returns the directory with the store of c.Repo, if s is a mirror of it in another place.
// What it cannot find out is none: commands then fail at what they need.
func ownStore(ctx context.Context, c *config.Config, s store.Store) string {
	if c.Repo == "" {
		return ""
	}
	own := *c
	own.Store = config.Store{URL: filepath.Join(c.Repo, "store")}
	if samePlace(c, &own) {
		return ""
	}
	isMirror := false
	for _, err := range s.List(ctx, store.SumsPrefix) {
		isMirror = err == nil
		break
	}
	if !isMirror {
		return ""
	}
	there, err := dirstore.Open(own.Store.URL)
	if err != nil {
		return ""
	}
	defer there.Close()
	is, err := repo.ReadObject(ctx, there)
	if err != nil {
		return ""
	}
	if of, err := repo.ReadObject(ctx, s); err != nil || of.ID != is.ID {
		return ""
	}
	return own.Store.URL
}

// samePlace reports whether a store and its mirror are at one place, or one in the other.
func samePlace(c, mirror *config.Config) bool {
	a, aLocal := c.StorePath()
	b, bLocal := mirror.StorePath()
	switch {
	case c.Store.URL == "" || aLocal != bLocal:
		return false
	case !aLocal:
		return strings.TrimRight(a, "/") == strings.TrimRight(b, "/") && c.Store.Endpoint == mirror.Store.Endpoint
	}
	resolved := func(path string) string {
		if absolute, err := filepath.Abs(path); err == nil {
			path = absolute
		}
		rest := "" // what does not exist yet
		for at := path; ; rest, at = filepath.Join(filepath.Base(at), rest), filepath.Dir(at) {
			if target, err := filepath.EvalSymlinks(at); err == nil {
				path = filepath.Join(target, rest)
				break
			}
			if at == filepath.Dir(at) {
				break
			}
		}
		return strings.TrimSuffix(path, string(filepath.Separator)) + string(filepath.Separator)
	}
	a, b = resolved(a), resolved(b)
	return strings.HasPrefix(a, b) || strings.HasPrefix(b, a)
}

// MirrorPair opens the store and its mirror, within the limits of the mirror's settings. onRetry is
// that of ServiceStore.
func MirrorPair(ctx context.Context, c *config.Config, create bool, log *slog.Logger, onRetry func(*store.Error)) (from, to store.Store, err error) {
	if to, err = mirror(ctx, c, create, log, onRetry); err != nil {
		return nil, nil, err
	}
	from, err = ServiceStore(ctx, c, false, log, onRetry)
	if err != nil {
		_ = to.Close() // nothing was written
		return nil, nil, err
	}
	return ratestore.New(from, c.Mirror.RequestsPerSecond, c.Mirror.BytesPerSecond), to, nil
}

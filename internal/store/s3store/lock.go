package s3store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// lockMode returns the mode in which a new object is locked; "": it is not.
func (s *Store) lockMode(name string) minio.RetentionMode {
	if s.options.ObjectLock == store.Unlocked || !store.Lockable(name) {
		return ""
	}
	return minio.RetentionMode(strings.ToUpper(string(s.options.ObjectLock)))
}

// Lock implements store.Store. It never asks to bypass a lock, so that the server refuses to
// shorten one.
func (s *Store) Lock(ctx context.Context, name string, until time.Time) error {
	mode := s.lockMode(name)
	if mode == "" {
		return s.fail("lock", name, backup.ErrInvalid, errors.New("the store was opened without object lock"))
	}
	if err := store.CheckName(name); err != nil {
		return s.fail("lock", name, nil, err)
	}
	date := until.UTC().Truncate(time.Second)
	if date.Before(until) {
		date = date.Add(time.Second)
	}
	return s.do(ctx, "lock", name, func(ctx context.Context, _ *watchdog) error {
		err := s.core.PutObjectRetention(ctx, s.options.Bucket, s.prefix+name, minio.PutObjectRetentionOptions{Mode: &mode, RetainUntilDate: &date})
		if isLocked(err) {
			return nil // for longer
		}
		return err
	})
}

// LockedUntil returns until when an object is locked; zero: it is not.
func (s *Store) LockedUntil(ctx context.Context, name string) (until time.Time, err error) {
	err = s.do(ctx, "stat", name, func(ctx context.Context, _ *watchdog) error {
		info, err := s.head(ctx, name)
		if err != nil {
			return err
		}
		until, _ = time.Parse(time.RFC3339, info.Metadata.Get("X-Amz-Object-Lock-Retain-Until-Date")) // zero if there is none
		return nil
	})
	return until, err
}

// CheckLock returns an error that wraps backup.ErrInvalid unless the bucket allows objects to be
// locked, and one that wraps fs.ErrPermission if these credentials may not find out.
func (s *Store) CheckLock(ctx context.Context) error {
	return s.do(ctx, "lock", store.ConfigName, func(ctx context.Context, _ *watchdog) error {
		enabled, _, _, _, err := s.core.GetObjectLockConfig(ctx, s.options.Bucket)
		response, answered := errors.AsType[minio.ErrorResponse](err)
		switch {
		case err == nil && enabled == "Enabled":
			return nil
		case err == nil, answered && response.Code == "ObjectLockConfigurationNotFoundError":
			return final{fmt.Errorf("object lock is not enabled for the bucket %s: enable it when you create the bucket (mc mb --with-lock, aws s3api create-bucket --object-lock-enabled-for-bucket): %w", s.options.Bucket, backup.ErrInvalid)}
		case errors.Is(kindOf(err), fs.ErrPermission):
			return final{fmt.Errorf("the permission s3:GetBucketObjectLockConfiguration is needed: %w", fs.ErrPermission)}
		}
		return err
	})
}

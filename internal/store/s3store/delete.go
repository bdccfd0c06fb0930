package s3store

import (
	"context"
	"errors"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// deletedAtOnce is how many objects, or versions of objects, one request can delete.
const deletedAtOnce = 1000

// Delete implements store.Store. In a bucket with versions it leaves a delete marker, unless
// Options.DeleteVersions is set.
func (s *Store) Delete(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := store.CheckName(name); err != nil {
			return s.fail("delete", name, nil, err)
		}
	}
	var locked *store.LockedError
	for group := range slices.Chunk(names, deletedAtOnce) {
		err := s.do(ctx, "delete", group[0], func(ctx context.Context, w *watchdog) error {
			if s.options.DeleteVersions {
				return s.deleteVersions(ctx, w, group)
			}
			return s.deleteGroup(ctx, group)
		})
		if some, ok := errors.AsType[*store.LockedError](err); ok {
			locked = mergeLocked(locked, some)
		} else if err != nil {
			return err
		}
	}
	if locked != nil {
		return s.fail("delete", "", nil, locked)
	}
	return nil
}

func mergeLocked(all, some *store.LockedError) *store.LockedError {
	if all == nil {
		return some
	}
	all.Names = append(all.Names, some.Names...)
	return all
}

// bypass reports whether a deletion may remove the retention of mode governance that versitygw's
// bucket gives to each object, so that nobody can overwrite it. Locks are never removed.
func (s *Store) bypass() bool { return s.options.ObjectLock == store.Unlocked }

// deleteGroup deletes objects with one request.
func (s *Store) deleteGroup(ctx context.Context, names []string) error {
	if len(names) == 1 {
		err := s.core.RemoveObject(ctx, s.options.Bucket, s.prefix+names[0], minio.RemoveObjectOptions{GovernanceBypass: s.bypass()})
		if isLocked(err) {
			return final{&store.LockedError{Names: names, Err: err}}
		}
		return missingIsDeleted(err)
	}
	objects := make([]minio.ObjectInfo, len(names))
	for i, name := range names {
		objects[i].Key = s.prefix + name
	}
	return s.deleteObjects(ctx, objects)
}

// deleteVersions deletes all versions of objects, and their delete markers. It lists the versions
// of a snapshot's objects together: one list request for up to 1,000.
func (s *Store) deleteVersions(ctx context.Context, w *watchdog, names []string) error {
	wanted, prefixes := map[string]bool{}, []string{}
	for _, name := range names {
		wanted[s.prefix+name] = true
		prefix := name
		if dir := path.Dir(name); strings.Contains(dir, "/") {
			prefix = dir + "/"
		}
		prefixes = append(prefixes, prefix)
	}
	slices.Sort(prefixes)
	var locked *store.LockedError
	var versions []minio.ObjectInfo
	remove := func() error {
		err := s.deleteObjects(ctx, versions)
		versions = versions[:0]
		if some, ok := errors.AsType[*store.LockedError](err); ok {
			locked, err = mergeLocked(locked, some), nil
		}
		return err
	}
	listing, stop := context.WithCancel(ctx)
	defer stop() // otherwise the client's goroutine would list the rest
	for _, prefix := range slices.Compact(prefixes) {
		for v := range s.core.Client.ListObjects(listing, s.options.Bucket, minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true, WithVersions: true}) {
			if v.Err != nil {
				return v.Err
			}
			w.timer.Reset(w.reply)
			if !wanted[v.Key] {
				continue
			}
			if versions = append(versions, minio.ObjectInfo{Key: v.Key, VersionID: v.VersionID}); len(versions) == deletedAtOnce {
				if err := remove(); err != nil {
					return err
				}
			}
		}
	}
	if err := remove(); err != nil {
		return err
	}
	if locked != nil {
		slices.Sort(locked.Names)
		locked.Names = slices.Compact(locked.Names)
		return final{locked}
	}
	return nil
}

// deleteObjects deletes objects, or versions of objects, with one request. It fails with a final
// *store.LockedError if only locked ones are left.
func (s *Store) deleteObjects(ctx context.Context, list []minio.ObjectInfo) error {
	if len(list) == 0 {
		return nil
	}
	objects := make(chan minio.ObjectInfo, len(list))
	for i := range list {
		objects <- list[i]
	}
	close(objects)
	var failed error
	locked := &store.LockedError{}
	for result := range s.core.RemoveObjectsWithResult(ctx, s.options.Bucket, objects, minio.RemoveObjectsOptions{GovernanceBypass: s.bypass()}) {
		switch {
		case isLocked(result.Err):
			locked.Names, locked.Err = append(locked.Names, strings.TrimPrefix(result.ObjectName, s.prefix)), result.Err
		case failed == nil:
			failed = missingIsDeleted(withStatus(result.Err))
		}
	}
	if failed == nil && len(locked.Names) > 0 {
		return final{locked}
	}
	return failed
}

// isLocked reports whether a request was refused because an object is locked.
func isLocked(err error) bool {
	response, ok := errors.AsType[minio.ErrorResponse](err)
	return ok && saysLocked(response)
}

// saysLocked recognizes the answers of versitygw and Amazon, and of MinIO, which have no code of
// their own.
func saysLocked(response minio.ErrorResponse) bool {
	text := strings.ToLower(response.Message)
	return strings.Contains(text, "object lock") || strings.Contains(text, "worm protected")
}

// withStatus adds an HTTP status to the error of one object, which has only a code in the answer to
// a request for many objects. It is the status with which S3 answers a request for one object with
// this code.
func withStatus(err error) error {
	response, ok := errors.AsType[minio.ErrorResponse](err)
	if !ok || response.StatusCode != 0 {
		return err
	}
	switch response.Code {
	case "AccessDenied":
		response.StatusCode = http.StatusForbidden
	case "InternalError":
		response.StatusCode = http.StatusInternalServerError
	case "SlowDown", "ServiceUnavailable":
		response.StatusCode = http.StatusServiceUnavailable
	}
	return response
}

func missingIsDeleted(err error) error {
	if err != nil && errors.Is(kindOf(err), backup.ErrNotFound) {
		return nil
	}
	return err
}

package s3store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/testenv"
)

// lockedBucket returns options for a new bucket with object lock.
func lockedBucket(t *testing.T, server *testenv.S3Server, mode store.LockMode) Options {
	t.Helper()
	o := optionsFor(server)
	o.Bucket, o.ObjectLock = "locked-"+string(mode), mode
	if err := open(t, o).core.MakeBucket(t.Context(), o.Bucket, minio.MakeBucketOptions{ObjectLocking: true}); err != nil {
		t.Fatal(err)
	}
	return o
}

// A new object is locked. The lock can be extended, but not shortened. A lock that the store cannot
// set is refused.
func TestLocks(t *testing.T) {
	forEachServer(t, func(t *testing.T, server *testenv.S3Server) {
		for _, mode := range []store.LockMode{store.Governance, store.Compliance} {
			o := lockedBucket(t, server, mode)
			s, ctx := open(t, o), t.Context()
			if err := s.CheckLock(ctx); err != nil {
				t.Error(err)
			}
			snapshot := backup.NewSnapshotID()
			name := store.PackName(snapshot, backup.NewPackID())
			if err := s.Put(ctx, name, []byte("pack")); err != nil {
				t.Fatal(err)
			}
			until, err := s.LockedUntil(ctx, name)
			if want := time.Now().Add(store.InitialLock); err != nil || until.Sub(want).Abs() > time.Minute {
				t.Errorf("%s: locked until %v, %v, want %v", mode, until, err, want)
			}
			longer := time.Now().Add(1000 * time.Hour)
			for _, to := range []time.Time{longer, longer.Add(-500 * time.Hour)} {
				if err := s.Lock(ctx, name, to); err != nil {
					t.Errorf("%s: lock until %v: %v", mode, to, err)
				}
				until, err := s.LockedUntil(ctx, name)
				if err != nil || until.Before(longer.Truncate(time.Second)) || until.After(longer.Add(time.Second)) {
					t.Errorf("%s: after a lock until %v, it is locked until %v, %v; want %v", mode, to, until, err, longer)
				}
			}
			if err := s.Lock(ctx, store.CommitName(snapshot), longer); !errors.Is(err, backup.ErrNotFound) {
				t.Errorf("lock of a missing object: %v", err)
			}
			index := store.IndexName(1, 0)
			if err := s.Put(ctx, index, []byte("copy")); err != nil {
				t.Fatal(err)
			}
			if until, err := s.LockedUntil(ctx, index); err != nil || !until.IsZero() {
				t.Errorf("a copy of the index is locked until %v, %v", until, err)
			}
			if err := s.Delete(ctx, index); err != nil {
				t.Error(err)
			}
		}
		plain := open(t, optionsFor(server))
		if err := plain.CheckLock(t.Context()); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("a bucket without object lock: %v", err)
		}
		if err := plain.Lock(t.Context(), store.ConfigName, time.Now().Add(time.Hour)); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("lock without a mode: %v", err)
		}
	})
}

// Locked objects, or in a bucket with versions their versions, are not deleted: all others are, and
// the error names those that stay.
func TestDeleteLocked(t *testing.T) {
	forEachServer(t, func(t *testing.T, server *testenv.S3Server) {
		for _, mode := range []store.LockMode{store.Governance, store.Compliance} {
			o := lockedBucket(t, server, mode)
			o.DeleteVersions = strings.HasSuffix(t.Name(), "minio") // a versitygw keeps no versions here
			s, ctx := open(t, o), t.Context()
			o.ObjectLock = store.Unlocked
			unlocked := open(t, o)
			snapshot := backup.NewSnapshotID()
			var names, locked []string
			for i := range 10 {
				name := store.PackName(snapshot, backup.NewPackID())
				names = append(names, name)
				to := unlocked
				if i%3 == 0 {
					to, locked = s, append(locked, name)
				}
				if err := to.Put(ctx, name, []byte("pack")); err != nil {
					t.Fatal(err)
				}
			}
			slices.Sort(locked)
			for range 2 { // also when nothing else is left
				refused, ok := errors.AsType[*store.LockedError](s.Delete(ctx, names...))
				if !ok {
					t.Fatalf("%s: no LockedError", mode)
				}
				slices.Sort(refused.Names)
				if !slices.Equal(refused.Names, locked) {
					t.Errorf("%s: %q are locked, want %q", mode, refused.Names, locked)
				}
			}
			if refused, ok := errors.AsType[*store.LockedError](s.Delete(ctx, locked[0])); !ok || !slices.Equal(refused.Names, locked[:1]) {
				t.Errorf("%s: the deletion of one locked object: %v", mode, refused)
			}
			left := []string{}
			for object, err := range s.List(ctx, "") {
				if err != nil {
					t.Fatal(err)
				}
				left = append(left, object.Name)
			}
			slices.Sort(left)
			if !slices.Equal(left, locked) {
				t.Errorf("%s: %q are left, want %q", mode, left, locked)
			}
		}
	})
}

// In a bucket with versions, a locked object that is damaged is replaced if versions stay: the lock
// keeps the damaged version, and the sound one is in front of it.
func TestReplaceLocked(t *testing.T) {
	forEachServer(t, func(t *testing.T, server *testenv.S3Server) {
		if !strings.HasSuffix(t.Name(), "minio") {
			return // a versitygw keeps no versions here
		}
		o := lockedBucket(t, server, store.Compliance)
		s, ctx := open(t, o), t.Context()
		name := store.PackName(backup.NewSnapshotID(), backup.NewPackID())
		for _, content := range []string{"damaged", "sound"} {
			if err := store.Replace(ctx, s, name, []byte(content)); err != nil {
				t.Fatal(err)
			}
			if data, err := s.Get(ctx, name, 100); err != nil || string(data) != content {
				t.Errorf("%q, %v; want %q", data, err, content)
			}
		}
		if until, err := s.LockedUntil(ctx, name); err != nil || until.Before(time.Now()) {
			t.Errorf("the new version is locked until %v, %v", until, err)
		}
	})
}

// With DeleteVersions, nothing is left of an object: no version and no delete marker. One request
// deletes 1,000 versions.
func TestDeleteVersions(t *testing.T) {
	server := testenv.Minio(t)
	o := optionsFor(server)
	s, ctx := open(t, o), t.Context()
	if err := s.core.EnableVersioning(ctx, o.Bucket); err != nil {
		t.Fatal(err)
	}
	versions := func() (n int) {
		for v := range s.core.Client.ListObjects(ctx, o.Bucket, minio.ListObjectsOptions{Recursive: true, WithVersions: true}) {
			if v.Err != nil {
				t.Fatal(v.Err)
			}
			n++
		}
		return n
	}
	snapshot, other := backup.NewSnapshotID(), store.CommitName(backup.NewSnapshotID())
	names := []string{store.CommitName(snapshot)}
	for range 20 {
		names = append(names, store.PackName(snapshot, backup.NewPackID()))
	}
	for _, name := range append(names, other) {
		if err := s.Put(ctx, name, []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delete(ctx, names...); err != nil {
		t.Fatal(err)
	}
	if n := versions(); n != 2*len(names)+1 { // with the delete markers
		t.Errorf("without DeleteVersions, %d versions and markers are left, want %d", n, 2*len(names)+1)
	}
	o.DeleteVersions = true
	if err := open(t, o).Delete(ctx, names...); err != nil {
		t.Fatal(err)
	}
	if n := versions(); n != 1 {
		t.Errorf("%d versions and markers are left, want that of %s", n, other)
	}
	if _, err := s.Stat(ctx, other); err != nil {
		t.Error(err)
	}
	if err := open(t, o).Delete(ctx, fmt.Sprintf("%smissing", store.CommitsPrefix)); err != nil {
		t.Errorf("a missing object: %v", err)
	}
}

package installation

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/s3store"
	"github.com/bctl/bctl/internal/testenv"
)

// lockedStore is withStore for an installation with object lock.
func lockedStore(t *testing.T, kind StoreKind, mode store.LockMode) *objectStore {
	t.Helper()
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "fleet")
	p := testPlan(dir, "127.0.0.1:4222")
	p.Store = Store{URL: "s3://bctl/repo", Endpoint: fmt.Sprintf("https://127.0.0.1:%d", port), Region: "us-east-1", Kind: kind, ObjectLock: mode, DeleteVersions: kind == MinIO}
	if err := Init(dir, p, time.Now()); err != nil {
		t.Fatal(err)
	}
	return &objectStore{opened(t, dir), servers[kind](t, filepath.Join(dir, "s3"), port)}
}

// With object lock, each role can do its work: what it puts is locked, and the pruner extends
// locks. Nobody can shorten or bypass one.
func TestStoreRolesWithObjectLock(t *testing.T) {
	for kind := range servers {
		for _, mode := range []store.LockMode{store.Governance, store.Compliance} {
			t.Run(string(kind)+" "+string(mode), func(t *testing.T) {
				t.Parallel()
				s := lockedStore(t, kind, mode)
				s.testLockedWork(t)
				s.testLocksStay(t, mode)
			})
		}
	}
}

// locking returns the store as the role's bctl uses it.
func (s *objectStore) locking(t *testing.T, folder string) *s3store.Store {
	t.Helper()
	return s.lockingAs(t, s.key(t, folder))
}

func (s *objectStore) lockingAs(t *testing.T, key StoreKey) *s3store.Store {
	t.Helper()
	x, err := s3store.Open(t.Context(), s3store.Options{
		Endpoint: s.Plan.Store.Endpoint, Region: "us-east-1", Bucket: "bctl", Prefix: "repo", Addressing: s3store.AddressingPath,
		AccessKey: key.Access, SecretKey: key.Secret, CAFile: filepath.Join(s.dir, "ca", "ca.pem"), RetryFor: time.Second,
		ObjectLock: s.Plan.Store.ObjectLock, DeleteVersions: s.Plan.Store.DeleteVersions,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

func (s *objectStore) testLockedWork(t *testing.T) {
	ctx := t.Context()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	admin, pruner := s.locking(t, "admin"), s.locking(t, "pruner")
	must("the admin checks the bucket", admin.CheckLock(ctx))
	must("the admin writes the repository", admin.PutNew(ctx, store.ConfigName, []byte("repository")))
	must("the reader puts a pack", s.locking(t, "reader@paris").Put(ctx, packObject, []byte("pack")))
	committer := s.locking(t, "committer")
	record, catalog := store.CommitName(backup.NewSnapshotID()), store.CatalogName(1)
	for _, name := range []string{segmentObject, record, catalog} {
		must("the committer puts "+name, committer.Put(ctx, name, []byte("x")))
	}
	must("the pruner puts a pack", pruner.Put(ctx, packObject+"1", []byte("pack")))
	operator := s.locking(t, "operator")
	must("the operator checks the bucket", operator.CheckLock(ctx))
	root := s.lockingAs(t, s.root()) // MinIO hides locks from roles that need not see them
	until := time.Now().Add(300 * 24 * time.Hour)
	for _, name := range []string{store.ConfigName, packObject, segmentObject, record, catalog} {
		first, err := root.LockedUntil(ctx, name)
		if err != nil || first.Sub(time.Now().Add(store.InitialLock)).Abs() > time.Minute {
			t.Errorf("%s is locked until %v, %v", name, first, err)
		}
		must("the pruner extends the lock of "+name, pruner.Lock(ctx, name, until))
		longer, err := root.LockedUntil(ctx, name)
		if err != nil || longer.Before(until.Truncate(time.Second)) {
			t.Errorf("%s is locked until %v, %v; want %v", name, longer, err, until)
		}
	}
	names := []string{packObject, segmentObject, record}
	refused, ok := errors.AsType[*store.LockedError](pruner.Delete(ctx, names...))
	if !ok {
		t.Fatal("the pruner deletes locked objects")
	}
	slices.Sort(refused.Names)
	slices.Sort(names)
	if !slices.Equal(refused.Names, names) {
		t.Errorf("locked: %q, want %q", refused.Names, names)
	}
}

// testLocksStay tries to shorten locks with the keys of all roles.
func (s *objectStore) testLocksStay(t *testing.T, mode store.LockMode) {
	ctx := t.Context()
	retention := minio.RetentionMode(strings.ToUpper(string(mode)))
	version := ""
	if info, err := s.raw(t, s.root()).StatObject(ctx, "bctl", "repo/"+packObject, minio.StatObjectOptions{}); err != nil {
		t.Fatal(err)
	} else if s.Plan.Store.Kind == MinIO {
		version = info.VersionID
	}
	for _, folder := range []string{"admin", "committer", "reader@paris", "operator", "pruner", "scrubber", "restorer"} {
		core := s.raw(t, s.key(t, folder))
		sooner := time.Now().Add(time.Hour).UTC()
		for _, bypass := range []bool{false, true} {
			if bypass && s.Plan.Store.Kind == MinIO && mode == store.Governance {
				continue // it removes the lock for any of its users (docs/security.md)
			}
			err := core.PutObjectRetention(ctx, "bctl", "repo/"+packObject, minio.PutObjectRetentionOptions{Mode: &retention, RetainUntilDate: &sooner, GovernanceBypass: bypass})
			if err == nil {
				t.Errorf("%s shortens a lock (bypass: %v)", folder, bypass)
			}
			if err := core.PutObjectRetention(ctx, "bctl", "repo/"+packObject, minio.PutObjectRetentionOptions{GovernanceBypass: bypass}); err == nil {
				t.Errorf("%s removes a lock (bypass: %v)", folder, bypass)
			}
			if err := core.RemoveObject(ctx, "bctl", "repo/"+packObject, minio.RemoveObjectOptions{VersionID: version, GovernanceBypass: bypass}); err == nil {
				t.Errorf("%s deletes a locked object (bypass: %v)", folder, bypass)
			}
		}
	}
	for _, folder := range []string{"admin", "operator", "committer"} {
		if err := s.locking(t, folder).Lock(ctx, packObject, time.Now().Add(24*365*time.Hour)); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s locks a pack: %v", folder, err)
		}
	}
}

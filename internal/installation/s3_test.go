package installation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/s3store"
	"github.com/bctl/bctl/internal/testenv"
)

// objectStore is an installation with its store, set up with apply.sh and the other generated
// files.
type objectStore struct {
	*Installation
	server *testenv.LockedS3
}

func withStore(t *testing.T, kind StoreKind, lock func(testing.TB, string, int) *testenv.LockedS3) *objectStore {
	t.Helper()
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "fleet")
	p := testPlan(dir, "127.0.0.1:4222")
	p.Store = Store{URL: "s3://bctl/repo", Endpoint: fmt.Sprintf("https://127.0.0.1:%d", port), Region: "us-east-1", Kind: kind}
	if err := Init(dir, p, time.Now()); err != nil {
		t.Fatal(err)
	}
	return &objectStore{opened(t, dir), lock(t, filepath.Join(dir, "s3"), port)}
}

// key returns the newest key of a folder's identity.
func (s *objectStore) key(t *testing.T, folder string) StoreKey {
	t.Helper()
	c, err := s.begin(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range s.Plan.newest() {
		if i.home() == folder {
			return c.keys[i]
		}
	}
	t.Fatalf("no key of %s", folder)
	return StoreKey{}
}

// as returns the store, accessed with a key.
func (s *objectStore) as(t *testing.T, key StoreKey) store.Store {
	t.Helper()
	x, err := s3store.Open(t.Context(), s3store.Options{
		Endpoint: s.Plan.Store.Endpoint, Region: "us-east-1", Bucket: "bctl", Prefix: "repo", Addressing: s3store.AddressingPath,
		AccessKey: key.Access, SecretKey: key.Secret, CAFile: filepath.Join(s.dir, "ca", "ca.pem"), RetryFor: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

// raw returns the store, accessed with a key but without bctl.
func (s *objectStore) raw(t *testing.T, key StoreKey) *minio.Core {
	t.Helper()
	transport, err := minio.DefaultTransport(true)
	if err != nil {
		t.Fatal(err)
	}
	authorities, err := os.ReadFile(filepath.Join(s.dir, "ca", "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(authorities) {
		t.Fatal("no certificate in ca.pem")
	}
	core, err := minio.NewCore(s.server.Endpoint, &minio.Options{
		Creds: credentials.NewStaticV4(key.Access, key.Secret, ""), Secure: true, Region: "us-east-1", Transport: transport,
	})
	if err != nil {
		t.Fatal(err)
	}
	return core
}

func (s *objectStore) root() StoreKey { return StoreKey{s.server.AccessKey, s.server.SecretKey} }

var servers = map[StoreKind]func(testing.TB, string, int) *testenv.LockedS3{VersityGW: testenv.LockVersityGW, MinIO: testenv.LockMinio}

const (
	packObject    = "packs/00000000000000000000000000000001/00000000000000000000000000000002"
	segmentObject = "segments/00000000000000000000000000000001/00000000000000000000000000000003-000000"
)

// Each role can perform the operations that it needs, and no others, with bctl or any other client.
func TestStoreRoles(t *testing.T) {
	for kind, lock := range servers {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := withStore(t, kind, lock)
			s.testWork(t)
			s.testForbidden(t)
			s.testOverwrite(t)
			s.testPruner(t)
			s.testScrubber(t)
			s.testKeys(t)
		})
	}
}

func (s *objectStore) testWork(t *testing.T) {
	admin, committer, reader, operator := s.as(t, s.key(t, "admin")), s.as(t, s.key(t, "committer")), s.as(t, s.key(t, "reader@paris")), s.as(t, s.key(t, "operator"))
	ctx := t.Context()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := admin.Get(ctx, store.ConfigName, 100); !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("admin looks for a repository: %v", err)
	}
	must("admin", admin.PutNew(ctx, store.ConfigName, []byte("repository")))
	if err := admin.PutNew(ctx, store.ConfigName, []byte("another")); !errors.Is(err, backup.ErrExists) {
		t.Errorf("a second repository: %v", err)
	}
	for _, err := range admin.List(ctx, store.SegmentsPrefix) {
		must("admin lists", err)
	}
	must("reader", reader.Put(ctx, packObject, []byte("pack")))
	must("reader, again", reader.Put(ctx, packObject, []byte("pack")))
	must("committer", committer.Put(ctx, segmentObject, []byte("segment")))
	if _, err := committer.Stat(ctx, packObject+"0"); !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("committer looks for a pack that is not there: %v", err)
	}
	listed := 0
	for object, err := range operator.List(ctx, "") {
		must("operator lists", err)
		data, err := operator.Get(ctx, object.Name, 100)
		must("operator gets", err)
		listed += len(data)
	}
	if listed != len("repositorypacksegment") {
		t.Errorf("operator: %d bytes", listed)
	}
	for name, of := range map[string]store.Store{packObject: reader, segmentObject: committer, store.ConfigName: committer} {
		_, err := of.GetRange(ctx, nil, name, 0, 4)
		must("get "+name, err)
		_, err = of.Stat(ctx, store.ConfigName) // whether the store responds
		must("stat", err)
	}
	_, err := committer.Stat(ctx, packObject)
	must("committer looks for a pack", err)
}

func (s *objectStore) testForbidden(t *testing.T) {
	ctx := t.Context()
	denied := func(who, what string, err error) {
		t.Helper()
		if response := minio.ToErrorResponse(err); err == nil || response.Code != "AccessDenied" {
			t.Errorf("%s: %s: %v", who, what, err)
		}
	}
	may := map[string][]string{"admin": {"repository", "keys/"}, "committer": {"segments/", "commits/", "catalog/"}, "reader@paris": {"packs/"}, "operator": nil, "pruner": {"packs/", "parity/"}, "scrubber": nil, "restorer": nil, "mirror": nil}
	for folder, prefixes := range may {
		core := s.raw(t, s.key(t, folder))
		for _, name := range []string{"packs/x", "segments/x", "commits/x", "catalog/x", "keys/x", "parity/x", "repository", "x"} {
			if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				continue
			}
			_, err := core.PutObject(ctx, "bctl", "repo/"+name, strings.NewReader("x"), 1, "", "", minio.PutObjectOptions{})
			denied(folder, "put "+name, err)
			_, err = core.NewMultipartUpload(ctx, "bctl", "repo/"+name, minio.PutObjectOptions{})
			denied(folder, "put in parts "+name, err)
		}
		_, err := core.PutObject(ctx, "bctl", "packs/x", strings.NewReader("x"), 1, "", "", minio.PutObjectOptions{})
		denied(folder, "put outside of the prefix", err)
		for _, name := range []string{packObject, segmentObject, "repository"} {
			if folder == "pruner" && name != "repository" {
				continue // testPruner
			}
			denied(folder, "delete "+name, core.RemoveObject(ctx, "bctl", "repo/"+name, minio.RemoveObjectOptions{}))
			denied(folder, "delete the null version of "+name, core.RemoveObject(ctx, "bctl", "repo/"+name, minio.RemoveObjectOptions{VersionID: "null", GovernanceBypass: true}))
		}
		for failed := range core.RemoveObjects(ctx, "bctl", objects("repo/repository"), minio.RemoveObjectsOptions{GovernanceBypass: true}) {
			denied(folder, "delete several", failed.Err)
		}
		denied(folder, "suspend versions", core.SuspendVersioning(ctx, "bctl"))
		denied(folder, "change the policy", core.SetBucketPolicy(ctx, "bctl", ""))
		mode, days, unit := minio.Governance, uint(1), minio.Days
		denied(folder, "change the lock", core.SetObjectLockConfig(ctx, "bctl", &mode, &days, &unit))
		denied(folder, "remove the bucket", core.RemoveBucket(ctx, "bctl"))
		denied(folder, "make a bucket", core.MakeBucket(ctx, "another", minio.MakeBucketOptions{}))
	}
	reader := s.raw(t, s.key(t, "reader@paris"))
	_, err := reader.ListObjects("bctl", "repo/", "", "", 10)
	denied("reader", "list", err)
	_, _, _, err = reader.GetObject(ctx, "bctl", "repo/"+segmentObject, minio.GetObjectOptions{})
	denied("reader", "get a segment", err)
	_, err = reader.CopyObject(ctx, "bctl", "repo/"+segmentObject, "bctl", "repo/packs/copy", nil, minio.CopySrcOptions{}, minio.PutObjectOptions{})
	denied("reader", "copy a segment", err)
}

// The pruner deletes packs, segments and commit records, one or many at a time, and nothing else.
// It reads and writes packs only.
func (s *objectStore) testPruner(t *testing.T) {
	ctx := t.Context()
	pruner, reader, committer := s.as(t, s.key(t, "pruner")), s.as(t, s.key(t, "reader@paris")), s.as(t, s.key(t, "committer"))
	for round := range 2 {
		record := store.CommitName(backup.NewSnapshotID())
		names := []string{packObject + "a", packObject + "b", segmentObject[:len(segmentObject)-1] + "1", record}
		for _, name := range names {
			by := committer
			if strings.HasPrefix(name, store.PacksPrefix) {
				by = reader
			}
			if err := by.Put(ctx, name, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		if data, err := pruner.GetRange(ctx, nil, names[0], 0, 1); err != nil || string(data) != "x" {
			t.Errorf("the pruner reads a pack: %q, %v", data, err)
		}
		// It makes parity, and puts back a damaged pack.
		made := store.ParityName(backup.NewPackID(), 0)
		if err := pruner.Put(ctx, made, []byte("parity")); err != nil {
			t.Errorf("the pruner makes parity: %v", err)
		}
		if data, err := pruner.GetRange(ctx, nil, made, 1, 5); err != nil || string(data) != "arity" {
			t.Errorf("the pruner reads parity: %q, %v", data, err)
		}
		for _, other := range []store.Store{reader, committer} {
			if err := other.Put(ctx, made+"0", []byte("parity")); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("another role makes parity: %v", err)
			}
		}
		if err := pruner.Delete(ctx, made); err != nil {
			t.Errorf("the pruner deletes parity: %v", err)
		}
		if err := errors.Join(pruner.Delete(ctx, names[0]), pruner.Put(ctx, names[0], []byte("y"))); err != nil {
			t.Errorf("the pruner puts a pack back: %v", err)
		}
		if _, err := pruner.Get(ctx, names[2], 10); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("the pruner reads a segment: %v", err)
		}
		if err := pruner.Put(ctx, names[0]+"0", []byte("copy")); err != nil {
			t.Errorf("the pruner writes a pack: %v", err)
		}
		if err := pruner.Delete(ctx, names[0]+"0"); err != nil {
			t.Errorf("the pruner deletes what it wrote: %v", err)
		}
		groups := [][]string{names}
		if round > 0 {
			groups = [][]string{names[:1], names[1:2], names[2:3], names[3:]}
		}
		for _, group := range groups {
			if err := pruner.Delete(ctx, group...); err != nil {
				t.Errorf("delete %q: %v", group, err)
			}
		}
		for _, name := range names {
			if _, err := s.as(t, s.key(t, "operator")).Stat(ctx, name); !errors.Is(err, backup.ErrNotFound) {
				t.Errorf("%s is still there: %v", name, err)
			}
		}
	}
	for _, name := range []string{store.ConfigName} {
		if err := pruner.Delete(ctx, name, name+"0"); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("the pruner deletes %s: %v", name, err)
		}
	}
	if _, err := pruner.Stat(ctx, store.ConfigName); err != nil {
		t.Errorf("the pruner looks whether the store answers: %v", err)
	}
}

// The scrubber reads packs, parity, the journal, and the repository object, and no keys. It writes
// and deletes nothing (testForbidden), and the store answers that a missing pack is missing.
func (s *objectStore) testScrubber(t *testing.T) {
	ctx := t.Context()
	scrubber := s.as(t, s.key(t, "scrubber"))
	if data, err := scrubber.GetRange(ctx, nil, packObject, 0, 4); err != nil || string(data) != "pack" {
		t.Errorf("the scrubber reads a pack: %q, %v", data, err)
	}
	if _, err := scrubber.GetRange(ctx, nil, packObject+"9", 0, 4); !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("the scrubber reads a pack that is missing: %v", err)
	}
	if _, err := scrubber.Stat(ctx, store.ConfigName); err != nil {
		t.Errorf("the scrubber looks whether the store answers: %v", err)
	}
	if _, err := scrubber.Get(ctx, segmentObject, 1<<20); err != nil {
		t.Errorf("the scrubber reads a segment: %v", err)
	}
	if _, err := scrubber.Stat(ctx, store.ParityName(backup.NewPackID(), 0)); !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("the scrubber reads a parity object that is missing: %v", err)
	}
	if _, err := scrubber.Get(ctx, store.KeysPrefix+"committer", 1<<20); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("the scrubber reads a key: %v", err)
	}
}

func objects(names ...string) <-chan minio.ObjectInfo {
	list := make(chan minio.ObjectInfo, len(names))
	for _, name := range names {
		list <- minio.ObjectInfo{Key: name}
	}
	close(list)
	return list
}

// A compromised reader puts other bytes under the name of a pack, without bctl's condition. The
// request is refused, or the first bytes are kept as a version, and restored when the root user
// follows the README.
func (s *objectStore) testOverwrite(t *testing.T) {
	ctx := t.Context()
	evil := []byte("evil")
	put := func(core *minio.Core, name string) error {
		_, err := core.PutObject(ctx, "bctl", "repo/"+name, bytes.NewReader(evil), int64(len(evil)), "", "", minio.PutObjectOptions{})
		return err
	}
	for folder, name := range map[string]string{"reader@paris": packObject, "committer": segmentObject, "admin": store.ConfigName} {
		before := s.get(t, name, "")
		err := put(s.raw(t, s.key(t, folder)), name)
		if s.Plan.Store.Kind == VersityGW {
			if err == nil || !bytes.Equal(s.get(t, name, ""), before) {
				t.Errorf("%s overwrote %s: %v", folder, name, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: MinIO can forbid to overwrite by now (%v): say so in s3-minio.md", folder, err)
		}
		var versions []minio.ObjectInfo
		for v := range s.raw(t, s.root()).Client.ListObjects(ctx, "bctl", minio.ListObjectsOptions{Prefix: "repo/" + name, WithVersions: true}) {
			versions = append(versions, v)
		}
		if len(versions) != 2 || versions[0].VersionID == versions[1].VersionID {
			t.Fatalf("versions %v", versions)
		}
		for _, v := range versions { // the trace cannot be removed
			for other := range map[string]string{"reader@paris": "", "committer": "", "admin": "", "operator": ""} {
				err := s.raw(t, s.key(t, other)).RemoveObject(ctx, "bctl", v.Key, minio.RemoveObjectOptions{VersionID: v.VersionID, GovernanceBypass: true})
				if minio.ToErrorResponse(err).Code != "AccessDenied" {
					t.Errorf("%s deletes a version of %s: %v", other, name, err)
				}
			}
		}
		root := s.raw(t, s.root())
		first := versions[len(versions)-1]
		_, err = root.Client.CopyObject(ctx, minio.CopyDestOptions{Bucket: "bctl", Object: first.Key}, minio.CopySrcOptions{Bucket: "bctl", Object: first.Key, VersionID: first.VersionID})
		if err != nil || !bytes.Equal(s.get(t, name, ""), before) {
			t.Errorf("%s is not what it was: %q, %v", name, s.get(t, name, ""), err)
		}
	}
}

func (s *objectStore) get(t *testing.T, name, version string) []byte {
	t.Helper()
	body, _, _, err := s.raw(t, s.root()).GetObject(t.Context(), "bctl", "repo/"+name, minio.GetObjectOptions{VersionID: version})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	data, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// After a rotation both keys are accepted, and after the retirement only the new one. Access
// without TLS or without a key is refused.
func (s *objectStore) testKeys(t *testing.T) {
	ctx := t.Context()
	look := func(key StoreKey) error {
		_, err := s.as(t, key).Stat(ctx, packObject)
		return err
	}
	first := s.key(t, "reader@paris")
	if err := s.Rotate(time.Now(), "reader@paris"); err != nil {
		t.Fatal(err)
	}
	s.server.Apply(t)
	second := s.key(t, "reader@paris")
	if err := errors.Join(look(first), look(second)); err != nil || first == second {
		t.Errorf("after the rotation: %v", err)
	}
	if err := s.as(t, second).Put(ctx, packObject+"4", []byte("x")); err != nil {
		t.Errorf("the new key puts: %v", err)
	}
	if err := s.Retire("reader@paris"); err != nil {
		t.Fatal(err)
	}
	s.server.Apply(t)
	if s.Plan.Store.Kind == VersityGW {
		s.server.Restart() // or wait two minutes
	}
	if err := look(first); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a retired key: %v", err)
	}
	if err := look(second); err != nil {
		t.Errorf("the live key: %v", err)
	}
	if err := look(StoreKey{second.Access, first.Secret}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a wrong secret: %v", err)
	}
	core := s.raw(t, StoreKey{})
	_, _, _, err := core.GetObject(ctx, "bctl", "repo/"+packObject, minio.GetObjectOptions{})
	if minio.ToErrorResponse(err).Code != "AccessDenied" {
		t.Errorf("without a key: %v", err)
	}
	plain, err := minio.New(s.server.Endpoint, &minio.Options{Creds: credentials.NewStaticV4(second.Access, second.Secret, ""), Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plain.StatObject(ctx, "bctl", "repo/"+packObject, minio.StatObjectOptions{}); err == nil {
		t.Error("without TLS it was answered")
	}
}

// Tests Amazon's policies without a server: a PUT must have If-None-Match, and only the pruner may
// delete.
func TestAmazonPolicies(t *testing.T) {
	p := testPlan(t.TempDir())
	p.Store = Store{URL: "s3://bucket/some/prefix/", Kind: AWS}
	p.Generations = map[string][]int{"admin": {1}, "committer": {1}, "reader@paris": {1, 2}, "reader@oslo": {1}, "operator": {1}, "pruner": {1}, "scrubber": {1}, "restorer": {1}, "walker@paris": {1}}
	files, err := storeFiles(&p, nil)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]byte{}
	for _, f := range files {
		found[strings.TrimPrefix(f.Path, "s3/")] = f.Data
	}
	type policy struct{ Statement []statement }
	for name, wantPut := range map[string]string{"admin": "repository keys/*", "committer": "segments/* commits/* catalog/*", "reader": "packs/*", "operator": "", "pruner": "packs/* parity/*", "scrubber": "", "restorer": ""} {
		var is policy
		if err := json.Unmarshal(found[name+".json"], &is); err != nil || len(is.Statement) == 0 {
			t.Fatalf("%s: %v", name, err)
		}
		put := ""
		for _, s := range is.Statement {
			for _, action := range s.Action {
				switch action {
				case "s3:GetObject", "s3:ListBucket":
				case "s3:PutObject":
					put = strings.Join(s.Resource, " ")
					if text, _ := json.Marshal(s.Condition); string(text) != `{"Null":{"s3:if-none-match":"false"}}` {
						t.Errorf("%s puts on condition %s", name, text)
					}
				case "s3:DeleteObject", "s3:BypassGovernanceRetention":
					const deleted = "arn:aws:s3:::bucket/some/prefix/"
					if resources := strings.Join(s.Resource, " "); name != "pruner" || resources != deleted+"packs/* "+deleted+"segments/* "+deleted+"commits/* "+deleted+"catalog/* "+deleted+"parity/*" {
						t.Errorf("%s may %s %s", name, action, resources)
					}
				default:
					t.Errorf("%s may %s", name, action)
				}
			}
		}
		resources := strings.Fields(wantPut)
		for i := range resources {
			resources[i] = "arn:aws:s3:::bucket/some/prefix/" + resources[i]
		}
		wantPut = strings.Join(resources, " ")
		if put != wantPut {
			t.Errorf("%s puts %q, want %q", name, put, wantPut)
		}
	}
	var bucket policy
	if err := json.Unmarshal(found["bucket-policy.json"], &bucket); err != nil || len(bucket.Statement) != 2 || bucket.Statement[0].Effect != "Deny" || bucket.Statement[1].Effect != "Deny" {
		t.Errorf("bucket policy %s: %v", found["bucket-policy.json"], err)
	}
	script := string(found["apply.sh"])
	for _, want := range []string{"user bctl-reader-paris reader 'reader@paris'", "user bctl-operator operator 'operator'"} {
		if strings.Count(script, want) != 1 {
			t.Errorf("apply.sh does not have %q once:\n%s", want, script)
		}
	}
	if strings.Contains(script, "walker") {
		t.Error("walkers have a user")
	}
}

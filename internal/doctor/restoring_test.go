package doctor_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/doctor"
	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/services/bctl/embedded"
	"github.com/bctl/bctl/services/bctl/open"
)

// backUp makes a snapshot of a new tree with one file of the given content, and returns the names
// of its packs.
func backUp(t testing.TB, s settings, content string) (packs []string) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c := s.load(t)
	i, err := open.Index(t.Context(), c, false)
	check(err)
	defer i.Close()
	st, err := open.Store(t.Context(), c, false, nil)
	check(err)
	defer st.Close()
	object, err := repo.ReadObject(t.Context(), st)
	check(err)
	key, err := repo.ReadWorkerKey(c.WorkerKey, object.ID)
	check(err)
	committerKey, err := repo.ReadCommitterKey(c.CommitterKey, object.ID)
	check(err)
	keys, err := open.JournalKeys(&object, committerKey)
	check(err)
	tree := t.TempDir()
	check(os.WriteFile(filepath.Join(tree, "file"), []byte(content), 0o600))
	filer, err := i.EnsureFiler(t.Context(), "here")
	check(err)
	shard, err := i.EnsureShard(t.Context(), filer.ID, tree, posix.URL(tree))
	check(err)
	snapshot, err := embedded.Backup(t.Context(), embedded.Options{
		Index: i, Store: st, Source: posix.New(posix.Options{}), Repository: object.Repository, WorkerKey: key, Keys: keys, LockDir: t.TempDir(),
	}, shard, backup.Snapshot{ID: backup.NewSnapshotID()}, nil)
	check(err)
	if snapshot.State != backup.Committed {
		t.Fatal(snapshot.Reason)
	}
	for o, err := range st.List(t.Context(), "packs/"+snapshot.ID.String()) {
		check(err)
		packs = append(packs, o.Name)
	}
	return packs
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	s := settings{"BCTL_REPO": filepath.Join(t.TempDir(), "repo"), "BCTL_IDENTITY": filepath.Join(t.TempDir(), "identity")}
	initialize(t, s)
	fleet := settings{"BCTL_NATS": "nats://127.0.0.1:1"}
	other, _, err := seal.GenerateIdentity()
	if err != nil {
		t.Fatal(err)
	}
	gone := s.with(settings{"BCTL_IDENTITY": filepath.Join(t.TempDir(), "gone")})
	for _, test := range []struct {
		name   string
		s      settings
		role   installation.Role
		status doctor.Status
		texts  []string
	}{
		{"there", s, "", doctor.OK, []string{"identity opens the backups"}},
		{"there, of a fleet", s.with(fleet), installation.Operator, doctor.OK, nil},
		{"missing", gone, "", doctor.Failure, []string{"gone does not exist", "no backup can be restored"}},
		{"missing, for an operator", gone, installation.Operator, doctor.Failure, nil},
		{"missing, for an operator of a fleet", gone.with(fleet), installation.Operator, doctor.Warning, []string{"gone does not exist"}},
		{"missing, for all of a fleet", gone.with(fleet), "", doctor.NotTested, []string{"--as operator"}},
		{"another's", s.with(settings{"BCTL_IDENTITY": write(t, "other", []byte(other))}), "", doctor.Failure, []string{"wrong key"}},
		{"none at all", s.with(settings{"BCTL_IDENTITY": write(t, "none", []byte("x"))}), "", doctor.Failure, nil},
		{"no store", s.with(settings{"BCTL_STORE": t.TempDir()}), "", doctor.NotTested, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			examine(t, test.s, test.role, "restoring").want(t, "restoring.identity", test.status, test.texts...)
		})
	}
	for _, role := range []installation.Role{installation.Walker, installation.Reader, installation.Committer} {
		if found := examine(t, s.with(fleet), role, "restoring"); len(found) > 0 {
			t.Errorf("as a %s: %+v", role, found)
		}
	}
	if err := os.Chmod(s["BCTL_IDENTITY"], 0o644); err != nil {
		t.Fatal(err)
	}
	examine(t, s, "", "restoring").want(t, "restoring.identity", doctor.Failure, "chmod o=", "and therefore all backups")
}

func TestPacksThatAreGone(t *testing.T) {
	t.Parallel()
	inDirectory := func(t *testing.T) settings {
		s := settings{"BCTL_REPO": filepath.Join(t.TempDir(), "repo")}
		initialize(t, s)
		return s
	}
	for name, in := range map[string]func(*testing.T) settings{
		"directory": inDirectory, "S3": func(t *testing.T) settings { return inS3(t, testenv.VersityGW(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := in(t)
			examine(t, s, "", "restoring").want(t, "restoring.packs", doctor.NotTested, "no snapshot yet")
			old, recent := backUp(t, s, "one"), backUp(t, s, "two")
			if len(old) != 1 || len(recent) != 1 {
				t.Fatal(old, recent)
			}
			examine(t, s, "", "restoring").want(t, "restoring.packs", doctor.OK, "all packs (2) that the last snapshots of 2 shards need")
			examine(t, s, installation.Operator, "restoring").want(t, "restoring.packs", doctor.OK)
			st, err := open.Store(t.Context(), s.load(t), false, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			remove := func(name string) {
				if err := st.Delete(t.Context(), name); err != nil {
					t.Fatal(err)
				}
			}
			remove(old[0])
			examine(t, s, "", "restoring").want(t, "restoring.packs", doctor.Failure, "1 of 2 packs", old[0])
			remove(recent[0])
			examine(t, s, "", "restoring").want(t, "restoring.packs", doctor.Failure, "2 of 2 packs", recent[0]+", "+old[0])
		})
	}
	t.Run("a store that does not answer", func(t *testing.T) {
		s := inS3(t, testenv.VersityGW(t))
		backUp(t, s, "one")
		found := examine(t, s.with(settings{"BCTL_STORE_ENDPOINT": "http://127.0.0.1:1"}), "", "restoring")
		if status := found["restoring.packs"].Status; status == doctor.OK {
			t.Errorf("%+v", found["restoring.packs"])
		}
	})
}

package e2e_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv"
)

// expect fails the test unless a command ends with a status and says all that it should.
func expect(t *testing.T, out fleet.Output, status int, say ...string) {
	t.Helper()
	if out.Status != status {
		t.Errorf("want exit status %d: %s", status, out)
		return
	}
	for _, text := range say {
		if !strings.Contains(out.Stderr, text) {
			t.Errorf("does not say %q: %s", text, out)
		}
	}
}

func TestWrongUse(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), t.TempDir()
	treetest.Make(t, tree, treetest.Tree{"file": treetest.File("content")})
	client := fleet.NewClient(t)
	missing := filepath.Join(t.TempDir(), "missing")
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("index:\n  url: x\n  colour: red\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, client.Run("backup", tree), 10, "no repository", "--repo")
	expect(t, client.Run("backup", "--repo", missing, tree), 10, missing, "bctl init")
	expect(t, client.Run("restore", "latest", "--repo", missing, "--target", missing), 10, missing)
	expect(t, client.Run("backup", "--config", bad, tree), 2, bad+":3", "index.colour")
	expect(t, client.Run("backup", "--config", missing, tree), 1, missing)
	expect(t, repo.Run("backup"), 2, "there is nothing to back up")
	expect(t, repo.Run("backup", "--no-such-flag", tree), 2, "no-such-flag")
	expect(t, repo.Run("backup", missing), 1, missing, "does not exist")
	expect(t, repo.Run("restore", "latest", "--target", missing), 1, "no committed snapshot")
	expect(t, repo.Run("init"), 1, "exists")
}

func TestWrongKey(t *testing.T) {
	t.Parallel()
	repo, other, tree := fleet.NewRepo(t), fleet.NewRepo(t), t.TempDir()
	treetest.Make(t, tree, treetest.Tree{"file": treetest.File("content")})
	repo.Backup(tree)
	target := filepath.Join(t.TempDir(), "target")

	identities, err := filepath.Glob(filepath.Join(other.Home, ".config/bctl/identities/*.txt"))
	if err != nil || len(identities) != 1 {
		t.Fatal(identities, err)
	}
	expect(t, repo.Run("restore", "latest", "--target", target, "--identity", identities[0]), 12, identities[0])
	expect(t, repo.Run("restore", "latest", "--target", target, "--identity", target+"x"), 12, target+"x", "does not exist")
	if err := os.RemoveAll(filepath.Join(repo.Home, ".config")); err != nil {
		t.Fatal(err)
	}
	expect(t, repo.Run("restore", "latest", "--target", target), 12, "identity", ".config/bctl/identities")
	if _, err := os.Lstat(target); err == nil {
		t.Error("something was restored")
	}
	// Backing up needs no identity, but the repository's own worker key.
	repo.Backup(tree)
	key, err := os.ReadFile(filepath.Join(other.Dir, "worker.key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(repo.Dir, "worker.key"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, repo.Run("backup", tree), 12, "worker.key")
}

func TestEmptyTree(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), t.TempDir()
	if made := repo.Backup(tree); made.Files != 0 || made.Directories != 1 || made.StatCalls != 1 {
		t.Errorf("an empty tree: %+v", made)
	}
	treetest.Equal(t, tree, repo.Restore("latest"))
	if orphans := fleet.CheckStore(t, repo.StoreDir(), repo.Index()); orphans != 0 {
		t.Errorf("%d orphans", orphans)
	}
}

// The store's file system is full: the backup says so and fails. The next one,
// when there is room, has everything.
func TestStoreIsFull(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system takes root")
	}
	store, tree := t.TempDir(), filepath.Join(t.TempDir(), "tree")
	if err := unix.Mount("tmpfs", store, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(store, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	repo := fleet.NewRepo(t, "BCTL_STORE="+filepath.Join(store, "s"))
	generate(t, tree, 40, shape{directories: 10, files: 10, meanBytes: 100_000})
	expect(t, repo.Run("backup", tree), 1, store, "no space left")
	expect(t, repo.Run("restore", "latest", "--target", filepath.Join(t.TempDir(), "t")), 1, "no committed snapshot")
	if err := unix.Mount("tmpfs", store, "tmpfs", unix.MS_REMOUNT, "size=100m"); err != nil {
		t.Fatal(err)
	}
	if made := repo.Backup(tree); made.State != "committed" {
		t.Errorf("with room for it: %+v", made)
	}
	treetest.Equal(t, tree, repo.Restore("latest"))
}

func TestServersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{Walkers: -1, Readers: -1, Committers: -1}), t.TempDir()
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	nobody := "127.0.0.1:" + strconv.Itoa(port)
	f.Register(tree)
	backup := append([]string{"backup"}, fleet.BackupArgs(tree)...)
	start := func(settings ...string) *fleet.Running {
		c := *f.Client
		c.Env = append(append(c.Env[:len(c.Env):len(c.Env)], settings...), "BCTL_STORE_RETRY=1s")
		return c.Start(backup...)
	}
	out := start("BCTL_INDEX=postgres://u:secret@" + nobody + "/db").Wait()
	expect(t, out, 1, "index at "+nobody)
	if strings.Contains(out.Stderr, "secret") {
		t.Errorf("the password is shown: %s", out)
	}
	store := []string{"BCTL_STORE=s3://bucket/repo", "BCTL_STORE_ENDPOINT=http://" + nobody, "BCTL_STORE_REGION=us-east-1", "BCTL_STORE_ACCESS_KEY=key", "BCTL_STORE_SECRET_KEY=secret"}
	expect(t, start(store...).Wait(), 1, nobody, "s3")
	if n := len(f.Index.Snapshots()); n != 0 {
		t.Errorf("%d snapshots were begun", n)
	}
	// NATS only spreads work, and tells bctl how far it is: it is waited for.
	waiting := start("BCTL_NATS=nats://user:secret@" + nobody)
	fleet.Await(t, "a word about NATS", func() bool {
		return waiting.Ended() || strings.Contains(waiting.Stderr(), "connecting to NATS failed") && strings.Contains(waiting.Stderr(), nobody)
	})
	waiting.Signal(syscall.SIGINT)
	out = waiting.Wait()
	expect(t, out, 130)
	if strings.Contains(out.Stderr, "secret") {
		t.Errorf("the password is shown: %s", out)
	}
}

// A file that cannot be read is reported, and its last good copy is kept (I11).
func TestUnreadableFile(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), t.TempDir()
	treetest.Make(t, tree, treetest.Tree{
		"secret":      treetest.File("the last good copy"),
		"open":        treetest.File("open"),
		"closed/file": treetest.File("below a directory that will be closed"),
	})
	asNobody(t, repo, tree)
	repo.Backup(tree)
	for _, name := range []string{"secret", "closed"} {
		if err := os.Chmod(filepath.Join(tree, name), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(tree, "new secret"), []byte("never read"), 0); err != nil {
		t.Fatal(err)
	}
	out := repo.Run("backup", "--json", tree)
	expect(t, out, 3)
	said := map[string]string{}
	for _, p := range out.Problems(t) {
		said[p.Path] = p.Error
	}
	_, recorded := repo.Show("latest")
	if len(said) != 3 || said["secret"] != "permission denied" || said["new secret"] == "" || said["closed"] == "" || len(recorded) != 3 {
		t.Errorf("said %v, recorded %v: %s", said, recorded, out)
	}
	if made := out.Summary(t); made.State != "committed" || made.Errors != 3 {
		t.Errorf("summary %+v", made)
	}
	target := filepath.Join(t.TempDir(), "restored")
	repo.Credential = nil // the restoring user may be root
	restored := repo.Run("restore", "latest", "--target", target)
	for name, want := range map[string]string{"secret": "the last good copy", "open": "open", "closed/file": "below a directory that will be closed"} {
		if got, err := os.ReadFile(filepath.Join(target, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; %s", name, got, err, restored)
		}
	}
	// As soon as it can be read again it is, though nothing else has changed.
	for name, mode := range map[string]os.FileMode{"secret": 0o600, "new secret": 0o600, "closed": 0o755} {
		if err := os.Chmod(filepath.Join(tree, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	repo.Backup(tree)
	treetest.Equal(t, tree, repo.Restore("latest"))
}

// asNobody has the repository's commands run as a user who may not read everything.
func asNobody(t *testing.T, repo *fleet.Repo, trees ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	const nobody = 65534
	for _, root := range append(trees, repo.Home, repo.Dir) {
		fleet.MakeReadable(t, root)
		err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, nobody, nobody)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	repo.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
}

// A file that changes each time it is read is stored, flagged, and read again by the next backup.
func TestFileChangesWhileRead(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), t.TempDir()
	treetest.Make(t, tree, treetest.Tree{"busy": treetest.Sparse(32<<20, treetest.Extent{Data: strings.Repeat("x", 32<<20)}), "calm": treetest.File("calm")})
	busy, err := os.OpenFile(filepath.Join(tree, "busy"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	var stop atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := int64(0); !stop.Load(); n++ {
			_, _ = busy.WriteAt([]byte{byte(n)}, n%(32<<20))
		}
	}()
	out := repo.Run("backup", "--json", tree)
	stop.Store(true)
	<-ended
	expect(t, out, 3)
	if problems := out.Problems(t); len(problems) != 1 || problems[0].Path != "busy" || !strings.Contains(problems[0].Error, "changed") {
		t.Errorf("problems %v", problems)
	}
	target := filepath.Join(t.TempDir(), "restored")
	expect(t, repo.Run("restore", "latest", "--target", target), 3, "busy", "it changed each time it was read")
	if got, err := os.ReadFile(filepath.Join(target, "calm")); err != nil || string(got) != "calm" {
		t.Errorf("calm: %q, %v", got, err)
	}
	repo.Backup(tree)
	treetest.Equal(t, tree, repo.Restore("latest"))
}

// A file that is gone, or was replaced, when the reader comes is no failure.
func TestFileVanishesBeforeItIsRead(t *testing.T) {
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{Walkers: 1, Readers: -1, Committers: 1}), t.TempDir()
	treetest.Make(t, tree, treetest.Tree{
		"gone": treetest.File("gone"), "grown": treetest.File("short"), "stays": treetest.File("stays"), "kind": treetest.File("a file"),
		"moved/away": treetest.File("its directory moves"),
	})
	backup, _ := f.StartBackup(tree)
	fleet.Await(t, "the tree to be walked", func() bool {
		w := f.Index.Work()
		return w.TasksSettled == w.TasksAnnounced && w.BatchesAnnounced > 0
	})
	for _, change := range []func() error{
		func() error { return os.Remove(filepath.Join(tree, "gone")) },
		func() error { return os.WriteFile(filepath.Join(tree, "grown"), []byte("longer than it was"), 0o644) },
		func() error { return os.Remove(filepath.Join(tree, "kind")) },
		func() error { return os.Mkdir(filepath.Join(tree, "kind"), 0o755) },
		func() error { return os.Rename(filepath.Join(tree, "moved"), filepath.Join(tree, "to")) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
	}
	f.Service("reader")
	out := backup.Wait()
	expect(t, out, 0)
	restored := filepath.Join(t.TempDir(), "restored")
	expect(t, f.Run("restore", "latest", "--target", restored), 3, "moved: backup: it was renamed")
	for name, want := range map[string]string{"stays": "stays", "grown": "longer than it was"} {
		if got, err := os.ReadFile(filepath.Join(restored, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(restored, "gone")); err == nil {
		t.Error("what was gone is there")
	}
	next, _ := f.StartBackup(tree)
	check(t, f, next.Wait(), tree)
}

// One snapshot of a shard at a time (I5).
func TestSecondBackupAtOnce(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 41, shape{directories: 40, files: 30, meanBytes: 10_000})
	first := repo.Start("backup", tree)
	fleet.Await(t, "a running snapshot", func() bool { return first.Ended() || repo.Index().Work().State == "running" })
	first.Pause()
	if repo.Index().Work().State != "running" {
		t.Fatal("the first backup ended before it could be stopped")
	}
	expect(t, repo.Run("backup", tree), 11, tree, "running")
	other := t.TempDir()
	repo.Backup(other) // another shard is nobody's business
	first.Resume()
	expect(t, first.Wait(), 0)
	repo.Backup(tree)
}

func TestSecondBackupAtOnceInAFleet(t *testing.T) {
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{Walkers: -1, Readers: 1, Committers: 1}), t.TempDir()
	treetest.Make(t, tree, treetest.Tree{"file": treetest.File("content")})
	first, _ := f.StartBackup(tree)
	expect(t, f.Run(append([]string{"backup"}, fleet.BackupArgs(tree)...)...), 11, tree, "running")
	// An interrupted command leaves the snapshot to the services.
	first.Signal(syscall.SIGINT)
	expect(t, first.Wait(), 130, "the services continue the snapshot")
	f.Service("walker")
	fleet.Await(t, "the snapshot to be committed", func() bool { return f.Index.Work().State == "committed" })
	treetest.Equal(t, tree, f.Restore("latest"))
}

// A tree that suddenly has far fewer files looks like an export that is not mounted (I11).
func TestShardThatShrank(t *testing.T) {
	t.Parallel()
	repo, tree := fleet.NewRepo(t), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 42, shape{directories: 10, files: 10, meanBytes: 100})
	settle(t)
	repo.Backup(tree)
	away := tree + ".away"
	if err := os.Rename(tree, away); err != nil {
		t.Fatal(err)
	}
	expect(t, repo.Run("backup", tree), 1, tree)
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	expect(t, repo.Run("backup", tree), 1, tree, "is not the tree that was backed up before", "--new-root")
	expect(t, repo.Run("backup", "--new-root", tree), 1, "--allow-shrink")
	treetest.Equal(t, away, repo.Restore("latest"))
	snapshots := repo.Snapshots()
	if last := snapshots[len(snapshots)-1]; last.State != "failed" {
		t.Errorf("the last snapshot: %+v", last)
	}
	// It is mounted again: nothing has changed, and nothing is read.
	if err := os.Rename(tree, tree+".empty"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(away, tree); err != nil {
		t.Fatal(err)
	}
	if made := repo.Backup(tree); made.ReadBytes != 0 || made.FilesUnchanged != 100 {
		t.Errorf("after the failed one: %+v", made)
	}
	treetest.Equal(t, tree, repo.Restore("latest"))
	if err := os.RemoveAll(filepath.Join(tree, "a01")); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"a02", "a03", "a04", "a05", "a06", "a07"} {
		if err := os.RemoveAll(filepath.Join(tree, d)); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, repo.Run("backup", tree), 1, "--allow-shrink")
	repo.Backup("--allow-shrink", tree)
	treetest.Equal(t, tree, repo.Restore("latest"))
	repo.Index().CheckSettled()
}

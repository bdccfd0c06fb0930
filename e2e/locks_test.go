package e2e_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// In a fleet whose objects are locked, what a kept snapshot needs is locked for as long as its
// policy or a hold keeps it. No lock becomes shorter, the pruner's key deletes nothing before its
// time, and the space is free when the locks have ended.
func TestLockedUntilTheRulesForget(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	l := newLocking(t)
	first, second := l.backup(), l.backup()
	// The schedule comes due in half a day, and not during the test.
	hour := time.Now().UTC().Add(12 * time.Hour).Hour()
	l.f.Must("policy", "set", "daily", "--label", "locks=yes", "--schedule", fmt.Sprintf("0 %d * * *", hour), "--keep-last", "2")
	third := l.backup()
	l.awaitSnapshots(second, third)

	// The first snapshot is forgotten, and its content stays: its PUT has locked it for 26 hours.
	if p := l.prune(); p.Locked == 0 || p.Extended == 0 {
		t.Errorf("a pass of the pruner: %+v", p)
	}
	l.locked(first, 25*time.Hour)
	l.refused(first)
	// The second one will be forgotten at the next time of the schedule, and the third one a day
	// later.
	l.locked(second, 25*time.Hour)
	l.locked(third, 34*time.Hour)

	// A hold extends the locks. They stay when it is removed, and the rules forget the snapshot.
	hold := holdID.FindStringSubmatch(l.f.Must("hold", "add", second, "--reason", "audit", "--json").Stdout)
	l.prune()
	l.locked(second, 30*24*time.Hour)
	if hold == nil {
		t.Fatal("the hold has no id")
	}
	l.f.Must("hold", "rm", hold[1])
	before := copyTree(t, l.tree)
	fourth := l.backup()
	l.awaitSnapshots(third, fourth)
	l.prune()
	l.locked(second, 30*24*time.Hour)
	l.refused(second)

	// When the locks of its PUT have ended, the first snapshot is gone. What is still kept is
	// locked for longer.
	l.pass(66 * time.Hour)
	l.prune()
	if left := l.large(first); left > 0 {
		t.Errorf("%d B of the first snapshot are left after its locks have ended", left)
	}
	l.locked(fourth, 66*time.Hour+40*time.Hour)
	l.locked(second, 24*24*time.Hour)
	l.pass(45 * 24 * time.Hour)
	l.prune()
	if left := l.large(second); left > 0 {
		t.Errorf("%d B of the second snapshot are left after its locks have ended", left)
	}
	treetest.Equal(t, before, l.f.Restore(third))
	treetest.Equal(t, l.tree, l.f.Restore(fourth))
}

// largeBytes is the size of the file that only one snapshot has.
const largeBytes = 1 << 20

// A locking is a fleet with object lock, and what is known of the locks in its store.
type locking struct {
	t      *testing.T
	f      *fleet.Fleet
	tree   string
	root   *minio.Client        // the administrator of the store
	until  map[string]time.Time // locks that have been seen
	passed time.Duration
	index  string // the index as the pruner sees it
}

func newLocking(t *testing.T) *locking {
	l := &locking{
		t: t, f: fleet.NewLocked(t, fleet.Options{Walkers: 1, Readers: 1, Committers: 1}, "--object-lock", "governance"),
		tree: filepath.Join(t.TempDir(), "tree"), until: map[string]time.Time{},
	}
	var err error
	if l.root, err = storeClient(l.f, credentials.NewStaticV4(l.f.S3.AccessKey, l.f.S3.SecretKey, ""), true); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(l.tree, 0o700); err != nil {
		t.Fatal(err)
	}
	l.write("same", 100_000)
	l.index = l.pruner().dsn("pruner")
	l.f.Filer("filer", "--label", "locks=yes")
	l.f.Shard("filer", l.tree)
	return l
}

func (l *locking) write(name string, size int) {
	l.t.Helper()
	content := make([]byte, size)
	_, _ = rand.Read(content) // never fails
	if err := os.WriteFile(filepath.Join(l.tree, name), content, 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// backup replaces the content of the large file, and returns the snapshot of the result.
func (l *locking) backup() string {
	l.t.Helper()
	l.write("large", largeBytes)
	settle(l.t)
	return l.f.Backup("--filer", "filer", "--shard", l.tree).Snapshot
}

// awaitSnapshots waits until the policy has forgotten all snapshots but these.
func (l *locking) awaitSnapshots(ids ...string) {
	l.t.Helper()
	fleet.Await(l.t, "the policy to be applied", func() bool {
		list := l.f.Snapshots()
		return len(list) == len(ids) && list[0].ID == ids[0] && list[len(list)-1].ID == ids[len(ids)-1]
	})
}

// pruned is a part of the output of bctl prune --json.
type pruned struct {
	Locked   int `json:"locked"`
	Extended int `json:"extended_locks"`
}

// prune runs bctl prune as the pruner, and checks that no lock was broken.
func (l *locking) prune() (p pruned) {
	l.t.Helper()
	l.check()
	out := l.f.As("pruner", "BCTL_INDEX="+l.index).Must("prune", "--json")
	if err := json.Unmarshal([]byte(out.Stdout), &p); err != nil {
		l.t.Fatalf("%v: %s", err, out)
	}
	l.check()
	return p
}

// check looks at all locks: none has become shorter since it was seen, and nothing is gone before
// its lock has ended.
func (l *locking) check() {
	l.t.Helper()
	now := l.locks()
	for name, until := range l.until {
		if got, ok := now[name]; got.Before(until) && (ok || until.After(time.Now())) {
			l.t.Errorf("%s was locked until %v, and is until %v", name, until, got)
		}
	}
	for name, until := range now {
		if until.IsZero() {
			l.t.Errorf("%s is not locked", name)
		}
	}
	l.until = now
}

// locks returns until when each object is locked by the store.
func (l *locking) locks() map[string]time.Time {
	l.t.Helper()
	until := map[string]time.Time{}
	for name := range l.sizes() {
		info, err := l.root.StatObject(l.t.Context(), l.f.S3.Bucket, "repo/"+name, minio.StatObjectOptions{})
		if err != nil {
			l.t.Fatal(err)
		}
		until[name], _ = time.Parse(time.RFC3339, info.Metadata.Get("X-Amz-Object-Lock-Retain-Until-Date")) // zero if there is none
	}
	return until
}

// sizes returns the sizes of all objects.
func (l *locking) sizes() map[string]int64 {
	l.t.Helper()
	sizes := map[string]int64{}
	for object := range l.root.ListObjects(l.t.Context(), l.f.S3.Bucket, minio.ListObjectsOptions{Prefix: "repo/", Recursive: true}) {
		if object.Err != nil {
			l.t.Fatal(object.Err)
		}
		sizes[strings.TrimPrefix(object.Key, "repo/")] = object.Size
	}
	return sizes
}

// packsOf returns the packs that a snapshot has stored, and that are large.
func (l *locking) packsOf(id string) map[string]int64 {
	l.t.Helper()
	packs := l.sizes()
	maps.DeleteFunc(packs, func(name string, size int64) bool {
		return !strings.HasPrefix(name, "packs/"+id+"/") || size < largeBytes
	})
	return packs
}

// large returns the bytes of these packs.
func (l *locking) large(id string) (bytes int64) {
	l.t.Helper()
	for _, size := range l.packsOf(id) {
		bytes += size
	}
	return bytes
}

// locked checks that the large packs of a snapshot are locked for a time.
func (l *locking) locked(id string, least time.Duration) {
	l.t.Helper()
	packs, locks := l.packsOf(id), l.locks()
	if len(packs) == 0 {
		l.t.Fatalf("no pack of %s", id)
	}
	for name := range packs {
		if remains := time.Until(locks[name]); remains < least {
			l.t.Errorf("%s is locked for %v, want %v", name, remains, least)
		}
	}
}

// refused tries to delete the packs of a snapshot, and to shorten their locks, with the pruner's
// key.
func (l *locking) refused(id string) {
	l.t.Helper()
	pruner, err := l.pruner().store()
	if err != nil {
		l.t.Fatal(err)
	}
	for name := range l.packsOf(id) {
		for _, bypass := range []bool{false, true} {
			err := pruner.RemoveObject(l.t.Context(), l.f.S3.Bucket, "repo/"+name, minio.RemoveObjectOptions{GovernanceBypass: bypass})
			if !errors.Is(refusedByStore(err), errRefused) {
				l.t.Errorf("the pruner deletes %s (bypass: %v): %v", name, bypass, err)
			}
			if err := l.shorten(pruner, name, time.Now().Add(time.Hour), bypass); !errors.Is(refusedByStore(err), errRefused) {
				l.t.Errorf("the pruner shortens the lock of %s (bypass: %v): %v", name, bypass, err)
			}
		}
	}
	l.check()
}

func (l *locking) shorten(c *minio.Client, name string, until time.Time, bypass bool) error {
	mode, date := minio.Governance, until.UTC()
	return c.PutObjectRetention(l.t.Context(), l.f.S3.Bucket, "repo/"+name, minio.PutObjectRetentionOptions{Mode: &mode, RetainUntilDate: &date, GovernanceBypass: bypass})
}

// database is the index, as the superuser sees it.
func (l *locking) database() string {
	l.t.Helper()
	address, err := url.Parse(l.f.Database.Superuser())
	if err != nil {
		l.t.Fatal(err)
	}
	address.Path = "/bctl"
	return address.String()
}

func (l *locking) pruner() stolen {
	return stolen{Fleet: l.f, role: "pruner", folder: filepath.Join(l.f.Machines, "pruner")}
}

// pass lets time pass for the pruner, by the clock that the index has for it. Services go on in the
// present, and nothing comes due. The clock of the store cannot be moved: an administrator shortens
// all locks by as much.
func (l *locking) pass(by time.Duration) {
	l.t.Helper()
	soon := time.Now().Add(3 * time.Second).Truncate(time.Second)
	for name, until := range l.locks() {
		if until = until.Add(-by); until.Before(soon) {
			until = soon
		}
		if err := l.shorten(l.root, name, until, true); err != nil {
			l.t.Fatalf("the administrator shortens the lock of %s: %v", name, err)
		}
	}
	l.until = l.locks()
	fleet.Await(l.t, "locks to end", func() bool { return time.Now().After(soon.Add(time.Second)) })
	l.passed += by
	address, err := url.Parse(testenv.ShiftedClock(l.t, l.database(), l.passed))
	if err != nil {
		l.t.Fatal(err)
	}
	l.index = l.pruner().dsn("pruner") + "&search_path=" + url.QueryEscape(address.Query().Get("search_path"))
}

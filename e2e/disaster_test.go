package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/e2e/manual"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv"
)

// typedBlocks are the kinds of blocks that were typed, each after its section.
var typedBlocks sync.Map

// Each disaster of docs/disaster-recovery.md, and the way out: the test types the commands of the
// page. That of an upgrade is in TestUpgradeThatIsHalfFinished.
func TestDisasters(t *testing.T) {
	t.Parallel()
	disasters := map[string]func(*testing.T){
		"lost index":               lostIndex,
		"lost index of a fleet":    lostIndexOfAFleet,
		"lost store":               lostStore,
		"lost store, no copy":      lostStoreWithoutTheCopy,
		"lost store of a fleet":    lostStoreOfAFleet,
		"lost site":                lostSite,
		"lost identity on paper":   lostIdentityOnPaper,
		"lost identity of several": lostIdentityOfSeveral,
		"stolen credential":        stolenCredential,
		"ransomware":               ransomware,
		"deleted bucket":           deletedBucket,
		"wrong clock":              wrongClock,
	}
	var ended atomic.Int32
	t.Run("all", func(t *testing.T) {
		for name, disaster := range disasters {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				disaster(t)
				ended.Add(1)
			})
		}
	})
	if int(ended.Load()) == len(disasters) { // none was skipped or failed
		allBlocksWereTyped(t)
	}
}

func allBlocksWereTyped(t *testing.T) {
	t.Helper()
	blocks, err := manual.Blocks(disasterPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range blocks {
		if _, typed := typedBlocks.Load(b.Section + ": " + b.Kind); !typed && b.Section != upgradeSection {
			t.Errorf("the blocks %q of section %q were not typed", b.Kind, b.Section)
		}
	}
}

const upgradeSection = "Half-finished upgrade"

func lostIndex(t *testing.T) {
	m := newOneMachine(t, nil)
	m.remove(filepath.Join(m.repo, "index.db"))
	if out, err := m.try("bctl restore latest --target nowhere"); err == nil || !strings.Contains(out, "the index is lost") {
		t.Errorf("a restore without an index: %v, %s", err, out)
	}
	m.follow("Lost index", "one machine")
	treetest.Equal(t, m.tree, m.path("restored"))
}

func lostIndexOfAFleet(t *testing.T) {
	f := newFleet(t)
	before := f.run("bctl snapshot ls --json")
	f.run(`psql --no-psqlrc --quiet --dbname postgres --command 'DROP DATABASE bctl WITH (FORCE)'`)
	for _, command := range []string{"bctl snapshot ls", "bctl check", "bctl status", "bctl restore latest --target none --identity identity.txt"} {
		if out, err := f.try(command); err == nil || err.Error() != "exit status 10" || !strings.Contains(out, "bctl index rebuild") {
			t.Errorf("%s without the database: %v, %s", command, err, out)
		}
	}
	f.follow("Lost index", "fleet")
	treetest.Equal(t, f.tree, f.path("restored"))
	if after := f.run("bctl snapshot ls --json"); !strings.HasPrefix(after, before) {
		t.Errorf("there were snapshots\n%sand now\n%s", before, after)
	}
}

// strictBrake has the brake stop what would delete a large share, also of a small store.
const strictBrake = "bctl brake set --min-bytes 1B"

func lostStore(t *testing.T) {
	m := newOneMachine(t, nil)
	m.follow("Before it happens", "one machine")
	m.run(strictBrake)
	m.remove(filepath.Join(m.repo, "store"))
	if out, err := m.try(`bctl backup "$TREE"`); err == nil || !strings.Contains(out, "the store is not mounted") {
		t.Errorf("a backup without a store: %v, %s", err, out)
	}
	m.follow("Lost store", "one machine")
	treetest.Equal(t, m.tree, m.path("restored"))
}

func lostStoreWithoutTheCopy(t *testing.T) {
	m := newOneMachine(t, nil)
	m.run(strictBrake)
	m.remove(filepath.Join(m.repo, "store"))
	m.follow("Lost store", "one machine without the copy")
	treetest.Equal(t, m.tree, m.restored("latest"))
	m.oldIsWholeBut("only-old")
}

// restored restores a snapshot into a new directory.
func (p *typist) restored(snapshot string) string {
	p.Helper()
	p.run("bctl restore " + snapshot + " --target restored")
	return p.path("restored")
}

// oldIsWholeBut restores the first snapshot, which names the files that are lost.
func (m *oneMachine) oldIsWholeBut(lost string) {
	m.Helper()
	out, err := m.try(`bctl restore $(bctl snapshot ls --json | sed --quiet '1s/.*"id":"\([0-9a-f]*\)".*/\1/p') --target old`)
	if err == nil || !strings.Contains(out, lost) {
		m.Errorf("a restore of a snapshot with a file that is lost: %v, %s", err, out)
	}
	treetest.Equal(m, filepath.Join(m.tree, "urgent"), m.path("old/urgent")) // the root had one more file
}

func lostStoreOfAFleet(t *testing.T) {
	f := newFleet(t)
	f.run(strictBrake)
	f.remove(f.StoreDir())
	f.follow("Lost store", "fleet")
	treetest.Equal(t, f.tree, f.path("restored"))
}

func lostIdentityOnPaper(t *testing.T) {
	m := newOneMachine(t, nil)
	m.follow("Before it happens", "one machine")
	m.remove(filepath.Join(filepath.Dir(m.repo), "identity.txt"))
	if out, err := m.try("bctl restore latest --target nowhere"); err == nil || !strings.Contains(out, "identity") {
		t.Errorf("a restore without an identity: %v, %s", err, out)
	}
	m.follow("Lost identity", "one machine")
	treetest.Equal(t, m.tree, m.restored("latest --identity identity.txt"))
}

func lostIdentityOfSeveral(t *testing.T) {
	m := newOneMachine(t, nil)
	m.run(`mv "$IDENTITY" second.txt
		bctl key add --identity lost.txt --new --label 'the lost one'
		rm lost.txt`)
	m.follow("Lost identity", "one machine with a second identity")
	treetest.Equal(t, m.tree, m.path("restored"))
	if _, err := os.Stat(m.path("restored/urgent/letter")); err != nil {
		t.Error(err)
	}
}

// deletedBucket deletes all objects of a bucket with versions.
func deletedBucket(t *testing.T) {
	s := testenv.Minio(t)
	bucket := "BUCKET=store/" + s.Bucket
	address := "MC_HOST_store=http://" + s.AccessKey + ":" + s.SecretKey + "@" + s.Endpoint
	scripts := map[string]string{"mc": fmt.Sprintf("#!/bin/sh\nexec %s \"$@\"\n", testenv.MC(t))}
	newTypist(t, fleet.Binary(t), scripts, bucket, address).run(`mc version enable "$BUCKET"`)
	m := newOneMachine(t, scripts, bucket, address, "BCTL_STORE=s3://"+s.Bucket+"/repo", "BCTL_STORE_ENDPOINT=http://"+s.Endpoint,
		"BCTL_STORE_REGION="+s.Region, "BCTL_STORE_ACCESS_KEY="+s.AccessKey, "BCTL_STORE_SECRET_KEY="+s.SecretKey)
	// A prune has deleted packs, and whole journals.
	m.run(`for n in 1 2 3 4 5 6 7 8 9 10; do head --bytes 9999 /dev/urandom >"$TREE/extra"; bctl backup "$TREE"; done
		rm "$TREE/extra"; bctl backup "$TREE"
		bctl brake set --snapshots 100% --bytes 100%
		bctl forget --keep-last 1; bctl prune`)
	objects := m.run(`mc ls --recursive "$BUCKET/repo" | grep -Ec "packs/|commits/|segments/"`)
	m.run(`mc rm --recursive --force "$BUCKET/repo"`)
	if out, err := m.try("bctl check"); err == nil || !strings.Contains(out, "no repository") {
		t.Errorf("a check of an empty bucket: %v, %s", err, out)
	}
	m.follow("Deleted bucket", "versions")
	if now := m.run(`mc ls --recursive "$BUCKET/repo" | grep -Ec "packs/|commits/|segments/"`); now != objects {
		t.Errorf("the store has %q objects, and had %q: what was pruned is back", now, objects)
	}
	treetest.Equal(t, m.tree, m.restored("latest"))
}

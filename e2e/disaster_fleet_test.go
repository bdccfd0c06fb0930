package e2e_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv"
)

// aFleet is a typist on the machine with the installation of a fleet. The services run on machines
// of their own.
type aFleet struct {
	*typist
	*fleet.Fleet
	tree string
	runs map[string]*fleet.Service // by unit
}

// units are the services of the fleet, in the order in which they are started.
var units = []string{"bctl-committer", "bctl-walker@default", "bctl-reader@default", "bctl-pruner"}

// newFleet makes a fleet with two snapshots of a tree, in which one file is only in the first.
func newFleet(t *testing.T) *aFleet {
	t.Helper()
	f := typistOf(t, fleet.NewLocked(t, fleet.Options{Walkers: -1, Readers: -1, Committers: -1}), filepath.Join(t.TempDir(), "tree"))
	owner := map[string]string{"worker.key": "fleet/reader@default/worker.key", "committer.key": "fleet/committer/committer.key", "identity.txt": "identity.txt"}
	for key := range owner {
		text, err := os.ReadFile(filepath.Join(f.Machines, "admin", key))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"fleet/admin/" + key, owner[key]} {
			f.write(f.path(name), string(text))
		}
	}
	generate(t, f.tree, 91, shape{directories: 10, files: 5, meanBytes: 3000})
	f.write(filepath.Join(f.tree, "urgent", "letter"), "to be restored first")
	f.write(filepath.Join(f.tree, "only-old"), "removed after the first backup")
	settle(t)
	f.run(`systemctl start bctl-committer bctl-walker@default bctl-reader@default bctl-pruner
		bctl filer add files; bctl shard add files "$TREE"; bctl backup --all; rm "$TREE/only-old"`)
	settle(t)
	f.run(`bctl backup --all`)
	return f
}

// typistOf returns a typist in a directory with the installation of a fleet.
func typistOf(t *testing.T, of *fleet.Fleet, tree string) *aFleet {
	t.Helper()
	f := &aFleet{Fleet: of, tree: tree, runs: map[string]*fleet.Service{}}
	superuser, err := url.Parse(of.Database.Superuser())
	if err != nil {
		t.Fatal(err)
	}
	password, _ := superuser.User.Password()
	f.typist = newTypist(t, fleet.Binary(t), map[string]string{
		"systemctl": viaTest, "servers-take-over": viaTest, "machines-take-over": viaTest,
		"psql": fmt.Sprintf("#!/bin/sh\nPGHOST=%s PGPORT=%s PGUSER=%s PGPASSWORD=%s exec %s \"$@\"\n",
			superuser.Hostname(), superuser.Port(), superuser.User.Username(), password, testenv.PsqlPath(t)),
	}, "BCTL_CONFIG=fleet/operator/bctl.yaml", "TREE="+tree)
	f.call = f.standIn
	if err := os.Symlink(of.Installation, f.path("fleet")); err != nil {
		t.Fatal(err)
	}
	return f
}

// standIn does what scripts of the page stand for.
func (f *aFleet) standIn(command string) {
	words := strings.Fields(command)
	switch {
	case words[0] == "servers-take-over":
		f.ServersTakeOver()
	case words[0] == "machines-take-over":
		f.Distribute()
		for _, unit := range units {
			if f.runs[unit] != nil {
				f.stop(unit)
				f.start(unit)
			}
		}
	case words[0] == "systemctl" && len(words) > 2:
		named := words[2:]
		if words[2] == "bctl-*" {
			named = units
		}
		for _, unit := range named {
			switch words[1] {
			case "start":
				f.start(unit)
			case "stop":
				f.stop(unit)
			default:
				f.Fatalf("not understood: %s", command)
			}
		}
	default:
		f.Fatalf("not understood: %s", command)
	}
}

func (f *aFleet) start(unit string) {
	kind, _, _ := strings.Cut(strings.TrimPrefix(unit, "bctl-"), "@")
	if f.runs[unit] == nil {
		f.runs[unit] = f.Service(kind)
	}
}

func (f *aFleet) stop(unit string) {
	if s := f.runs[unit]; s != nil {
		s.Retire()
		delete(f.runs, unit)
	}
}

// lostSite has only the bucket and the papers.
func lostSite(t *testing.T) {
	f := newFleet(t)
	f.run(`bctl key export identity.txt >paper.txt`)
	paper, err := os.ReadFile(f.path("paper.txt"))
	if err != nil {
		t.Fatal(err)
	}
	f.standIn("systemctl stop bctl-*")
	f.Postgres.Stop()
	before := filepath.Join(t.TempDir(), "before")
	if err := os.Rename(f.tree, before); err != nil {
		t.Fatal(err)
	}

	laptop := newTypist(t, fleet.Binary(t), nil)
	laptop.write(laptop.path("paper.txt"), string(paper))
	laptop.write(laptop.path("bucket.env"), fmt.Sprintf("export BCTL_STORE=s3://%s/repo BCTL_STORE_ENDPOINT=https://%s BCTL_STORE_CA_FILE=%s BCTL_STORE_ACCESS_KEY=%s BCTL_STORE_SECRET_KEY=%s\n",
		f.S3.Bucket, f.S3.Endpoint, filepath.Join(f.Installation, "s3", "ca.pem"), f.S3.AccessKey, f.S3.SecretKey))
	began := time.Now()
	laptop.follow("Lost site", "laptop")
	t.Logf("from a bucket and an identity on paper to the first restored file: %.1f s", time.Since(began).Seconds())
	treetest.Equal(t, filepath.Join(before, "urgent"), laptop.path("restored"))

	f.Store.Stop()
	elsewhere := typistOf(t, f.Elsewhere(t), f.tree)
	elsewhere.write(elsewhere.path("identity.txt"), laptop.read("identity.txt"))
	elsewhere.follow("Lost site", "new fleet")
	treetest.Equal(t, before, f.tree)
}

func (p *typist) read(name string) string {
	p.Helper()
	text, err := os.ReadFile(p.path(name))
	if err != nil {
		p.Fatal(err)
	}
	return string(text)
}

// stolenCredential is the folder of the readers.
func stolenCredential(t *testing.T) {
	f := newFleet(t)
	thief := filepath.Join(t.TempDir(), "reader@default")
	copyTo(t, filepath.Join(f.Machines, "reader@default"), thief)
	f.follow("Stolen credential", "fleet")
	stale := *f.Fleet
	machines := *f.Locked
	machines.Machines = filepath.Dir(thief)
	stale.Locked = &machines
	s := steal(&stale, "reader@default")
	refuse(t, try{"reads the index", s.sql("SELECT 1")}, try{"puts a pack", s.s3(put("packs/00000000000000000000000000000000/forged"))})
	if err := s.publish("bctl.v1.commit.batch")(); err == nil {
		t.Error("NATS lets the stolen folder in")
	}
	treetest.Equal(t, f.tree, f.restored("latest --filer files --shard trusted --identity identity.txt"))
}

// encrypt replaces the content of all files. They keep their sizes and times.
const encrypt = `find "$TREE" -type f -exec sh -c '
	touch --reference "$1" time
	head --bytes "$(stat --format %s "$1")" /dev/urandom >content
	cat content >"$1"
	touch --reference time "$1"' sh {} \;
	echo 'pay us' >"$TREE/README"; chmod 0777 "$TREE"`

// ransomware encrypts the files of a filer, and makes a policy forget nearly all snapshots.
func ransomware(t *testing.T) {
	f := newFleet(t)
	f.run(`bctl policy set nightly --schedule '0 1 * * *' --keep-last 100
		bctl brake set --snapshots 50% --min-snapshots 2 --bytes 30% --min-bytes 1B
		bctl backup --all; bctl backup --all`)
	before := filepath.Join(t.TempDir(), "before")
	f.run(`cp --archive "$TREE" ` + before)
	f.run("bctl policy set nightly --keep-last 1\n" + encrypt)
	settle(t)
	f.run(`bctl backup --all`)
	fleet.Await(t, "the brake to stop the policy", func() bool { return f.run("bctl confirm ls --json") != "" })
	f.follow("Ransomware on an operator's machine", "fleet")
	treetest.Equal(t, before, f.path("restored"))
	treetest.Equal(t, before, f.tree)
	if kept := strings.Count(f.run("bctl snapshot ls --json"), "\n"); kept < 6 {
		t.Errorf("of 6 snapshots, %d are left", kept)
	}
}

// wrongClock has the clock of Postgres ahead while a backup is made.
func wrongClock(t *testing.T) {
	f := newFleet(t)
	f.standIn("systemctl stop bctl-*")
	f.ShiftClock(10 * time.Minute)
	for _, unit := range units {
		f.start(unit)
	}
	fleet.Await(t, "the clock to be noticed", func() bool { return strings.Contains(f.run("bctl status"), "clock") })
	f.run("bctl backup --all")
	if out := f.follow("Wrong clock", "fleet"); !strings.Contains(out, "FAILURE     clock") {
		t.Errorf("the doctor says nothing of a clock: %s", out)
	}
	f.ShiftClock(0)
	if out := f.follow("Wrong clock", "corrected"); !strings.Contains(out, "in the FUTURE") {
		t.Errorf("no snapshot is in the future: %s", out)
	}
	treetest.Equal(t, f.tree, f.restored("latest --identity identity.txt"))
}

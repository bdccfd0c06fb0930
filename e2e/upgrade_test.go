package e2e_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// An upgrade is a fleet whose services are of two versions, and a tree that it backs up again and
// again.
type upgrade struct {
	*testing.T
	*fleet.Fleet
	old, current string // programs
	schema       int64  // that the old one was built for
	tree         string
	changes      *mutator
	logged       map[*fleet.Service]int // bytes that the service had logged before it was started last
}

// A fleet of the release before this one is upgraded while it backs up: the index first, then the
// services one after another, in either order. With every mix of versions, snapshots are committed
// by themselves, and both versions restore them.
func TestUpgrade(t *testing.T) {
	for name, order := range map[string][]string{
		"committers first": {"committer", "reader", "walker"},
		"workers first":    {"walker", "reader", "committer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := newUpgrade(t, fleet.Previous(t), 70)
			u.backUpDuring("all services are old", func() {
				u.Program = u.current
				u.Must("migrate")
			})
			u.bothRestore(u.backUpDuring("old services start again", func() {
				u.asOld(func() {
					for _, s := range u.services() {
						u.restart(s)
						u.started(s)
					}
				})
			}))
			for _, kind := range order {
				u.backUpDuring("a "+kind+" is replaced", func() { u.replace(kind) })
				u.bothRestore(u.backUpDuring("each "+kind+" is new", func() {}))
			}
			u.finish()
		})
	}
}

// finish declares that nothing old is left. From then on, pages are stored as patches, which old
// programs cannot read, and these are refused.
func (u *upgrade) finish() {
	u.Helper()
	const patches = "SELECT count(*) FROM pages WHERE base IS NOT NULL"
	many := treetest.Tree{}
	for i := range 200 {
		many[fmt.Sprintf("many/%03d", i)] = treetest.File(fmt.Sprint(i))
	}
	treetest.Make(u, u.tree, many)
	u.backUpDuring("a directory has many files", func() {})
	if n := u.Index.Count(patches); n != 0 {
		u.Errorf("%d pages are patches, while old services may run", n)
	}
	u.Must("migrate", "--finish")
	treetest.Make(u, u.tree, treetest.Tree{"many/new": treetest.File("new")})
	first := u.backUpDuring("one file of many is new", func() {})
	if u.Index.Count(patches) == 0 {
		u.Error("no page is a patch")
	}
	before := u.Restore(first)
	u.backUpDuring("some files have changed", func() {})
	treetest.Equal(u, before, u.Restore(first))
	u.asOld(func() {
		if out := u.Fleet.Run("snapshot", "ls"); out.Status != 1 || !strings.Contains(out.Stderr, "use a newer bctl") {
			u.Errorf("an old program: %s", out)
		}
	})
}

// newUpgrade starts a fleet of the old program.
func newUpgrade(t *testing.T, old string, seed uint64) *upgrade {
	t.Helper()
	u := &upgrade{
		T: t, Fleet: fleet.New(t, fleet.Options{Program: old}), old: old, current: fleet.Binary(t), tree: filepath.Join(t.TempDir(), "tree"),
		logged: map[*fleet.Service]int{},
	}
	u.schema = u.Index.Count(newestSchema)
	generate(t, u.tree, seed, shape{directories: 80, files: 4, meanBytes: 6000})
	treetest.Make(t, filepath.Join(u.tree, "every"), everyKind())
	u.changes = &mutator{t: t, dir: u.tree, random: rand.New(rand.NewPCG(seed, 1))}
	return u
}

const newestSchema = "SELECT max(version_id) FROM goose_db_version"

// backUpDuring changes the tree and backs it up; meanwhile change happens. The snapshot, whose id
// it returns, must be what the tree is.
func (u *upgrade) backUpDuring(what string, change func()) (id string) {
	u.Helper()
	u.changes.mutate(40)
	settle(u)
	backup, id := u.StartBackup(u.tree, "--allow-shrink")
	fleet.Await(u, "work to be settled: "+what, func() bool { return u.Index.WorkOf(id).Settled() > 0 })
	change()
	check(u.T, u.Fleet, backup.Wait(), u.tree)
	if u.Failed() {
		u.Fatalf("while %s", what)
	}
	return id
}

// bothRestore restores a snapshot of the tree as it is by the old program; the new one has.
func (u *upgrade) bothRestore(id string) {
	u.Helper()
	u.asOld(func() { treetest.Equal(u, u.tree, u.Restore(id)) })
}

// asOld does something with the old program.
func (u *upgrade) asOld(do func()) {
	u.Helper()
	current := u.Program
	u.Program = u.old
	defer func() { u.Program = current }()
	do()
}

func (u *upgrade) services() (all []*fleet.Service) {
	return append(append(append(all, u.Walkers...), u.Readers...), u.Committers...)
}

// replace stops the services of a kind and starts new ones, one after another.
func (u *upgrade) replace(kind string) {
	u.Helper()
	list := map[string][]*fleet.Service{"walker": u.Walkers, "reader": u.Readers, "committer": u.Committers}[kind]
	for i := range list {
		list[i].Retire()
		list[i] = u.Service(kind)
		u.started(list[i])
	}
}

// started is in what each service logs when it works.
const started = "er started"

// started waits until the service has found its index good, and works.
func (u *upgrade) started(s *fleet.Service) {
	u.Helper()
	fleet.Await(u, s.Name+" to have started", func() bool { return strings.Contains(u.log(s), started) })
}

// restart kills the service and starts it again.
func (u *upgrade) restart(s *fleet.Service) {
	u.Helper()
	u.logged[s] += len(u.log(s))
	s.Restart()
}

// log is what the service has logged since it was started last.
func (u *upgrade) log(s *fleet.Service) string {
	u.Helper()
	text, err := os.ReadFile(s.LogFile())
	if err != nil {
		u.Fatal(err)
	}
	return string(text[u.logged[s]:])
}

// next applies a migration that is newer than the binary: it adds what the binary does not know,
// and says which binaries can work with that.
func next(t *testing.T, db *sql.DB, version, oldest int64) {
	t.Helper()
	for _, statement := range []struct {
		text string
		args []any
	}{
		{"INSERT INTO goose_db_version (version_id, is_applied) VALUES ($1, true)", []any{version}},
		{"INSERT INTO schema_versions (version, oldest) VALUES ($1, $2)", []any{version, oldest}},
	} {
		if _, err := db.Exec(statement.text, statement.args...); err != nil {
			t.Fatal(err)
		}
	}
}

// expand is what such a migration adds: columns to the tables that services write.
const expand = `
ALTER TABLE shards ADD COLUMN added text NOT NULL DEFAULT 'later';
ALTER TABLE snapshots ADD COLUMN added text NOT NULL DEFAULT 'later';
ALTER TABLE walk_tasks ADD COLUMN added text NOT NULL DEFAULT 'later';
ALTER TABLE read_batches ADD COLUMN added text NOT NULL DEFAULT 'later';
ALTER TABLE packs ADD COLUMN added text NOT NULL DEFAULT 'later';
ALTER TABLE pages ADD COLUMN added text NOT NULL DEFAULT 'later'`

// Services of this version go on, and start, with a newer index that says they can. With one that
// says they cannot, those that start wait for their upgrade and say so.
func TestOldServicesBesideANewerIndex(t *testing.T) {
	testtarget.Need(t, testtarget.Upgrade)
	t.Parallel()
	u := newUpgrade(t, fleet.Binary(t), 71)
	db, known := u.Index.DB(), u.schema
	u.backUpDuring("the index is migrated, and all services start again", func() {
		for statement := range strings.SplitSeq(expand, ";") { // one after another, for services lock the same tables in their order
			if _, err := db.Exec(statement); err != nil {
				t.Fatal(err)
			}
		}
		next(t, db, known+1, known)
		for _, s := range u.services() {
			u.restart(s)
			u.started(s)
		}
	})
	if out := u.Must("migrate", "--json"); !strings.Contains(out.Stdout, `"from":`+decimal(known+1)+`,"to":`+decimal(known+1)) {
		t.Errorf("%s", out)
	}

	next(t, db, known+2, known+2)
	says := "the index has version " + decimal(known+2) + ", which needs binaries of version " + decimal(known+2) + " or newer; this one is of version " +
		decimal(known) + ": use a newer bctl"
	for _, args := range [][]string{{"snapshot", "ls"}, {"migrate"}} {
		if out := u.Fleet.Run(args...); out.Status != 1 || !strings.Contains(out.Stderr, says) {
			t.Errorf("with an index that is too new for it: %s", out)
		}
	}
	for _, s := range u.services() {
		u.restart(s)
		fleet.Await(t, s.Name+" to say what it waits for", func() bool { return strings.Contains(u.log(s), says) })
		if strings.Contains(u.log(s), started) {
			t.Errorf("%s works with an index that is too new for it:\n%s", s.Name, u.log(s))
		}
	}
	for _, undo := range []string{"DELETE FROM schema_versions WHERE version = $1", "DELETE FROM goose_db_version WHERE version_id = $1"} {
		if _, err := db.Exec(undo, known+2); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range u.services() {
		u.started(s)
	}
	u.backUpDuring("the index is one that they can work with again", func() {})
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// A repository on this machine that the release before this one made is migrated, and both its
// snapshots and new ones restore.
func TestUpgradeOfARepository(t *testing.T) {
	t.Parallel()
	current, tree := fleet.Binary(t), filepath.Join(t.TempDir(), "tree")
	dir := filepath.Join(t.TempDir(), "repo")
	r := &fleet.Repo{Client: fleet.NewClient(t, "BCTL_REPO="+dir), Dir: dir}
	r.Program = fleet.Previous(t)
	r.Must("init")
	treetest.Make(t, tree, everyKind())
	settle(t)
	first := r.Backup(tree)
	before := filepath.Join(t.TempDir(), "before")
	r.Must("restore", first.Snapshot, "--target", before)

	r.Program = current
	migrated := r.Must("migrate", "--json").Stdout
	var versions struct{ From, To int64 }
	if err := json.Unmarshal([]byte(migrated), &versions); err != nil || versions.From == 0 || versions.From > versions.To {
		t.Errorf("migrated %s: %v", migrated, err)
	}
	changes := &mutator{t: t, dir: tree, random: rand.New(rand.NewPCG(72, 1))}
	changes.mutate(30)
	settle(t)
	second := r.Backup("--allow-shrink", tree)
	treetest.Equal(t, before, r.Restore(first.Snapshot))
	treetest.Equal(t, tree, r.Restore(second.Snapshot))

	// This binary accepts a newer schema that declares itself compatible, and refuses any other.
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "index.db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	known := r.Index().Count(newestSchema)
	next(t, db, known+1, known)
	treetest.Equal(t, tree, r.Restore(r.Backup(tree).Snapshot))
	next(t, db, known+2, known+1)
	if out := r.Run("backup", tree); out.Status != 1 || !strings.Contains(out.Stderr, "use a newer bctl") {
		t.Errorf("with an index that is too new: %s", out)
	}
}

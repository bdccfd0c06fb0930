package e2e_test

import (
	"database/sql"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A migration is killed when it has done a part of its steps, while services of the previous
// release run. The test types the commands of docs/disaster-recovery.md.
func TestUpgradeThatIsHalfFinished(t *testing.T) {
	t.Parallel()
	old := fleet.Previous(t)
	f := fleet.New(t, fleet.Options{Program: old, OwnPostgres: true, Walkers: 1, Readers: 1, Committers: 1})
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 92, shape{directories: 10, files: 5, meanBytes: 3000})
	settle(t)
	f.Register(tree)
	f.Backup(fleet.BackupArgs(tree)...)
	oldest := f.Index.Count(newestSchema)
	killMigration(t, f)
	halfway := f.Index.Count(newestSchema)
	if halfway == oldest {
		t.Fatal("the migration was killed before its first step")
	}
	f.Backup(fleet.BackupArgs(tree)...) // by the old services

	p := newTypist(t, fleet.Binary(t), nil, "BCTL_CONFIG="+f.Config)
	p.run("cp " + filepath.Join(f.Home, "identity.txt") + " identity.txt")
	if out, err := p.try("bctl snapshot ls"); err == nil || !strings.Contains(out, "run bctl migrate") {
		t.Errorf("the new program, with an index of version %d: %v, %s", halfway, err, out)
	}
	p.follow(upgradeSection, "upgrade")
	f.Backup(fleet.BackupArgs(tree)...)
	f.Program = fleet.Binary(t)
	f.Replace(f.Walkers, f.Readers, f.Committers)
	p.follow(upgradeSection, "upgraded")
	treetest.Equal(t, tree, p.path("restored"))
}

// killMigration kills bctl migrate while a step of it waits for a table.
func killMigration(t *testing.T, f *fleet.Fleet) {
	t.Helper()
	db, err := sql.Open("pgx", f.Postgres.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(t.Context(), "LOCK TABLE chunk_lists IN ACCESS SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	migrate := exec.Command(fleet.Binary(t), "migrate", "--config", f.Config)
	if err := migrate.Start(); err != nil {
		t.Fatal(err)
	}
	fleet.Await(t, "the migration to wait for that table, and not for another that a service uses", func() bool {
		return f.Index.Count("SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock' AND relation = 'chunk_lists'::regclass") > 0
	})
	if err := migrate.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = migrate.Wait() // it was killed
}

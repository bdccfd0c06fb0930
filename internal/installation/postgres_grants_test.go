package installation

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/pgindex"
)

// bctl migrate followed by roles.sql corrects all grants that were made by hand or by an older
// version, or that are missing.
func (d *database) testMadeAnew(t *testing.T) {
	ctx := t.Context()
	owner := d.must(t, "admin", Admin)
	x, err := pgindex.Open(ctx, d.dsn("admin", Admin), pgindex.Options{MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for name, again := range map[string]func(){
		"migrate": func() {
			if _, _, err := x.Migrate(ctx); err != nil {
				t.Error(err)
			}
		},
		"roles.sql": func() { d.server.Roles(t) },
	} {
		_, err := owner.Exec(ctx, `GRANT ALL ON pages TO bctl_walker; GRANT UPDATE (state) ON snapshots TO bctl_operator; GRANT SELECT ON packs TO PUBLIC;
			REVOKE ALL ON pages FROM bctl_reader; DROP TRIGGER bctl_check_begin ON snapshots`)
		if err != nil {
			t.Fatal(err)
		}
		again()
		for _, test := range []struct {
			role, what, privilege string
			want                  bool
		}{
			{"bctl_walker", "pages", "UPDATE", false}, {"bctl_walker", "packs", "SELECT", false},
			{"bctl_operator", "snapshots", "UPDATE", false}, {"bctl_reader", "pages", "SELECT", true},
		} {
			var has bool
			if err := owner.QueryRow(ctx, "SELECT has_table_privilege($1, $2, $3)", test.role, test.what, test.privilege).Scan(&has); err != nil || has != test.want {
				t.Errorf("after %s: %s has %s of %s: %v, %v", name, test.role, test.privilege, test.what, has, err)
			}
		}
		var triggers int
		if err := owner.QueryRow(ctx, "SELECT count(*) FROM pg_trigger WHERE tgname = 'bctl_check_begin'").Scan(&triggers); err != nil || triggers != 1 {
			t.Errorf("after %s: %d triggers, %v", name, triggers, err)
		}
	}
	superuser, err := url.Parse(d.server.Superuser())
	if err != nil {
		t.Fatal(err)
	}
	superuser.Path = "/bctl"
	conn, err := pgx.Connect(ctx, superuser.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// A role that this version needs does not exist yet, and a schema is not that of this version.
	if _, err := conn.Exec(ctx, "ALTER DATABASE bctl SET bctl.roles = 'other'"); err != nil {
		t.Fatal(err)
	}
	misnamed, err := pgindex.Open(ctx, d.dsn("admin", Admin), pgindex.Options{MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer misnamed.Close()
	if _, _, err := misnamed.Migrate(ctx); err == nil || !strings.Contains(err.Error(), "roles.sql") {
		t.Errorf("migrate without the roles: %v", err)
	}
	if _, err := owner.Exec(ctx, "UPDATE goose_db_version SET version_id = version_id + 100; GRANT UPDATE ON pages TO bctl_walker"); err != nil {
		t.Fatal(err)
	}
	d.server.Roles(t) // reports what to do, and does not change the tables
	if err := try(t, d.must(t, "walker@paris", Walker), "UPDATE pages SET inode = inode"); err != nil {
		t.Errorf("roles.sql on a newer schema: %v", err)
	}
	if _, err := owner.Exec(ctx, "UPDATE goose_db_version SET version_id = version_id - 100"); err != nil {
		t.Fatal(err)
	}
	// A schema that another user created becomes the installation's, with its content.
	if _, err := x.EnsureFiler(ctx, "another"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "REASSIGN OWNED BY bctl_admin TO bctl; ALTER DATABASE bctl RESET ALL"); err != nil {
		t.Fatal(err)
	}
	d.server.Roles(t)
	fresh, err := pgindex.Open(ctx, d.dsn("admin", Admin), pgindex.Options{MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	if _, _, err := fresh.Migrate(ctx); err != nil {
		t.Error(err)
	}
	if _, err := fresh.Repository(ctx); err != nil && !errors.Is(err, backup.ErrNoRepository) {
		t.Error(err)
	}
}

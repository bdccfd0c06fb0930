package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Locked is a ClusterServer that uses the folder "postgres" of an installation of bctl deploy init:
// its TLS, its roles, and its database. The paths in its configuration lead into the folder. Before
// the lines of the installation's pg_hba.conf is one for the test's own superuser (Superuser).
type Locked struct {
	*ClusterServer
	folder string
}

// Lock runs the installation's roles.sql on the server, and restarts the server with the
// configuration of the folder. It makes the server's user the owner of the folder's files, and lets
// that user pass the folders above. The installation must name the server by its Address.
func (s *ClusterServer) Lock(t testing.TB, folder string) *Locked {
	t.Helper()
	l := &Locked{s, folder}
	l.Roles(t)
	l.give(t)
	data := filepath.Join(l.cluster.directory, "data")
	settings, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer settings.Close()
	_, err = fmt.Fprintf(settings, "\ninclude '%s'\nhba_file = '%s'\n", filepath.Join(folder, "postgresql.conf"), l.hba())
	if err != nil {
		t.Fatal(err)
	}
	l.Stop() // cleanly: there is nothing to recover
	l.Restart()
	return l
}

// Superuser is the DSN of the test's own superuser, in the server's database postgres.
func (l *Locked) Superuser() string { return l.cluster.DSN() }

// Address is the host and port that the server listens at.
func (s *ClusterServer) Address() (host string, port uint16) {
	config, err := pgx.ParseConfig(s.cluster.DSN())
	if err != nil {
		panic(err) // the package has made the DSN
	}
	return config.Host, config.Port
}

// Roles runs the installation's roles.sql, as its administrator would.
func (l *Locked) Roles(t testing.TB) {
	t.Helper()
	Psql(t, l.cluster.DSN(), filepath.Join(l.folder, "roles.sql"))
}

// PsqlPath returns the path of psql, which comes with the server.
func PsqlPath(t testing.TB) string {
	t.Helper()
	_, postgres, err := postgresPrograms()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(filepath.Dir(postgres), "psql")
}

// Psql runs a file of SQL with psql.
func Psql(t testing.TB, dsn, file string) {
	t.Helper()
	psql := exec.Command(PsqlPath(t), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", file, dsn)
	if output, err := psql.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", filepath.Base(file), err, output)
	}
}

// Reload makes the server read its configuration again, after a rotation or a retirement, and
// returns when the server has done so.
func (l *Locked) Reload(t testing.TB) {
	t.Helper()
	l.give(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, l.cluster.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var before time.Time
	if err := conn.QueryRow(ctx, "SELECT pg_conf_load_time()").Scan(&before); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		// A session takes over a configuration that the server has read with its next statement.
		var now time.Time
		if err := conn.QueryRow(ctx, "SELECT pg_conf_load_time()").Scan(&now); err != nil {
			t.Fatal(err)
		}
		if now.After(before) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal("the server does not read its configuration again")
		case <-ticker.C:
		}
	}
}

func (l *Locked) hba() string { return filepath.Join(l.cluster.directory, "pg_hba.conf") }

// give makes the files of the folder readable for the server, and writes the test's pg_hba.conf.
func (l *Locked) give(t testing.TB) {
	t.Helper()
	lines, err := os.ReadFile(filepath.Join(l.folder, "pg_hba.conf"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.hba(), append([]byte("host all bctl 127.0.0.1/32 password\n"), lines...), 0o644); err != nil {
		t.Fatal(err)
	}
	credential, err := postgresCredential()
	if err != nil {
		t.Fatal(err)
	}
	if credential == nil {
		return
	}
	if err := own(l.folder, credential); err != nil {
		t.Fatal(err)
	}
}

// own makes a user the owner of a test's folder, and lets the user pass the temporary folders
// above.
func own(folder string, credential *syscall.Credential) error {
	temporary := filepath.Clean(os.TempDir())
	for up := filepath.Dir(folder); strings.HasPrefix(up, temporary+"/"); up = filepath.Dir(up) {
		if err := os.Chmod(up, 0o711); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(folder)
	errs := []error{err, os.Chown(folder, int(credential.Uid), int(credential.Gid))}
	for _, e := range entries {
		errs = append(errs, os.Chown(filepath.Join(folder, e.Name()), int(credential.Uid), int(credential.Gid)))
	}
	return errors.Join(errs...)
}

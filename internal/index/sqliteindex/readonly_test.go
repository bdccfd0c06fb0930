package sqliteindex_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/testenv"
)

// logs are the files that processes leave beside the database: none after the last of them closes
// it; the log, if that is copied or the machine was switched off; or the log and the -shm, after a
// crash.
var logs = map[string][]string{"closed": nil, "log": {"-wal"}, "log and shm": {"-wal", "-shm"}, "shm": {"-shm"}}

// places are file systems on which an index cannot be written.
var places = map[string]func(*testing.T, testenv.Disk){
	"read-only": func(t *testing.T, d testenv.Disk) { must(t, d.SetReadOnly(true)) },
	"full":      func(t *testing.T, d testenv.Disk) { must(t, d.Fill()) },
	"read-only and full": func(t *testing.T, d testenv.Disk) {
		must(t, d.Fill())
		must(t, d.SetReadOnly(true))
	},
	"both well": func(*testing.T, testenv.Disk) {},
}

func TestOpenReadOnly(t *testing.T) {
	for left, suffixes := range logs {
		for name, spoil := range places {
			t.Run(left+", "+name, func(t *testing.T) {
				disk := testenv.NewDisk(t, 4<<20)
				path := filepath.Join(disk.Dir, "index.db")
				crash(t, path, suffixes)
				spoil(t, disk)
				for range 2 { // the second finds what the first has left
					x, err := sqliteindex.OpenReadOnly(t.Context(), path)
					if err != nil {
						t.Fatal(err)
					}
					must(t, x.CheckSchema(t.Context()))
					filers, err := x.ListFilers(t.Context(), index.FilerFilter{})
					if err != nil || len(filers) != 1 {
						t.Errorf("%d filers, %v", len(filers), err)
					}
					if _, err := x.EnsureFiler(t.Context(), "new"); !errors.Is(err, backup.ErrInvalid) {
						t.Errorf("it can be written to: %v", err)
					}
					must(t, x.Close())
				}
			})
		}
	}
}

// A reader on a full disk blocks writers once there is space again: the index that it reads does
// not change.
func TestOpenReadOnlyBesideAWriter(t *testing.T) {
	disk := testenv.NewDisk(t, 16<<20)
	path := filepath.Join(disk.Dir, "index.db")
	crash(t, path, []string{"-wal"})
	must(t, disk.Fill())
	x, err := sqliteindex.OpenReadOnly(t.Context(), path)
	must(t, err)
	defer x.Close()
	must(t, disk.Free())

	db, err := sql.Open("sqlite", "file:"+path+"?_busy_timeout=0")
	must(t, err)
	db.SetMaxOpenConns(1)
	for range 3 {
		for _, statement := range []string{
			"DROP TABLE IF EXISTS more", "CREATE TABLE more (a)", "UPDATE filers SET name = 'nas2', labels = '{}'",
			"INSERT INTO more SELECT hex(randomblob(300)) FROM filers, (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) SELECT i FROM n)",
			"PRAGMA wal_checkpoint(TRUNCATE)",
		} {
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
	}
	must(t, db.Close())
	filers, err := x.ListFilers(t.Context(), index.FilerFilter{})
	if err != nil || len(filers) != 1 || filers[0].Name != "nas1" {
		t.Errorf("%+v, %v", filers, err)
	}
	must(t, x.Close())

	after, err := sqliteindex.OpenReadOnly(t.Context(), path)
	must(t, err)
	defer after.Close()
	filers, err = after.ListFilers(t.Context(), index.FilerFilter{})
	if err != nil || len(filers) != 1 || filers[0].Name != "nas2" {
		t.Errorf("what was written: %+v, %v", filers, err)
	}
}

// An index that another process writes to can be read, and neither process blocks the other.
func TestOpenReadOnlyOfALiveIndex(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index.db")
	writer := open(t, path)
	_, _, err := writer.Migrate(t.Context())
	must(t, err)
	x, err := sqliteindex.OpenReadOnly(t.Context(), path)
	must(t, err)
	defer x.Close()
	for n := 1; n < 4; n++ {
		_, err := writer.EnsureFiler(t.Context(), fmt.Sprint("nas", n))
		must(t, err)
		filers, err := x.ListFilers(t.Context(), index.FilerFilter{})
		if err != nil || len(filers) != n {
			t.Errorf("%d filers of %d, %v", len(filers), n, err)
		}
	}
}

// Errors have the operating system's texts and the path, and no SQLite numbers.
func TestErrorsOfTheSystem(t *testing.T) {
	disk := testenv.NewDisk(t, 4<<20)
	path := filepath.Join(disk.Dir, "index.db")
	crash(t, path, nil)
	x := open(t, path) // before the disk is full
	must(t, disk.Fill())
	_, err := sqliteindex.Open(t.Context(), filepath.Join(disk.Dir, "new.db"))
	wantError(t, "make an index on a full disk", err, syscall.ENOSPC, backup.ErrUnavailable, "index "+disk.Dir+"/new.db: disk full")
	for n := 0; err == nil || n == 0; n++ {
		_, err = x.EnsureFiler(t.Context(), fmt.Sprint("more", n))
	}
	wantError(t, "write to a full disk", err, syscall.ENOSPC, backup.ErrUnavailable, "index "+path+": disk full")
	must(t, disk.Free())
	must(t, x.Close())

	must(t, disk.SetReadOnly(true))
	_, err = sqliteindex.Open(t.Context(), path)
	wantError(t, "write to a read-only disk", err, syscall.EROFS, backup.ErrUnavailable, "index "+path+": read-only file system")
	_, err = sqliteindex.OpenReadOnly(t.Context(), path+"x")
	wantError(t, "read what is not there", err, syscall.ENOENT, backup.ErrNotFound, "index "+path+"x: no such file")
	must(t, disk.SetReadOnly(false))

	must(t, os.WriteFile(path, bytes.Repeat([]byte("no database "), 1000), 0o600))
	for name, open := range map[string]func(context.Context, string) (*sqliteindex.Index, error){"open": sqliteindex.Open, "open read-only": sqliteindex.OpenReadOnly} {
		_, err = open(t.Context(), path)
		wantError(t, name+" no database", err, backup.ErrCorrupt, backup.ErrCorrupt, "index "+path+": it is damaged, or not an index")
	}
}

// A user who may only read can open the index: neither the file nor its directory is writable.
func TestOpenReadOnlyWithoutRoot(t *testing.T) {
	const variable = "BCTL_TEST_INDEX"
	if path, ok := os.LookupEnv(variable); ok {
		x, err := sqliteindex.OpenReadOnly(t.Context(), path)
		must(t, err)
		defer x.Close()
		filers, err := x.ListFilers(t.Context(), index.FilerFilter{})
		if err != nil || len(filers) != 1 {
			t.Errorf("%d filers, %v", len(filers), err)
		}
		_, err = sqliteindex.Open(t.Context(), path)
		wantError(t, "write", err, fs.ErrPermission, fs.ErrPermission, "index "+path+": permission denied to user")
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("only root may be another user")
	}
	dir, err := os.MkdirTemp("", "bctl-nobody-") //nolint:usetesting // t.TempDir is below a directory that only its user may enter
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, err := os.Executable()
	must(t, err)
	data, err := os.ReadFile(self)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "test"), data, 0o755))
	path := filepath.Join(dir, "index.db")
	for left, suffixes := range logs {
		must(t, os.Chmod(dir, 0o755))
		crash(t, path, suffixes)
		for _, suffix := range append(suffixes, "") {
			must(t, os.Chmod(path+suffix, 0o444))
		}
		must(t, os.Chmod(dir, 0o555))
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test"), "-test.run=^TestOpenReadOnlyWithoutRoot$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"="+path)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%s: %v\n%s", left, err, out)
		}
		for _, suffix := range append(suffixes, "") {
			must(t, os.Remove(path+suffix))
		}
	}
}

func wantError(t *testing.T, what string, err, is, kind error, text string) {
	t.Helper()
	if !errors.Is(err, is) || !errors.Is(err, kind) || !strings.HasPrefix(err.Error(), text) || regexp.MustCompile(`\(\d+\)|SQL|I/O`).MatchString(err.Error()) {
		t.Errorf("%s: %v, want %s", what, err, text)
	}
}

// crash creates an index with one filer, in the state that a process leaves that dies with these
// files open.
func crash(t *testing.T, path string, suffixes []string) {
	t.Helper()
	live := filepath.Join(t.TempDir(), "index.db")
	x, err := sqliteindex.Open(t.Context(), live)
	must(t, err)
	_, _, err = x.Migrate(t.Context())
	must(t, err)
	_, err = x.EnsureFiler(t.Context(), "nas1")
	must(t, err)
	if len(suffixes) == 0 || suffixes[0] != "-wal" {
		must(t, x.Close())
	} else {
		defer x.Close()
	}
	for _, suffix := range append(suffixes, "") {
		data, err := os.ReadFile(live + suffix)
		if errors.Is(err, os.ErrNotExist) {
			data, err = nil, nil
		}
		must(t, err)
		must(t, os.WriteFile(path+suffix, data, 0o600))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

package pgindex_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/pgindex"
	"github.com/bctl/bctl/internal/testenv"
)

// An error names the address of the index, and never the password.
func TestOpenErrors(t *testing.T) {
	for _, test := range []struct {
		dsn  string
		want error
		says string
	}{
		{"postgres://bctl:sesame@127.0.0.1:1/bctl", backup.ErrUnavailable, "127.0.0.1:1"},
		{"postgres://bctl:sesame@[::1/bctl", backup.ErrInvalid, "postgres://user@host"},
		{"host=127.0.0.1 password='sesame", backup.ErrInvalid, "postgres://user@host"},
		{"postgres://bctl:ses ame@127.0.0.1:x/bctl", backup.ErrInvalid, "postgres://user@host"},
	} {
		_, err := pgindex.Open(t.Context(), test.dsn, pgindex.Options{})
		if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "ame") && strings.Contains(err.Error(), "ses") {
			t.Errorf("%s: error %v", test.dsn, err)
		}
		if strings.ContainsAny(err.Error(), "\n\t") || strings.Count(err.Error(), "refused") > 1 {
			t.Errorf("%s: the error is not one line, without repetitions: %q", test.dsn, err)
		}
	}
}

// While the server is down, every method reports it. Afterwards all methods work again.
func TestUnavailable(t *testing.T) {
	server := testenv.PostgresServer(t)
	x := open(t, server.DSN())
	if _, _, err := x.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	filer, err := x.EnsureFiler(t.Context(), "filer")
	if err != nil {
		t.Fatal(err)
	}
	server.Kill()
	pack := []index.Result{{Pack: &backup.PackStored{}}}
	for range 2 { // over broken connections first, then without any
		_, applyErr := x.Apply(t.Context(), pack)
		_, shardErr := x.EnsureShard(t.Context(), filer.ID, "shard", "")
		_, locateErr := x.Locate(t.Context(), make([]backup.ChunkID, 1))
		for _, err := range []error{applyErr, shardErr, locateErr, x.CheckSchema(t.Context())} {
			if !errors.Is(err, backup.ErrUnavailable) || !strings.Contains(err.Error(), "127.0.0.1:") {
				t.Errorf("error %v, want that the index is unavailable", err)
			}
		}
	}
	server.Restart()
	if _, err := x.EnsureShard(t.Context(), filer.ID, "shard", ""); err != nil {
		t.Fatal(err)
	}
}

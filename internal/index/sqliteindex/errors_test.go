package sqliteindex

import (
	"errors"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/bctl/bctl/internal/backup"
)

// Every result code that concerns the file has a text, and is a kind of error that the callers
// know.
func TestResultCodesAreExplained(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "index.db")
	numbers := regexp.MustCompile(`[0-9]|SQL`)
	for _, test := range []struct {
		code     int
		kind, is error
	}{
		{sqlite3.SQLITE_FULL, backup.ErrUnavailable, syscall.ENOSPC},
		{sqlite3.SQLITE_IOERR | sqlite3.SQLITE_IOERR_SHMSIZE, backup.ErrUnavailable, syscall.ENOSPC},
		{sqlite3.SQLITE_IOERR, nil, nil},
		{sqlite3.SQLITE_READONLY, nil, nil},
		{sqlite3.SQLITE_CANTOPEN, backup.ErrNotFound, syscall.ENOENT},
		{sqlite3.SQLITE_PERM, nil, nil},
		{sqlite3.SQLITE_NOMEM, backup.ErrUnavailable, syscall.ENOMEM},
		{sqlite3.SQLITE_BUSY, backup.ErrUnavailable, nil},
		{sqlite3.SQLITE_LOCKED, backup.ErrUnavailable, nil},
		{sqlite3.SQLITE_PROTOCOL, backup.ErrUnavailable, nil},
		{sqlite3.SQLITE_CORRUPT, backup.ErrCorrupt, nil},
		{sqlite3.SQLITE_NOTADB, backup.ErrCorrupt, nil},
	} {
		extended := []int{test.code}
		if test.code < 0x100 {
			for n := 1; n < 0x40; n++ {
				extended = append(extended, test.code|n<<8)
			}
		}
		for _, code := range extended {
			text, is := explain(missing, code)
			err := errors.Join(is...)
			if text == "" || numbers.MatchString(text) || len(is) == 0 {
				t.Errorf("code %d: %q, %v", code, text, err)
			}
			for _, want := range []error{test.kind, test.is} {
				if want != nil && !errors.Is(err, want) {
					t.Errorf("code %d is %v, want %v", code, err, want)
				}
			}
		}
	}
	for _, code := range []int{0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_MISUSE} {
		if text, is := explain(missing, code); text != "" || is != nil {
			t.Errorf("code %d has nothing to do with the file: %q, %v", code, text, is)
		}
	}
}

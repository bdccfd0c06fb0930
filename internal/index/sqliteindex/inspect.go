package sqliteindex

import (
	"context"
	"fmt"
	"os"
)

// Facts are what there is to know of the file.
type Facts struct {
	Path      string
	Version   string // of SQLite
	SizeBytes int64  // with what is not checkpointed
	Journal   string
	Damage    []string // what PRAGMA quick_check has to say, at most a few lines; empty: it is whole
}

// maxDamage is how many lines of damage are read.
const maxDamage = 5

// Inspect reads all of the file, to see whether it is whole.
func (x *Index) Inspect(ctx context.Context) (Facts, error) {
	b := x.backend
	f := Facts{Path: b.path}
	for _, path := range []string{b.path, b.path + "-wal"} {
		if info, err := os.Stat(path); err == nil {
			f.SizeBytes += info.Size()
		}
	}
	if err := b.readers.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&f.Version); err != nil {
		return f, b.Wrap(err)
	}
	var err error
	if f.Journal, err = b.journal(ctx); err != nil {
		return f, b.Wrap(err)
	}
	rows, err := b.readers.QueryContext(ctx, fmt.Sprintf("PRAGMA quick_check(%d)", maxDamage))
	if err != nil {
		return f, b.Wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return f, b.Wrap(err)
		}
		if line != "ok" {
			f.Damage = append(f.Damage, line)
		}
	}
	return f, b.Wrap(rows.Err())
}

// journal returns the mode that the database is in.
func (b *backend) journal(ctx context.Context) (mode string, err error) {
	if len(b.locks) == 0 {
		err = b.readers.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode)
		return mode, err
	}
	// Of a database that cannot be written to, SQLite says what it does itself: nothing.
	var versions [2]byte // to write and to read it, https://sqlite.org/fileformat2.html#file_format_version_numbers
	_, err = b.locks[0].ReadAt(versions[:], 18)
	if versions == [2]byte{2, 2} {
		return "wal", err
	}
	return "rollback", err
}

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
	if err := b.readers.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&f.Journal); err != nil {
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

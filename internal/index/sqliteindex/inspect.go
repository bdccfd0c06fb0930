package sqliteindex

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// Facts describe the file.
type Facts struct {
	Path      string
	Version   string // of SQLite
	SizeBytes int64  // including the log
	Journal   string
	Damage    []string // output of PRAGMA integrity_check, at most a few lines; empty: undamaged
}

// maxDamage bounds the lines of damage that are read.
const maxDamage = 5

// Inspect reads the whole file to find damage: in the tables, and in the agreement of the indexes
// with their tables, which quick_check does not check.
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
	err = b.each(ctx, fmt.Sprintf("PRAGMA integrity_check(%d)", maxDamage), nil, func(rows *sql.Rows) error {
		var line string
		err := rows.Scan(&line)
		if err == nil && line != "ok" {
			f.Damage = append(f.Damage, line)
		}
		return err
	})
	return f, b.Wrap(err)
}

// Check returns ErrDamaged if Inspect finds damage.
func (x *Index) Check(ctx context.Context) error {
	facts, err := x.Inspect(ctx)
	if err != nil || len(facts.Damage) == 0 {
		return err
	}
	text := "it is damaged: " + strings.Join(facts.Damage, "; ") + " (" + rebuildAdvice + ")"
	return &failure{x.backend.path, text, []error{ErrDamaged}}
}

// CheckPages reads all versions of pages, one at a time. It returns their number, the number of
// those that do not match their digests, and the directories of the first few of the latter.
func (x *Index) CheckPages(ctx context.Context) (pages, damaged int, directories []string, err error) {
	b := x.backend
	rows, err := b.readers.QueryContext(ctx, "SELECT (SELECT name FROM shards WHERE id = shard), "+pageColumns+", listing, "+ofBase+" FROM pages NOT INDEXED")
	if err != nil {
		return 0, 0, nil, b.Wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		var shard sql.NullString
		p, err := scanPage(rows, true, []any{&shard}, nil)
		if err != nil {
			return pages, damaged, directories, b.Wrap(err)
		}
		pages++
		path, err := backup.PathOfKey(p.PathKey)
		v := backup.PageVersion{Path: path, Key: p.Key, Fingerprint: p.Fingerprint, Inode: p.Inode, Listing: p.Listing}
		if err == nil && p.Directory == listing.DirectoryID(path) && listing.Digest(&v) == p.Digest {
			continue
		}
		damaged++
		if name := shard.String + "/" + path; len(directories) < maxDamage && !slices.Contains(directories, name) {
			directories = append(directories, name)
		}
	}
	return pages, damaged, directories, b.Wrap(rows.Err())
}

// journal returns the journal mode of the database.
func (b *backend) journal(ctx context.Context) (mode string, err error) {
	if len(b.locks) == 0 {
		err = b.readers.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode)
		return mode, err
	}
	// For a database that it cannot write to, SQLite reports its own mode of writing: none.
	var versions [2]byte // format versions for writing and reading, https://sqlite.org/fileformat2.html#file_format_version_numbers
	_, err = b.locks[0].ReadAt(versions[:], 18)
	if versions == [2]byte{2, 2} {
		return "wal", err
	}
	return "rollback", err
}

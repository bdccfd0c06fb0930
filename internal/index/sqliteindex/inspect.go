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

// Facts are what there is to know of the file.
type Facts struct {
	Path      string
	Version   string // of SQLite
	SizeBytes int64  // with what is not checkpointed
	Journal   string
	Damage    []string // what PRAGMA integrity_check has to say, at most a few lines; empty: it is whole
}

// maxDamage is how many lines of damage are read.
const maxDamage = 5

// Inspect reads all of the file, to see whether it is whole: tables, and that their
// indexes have the same rows (quick_check would not look at that).
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
	rows, err := b.readers.QueryContext(ctx, fmt.Sprintf("PRAGMA integrity_check(%d)", maxDamage))
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

// Check returns ErrDamaged where Inspect finds damage.
func (x *Index) Check(ctx context.Context) error {
	facts, err := x.Inspect(ctx)
	if err != nil || len(facts.Damage) == 0 {
		return err
	}
	text := "it is damaged: " + strings.Join(facts.Damage, "; ") + " (" + rebuildAdvice + ")"
	return &failure{x.backend.path, text, []error{ErrDamaged}}
}

// CheckPages reads all versions of pages, one at a time, and returns how many there are, how many of these
// do not agree with their digests, and the directories of the first few of those.
func (x *Index) CheckPages(ctx context.Context) (pages, damaged int, directories []string, err error) {
	b := x.backend
	rows, err := b.readers.QueryContext(ctx, "SELECT (SELECT name FROM shards WHERE id = shard), "+pageColumns+", listing FROM pages NOT INDEXED")
	if err != nil {
		return 0, 0, nil, b.Wrap(err)
	}
	defer rows.Close()
	for rows.Next() {
		var shard sql.NullString
		p, err := scanPageAfter(rows, true, &shard)
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

package sqliteindex

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"entgo.io/ent/dialect"
	_ "modernc.org/sqlite" // the driver

	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/entindex"
)

// An Index is an index.Index in a SQLite file.
type Index struct {
	*entindex.Index
	backend *backend
}

const (
	readerConns = 8
	// busyMilliseconds is how long one try waits for another process that writes.
	busyMilliseconds = 5000
	readerCache      = "_pragma=cache_size(-8192)"
	writerCache      = "-32768" // KiB
	// writerOptions gives new files pages of 8 KiB: into those of 4 KiB, only one version of a page
	// fits that is stored whole. The log has 64 MiB before it is merged into the file.
	writerOptions = "_pragma=page_size(8192)&_journal_mode=WAL&_pragma=cache_size(" + writerCache + ")&_pragma=wal_autocheckpoint(8000)&_pragma=temp_store(MEMORY)"
)

// Open opens the index in the file. If there is no file, Open creates an empty one for Migrate; its
// directory must exist.
func Open(ctx context.Context, path string) (*Index, error) {
	b, err := newBackend(path)
	if err != nil {
		return nil, err
	}
	// The index contains the names of all users' files. SQLite gives its other files the same mode.
	file, err := os.OpenFile(b.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		b.opened, err = file.Stat()
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return nil, fileFailure(b.path, err)
	}
	if err := b.open(ctx); err != nil {
		return nil, errors.Join(b.Wrap(err), b.Close())
	}
	return &Index{entindex.New(b), b}, nil
}

func newBackend(path string) (*backend, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	return &backend{path: absolute, turn: make(chan struct{}, 1), statements: map[string]*sql.Stmt{}}, nil
}

func (b *backend) open(ctx context.Context) (err error) {
	if b.writers, err = sql.Open("sqlite", b.dsn("immediate", writerOptions)); err != nil {
		return err
	}
	b.writers.SetMaxOpenConns(1)
	// Two processes that make the file a WAL database at the same time conflict.
	err = entindex.Retry(ctx, isBusy, func() (err error) {
		b.writer, err = b.writers.Conn(ctx)
		return err
	})
	if err != nil {
		return err
	}
	return b.openReaders(readerCache)
}

// openReaders opens the connections that only read. more is appended to their options.
func (b *backend) openReaders(more string) (err error) {
	if b.readers, err = sql.Open("sqlite", b.dsn("deferred", "_query_only=1&"+more)); err != nil {
		return err
	}
	b.readers.SetMaxOpenConns(readerConns)
	b.readers.SetMaxIdleConns(readerConns)
	b.client = entindex.NewClient(dialect.SQLite, b.readers)
	return nil
}

// ListenSnapshots implements entindex.Backend. It sends no notifications: the process that begins a
// snapshot here also makes it.
func (b *backend) ListenSnapshots(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}

func (b *backend) dsn(lock, more string) string {
	address := url.URL{Scheme: "file", Path: b.path}
	return fmt.Sprintf("%s?_txlock=%s&_busy_timeout=%d&_fk=1&_time_format=sqlite&_timezone=UTC&_synchronous=FULL&%s", address.String(), lock, busyMilliseconds, more)
}

// A transaction that writes is the only writer, so no rows are locked.
var dialectSQLite = entindex.Dialect{
	In: func(column string, n int) string {
		return column + " IN (SELECT value FROM json_each($" + strconv.Itoa(n) + "))"
	},
	List: func(values any) any {
		list, err := json.Marshal(values)
		if err != nil {
			panic(err) // numbers and UUIDs can always be encoded
		}
		return string(list)
	},
	Now: nowOf(clockShift()),
	Rows: func(n int, name string, columns ...string) string {
		list := make([]string, len(columns))
		for i, column := range columns {
			column, _, _ = strings.Cut(column, " ")
			list[i] = "json_extract(value, '$." + column + "') AS " + column
		}
		return "(SELECT " + strings.Join(list, ", ") + " FROM json_each($" + strconv.Itoa(n) + ")) AS " + name
	},
	Unhex:        func(column string) string { return "unhex(" + column + ")" },
	LoggedPolicy: "json_object('retention', json(retention), 'labels', json(labels), 'schedule', schedule, 'time_zone', time_zone, 'paused', json(CASE WHEN paused THEN 'true' ELSE 'false' END))",
	Paths:        pathQueries,
}

// A backend is entindex.Backend in a SQLite file: one connection that writes, guarded by turn, and
// several that read.
type backend struct {
	path    string
	opened  os.FileInfo // of the file, when it was opened for writing
	logging sync.Mutex
	log     os.FileInfo // of the log, when InPlace first saw it
	writers *sql.DB
	readers *sql.DB
	client  *ent.Client // over readers
	locks   []*os.File  // of an index that is open for reading only, see holdStill
	closing sync.Once

	rawOpening sync.Mutex
	raw        *os.File // the database as a file; nil until first used

	reads sync.Map // *sql.Stmt on readers, by query

	filtering sync.Mutex
	filtered  bool                   // the filter has been built
	filter    atomic.Pointer[filter] // of chunks; nil: any chunk may exist

	others others

	turn       chan struct{} // holds an element while the writer is in use
	writer     *sql.Conn
	statements map[string]*sql.Stmt // prepared on writer
	level      entindex.Durability  // synchronous setting of writer, as last set
	leveled    bool
}

func (b *backend) Client() *ent.Client { return b.client }

func (b *backend) Dialect() *entindex.Dialect { return &dialectSQLite }

// Clock implements entindex.Backend. SQLite uses the clock of the machine.
func (b *backend) Clock(context.Context) (time.Time, error) {
	return time.Now().Add(clockShift()).UTC(), nil
}

// nowOf returns the expression for the time of Clock, in microseconds.
func nowOf(shift time.Duration) string {
	now := "CAST(unixepoch('now', 'subsec') * 1000000 AS INTEGER)"
	if shift != 0 {
		now = fmt.Sprintf("(%s + (%d))", now, shift.Microseconds())
	}
	return now
}

func (b *backend) Close() error {
	var err error
	b.closing.Do(func() {
		defer func() { err = errors.Join(err, b.closeRaw()) }()
		if b.readers != nil {
			err = errors.Join(err, b.readers.Close())
		}
		if b.writer == nil {
			if b.writers != nil {
				err = errors.Join(err, b.writers.Close())
			}
			b.letGo()
			return
		}
		b.turn <- struct{}{} // never released
		for _, statement := range b.statements {
			err = errors.Join(err, statement.Close())
		}
		err = errors.Join(err, b.writer.Close(), b.writers.Close())
	})
	return b.Wrap(err)
}

// take waits for the writer, and give releases it.
func (b *backend) take(ctx context.Context) error {
	select {
	case b.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *backend) give() { <-b.turn }

// Update implements entindex.Backend.
func (b *backend) Update(ctx context.Context, d entindex.Durability, do func(context.Context, *entindex.Tx) error) error {
	if b.writer == nil {
		return errReadOnly
	}
	if err := b.take(ctx); err != nil {
		return err
	}
	defer b.give()
	return b.Wrap(entindex.Retry(ctx, isBusy, func() error { return b.update(ctx, d, do) }))
}

func (b *backend) update(ctx context.Context, d entindex.Durability, do func(context.Context, *entindex.Tx) error) error {
	if err := b.setSynchronous(ctx, d); err != nil {
		return err
	}
	// When its ctx is done, database/sql rolls a transaction back in a goroutine of its own, and
	// the next one would begin within it. The statements have ctx; the transaction ends here.
	tx, err := b.writer.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := do(ctx, &entindex.Tx{Client: entindex.NewClient(dialect.SQLite, tx), Hot: hotWriter{b}, Dialect: dialectSQLite}); err != nil {
		return err
	}
	return tx.Commit()
}

// setSynchronous sets whether the next commit waits for the disk. SQLite accepts the setting only
// outside of transactions.
func (b *backend) setSynchronous(ctx context.Context, d entindex.Durability) error {
	if b.leveled && b.level == d {
		return nil
	}
	level := "FULL"
	if d == entindex.Relaxed {
		level = "NORMAL"
	}
	b.leveled = false
	if _, err := b.writer.ExecContext(ctx, "PRAGMA synchronous="+level); err != nil {
		return err
	}
	b.leveled, b.level = true, d
	return nil
}

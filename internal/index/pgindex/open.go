package pgindex

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"entgo.io/ent/dialect"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/entindex"
)

// Options are settings that a DSN does not contain. The zero Options are valid.
type Options struct {
	// MaxConns bounds the connections to Postgres. 0 is pool_max_conns of the DSN, or 8.
	MaxConns int32
	// ApplicationName is shown in pg_stat_activity. "" is the name in the DSN, or bctl.
	ApplicationName string
}

// An Index is an index.Index in Postgres.
type Index struct {
	*entindex.Index
	backend *backend
}

// Open connects to Postgres. The error wraps backup.ErrInvalid if the DSN is wrong, and
// backup.ErrUnavailable if the server does not answer. It never contains the DSN.
func Open(ctx context.Context, dsn string, o Options) (*Index, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// pgx removes passwords from its message, but not from every DSN that it cannot parse.
		return nil, fmt.Errorf("the index's address must be a Postgres URL (postgres://user@host/database): %w", backup.ErrInvalid)
	}
	configure(config, dsn, o)
	return connect(ctx, config)
}

func configure(config *pgxpool.Config, dsn string, o Options) {
	switch {
	case o.MaxConns > 0:
		config.MaxConns = o.MaxConns
	case !strings.Contains(dsn, "pool_max_conns"):
		config.MaxConns = 8
	}
	parameters := config.ConnConfig.RuntimeParams
	// The planner overestimates the cost of claims, because it does not know how much work is open.
	// Compiling such a statement takes 50 ms, running it less than 1 ms.
	parameters["jit"] = "off"
	if o.ApplicationName != "" {
		parameters["application_name"] = o.ApplicationName
	} else if parameters["application_name"] == "" {
		parameters["application_name"] = "bctl"
	}
	// Readers of hot rows use the binary format, which only prepared statements guarantee.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	config.ConnConfig.DialFunc = newDialer(config.ConnConfig.ConnectTimeout).DialContext
	config.BeforeConnect = func(_ context.Context, next *pgx.ConnConfig) error { return readTLS(next, dsn) }
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, setTimeouts); err != nil {
			return err
		}
		return makeStages(ctx, conn)
	}
}

// readTLS reads the certificate files that the DSN names again for each new connection, because
// they may have been rotated.
func readTLS(next *pgx.ConnConfig, dsn string) error {
	if next.TLSConfig == nil {
		return nil
	}
	now, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return fmt.Errorf("TLS of the index's connection: %w: %w", errFiles, backup.ErrUnavailable)
	}
	next.TLSConfig, next.Fallbacks = now.ConnConfig.TLSConfig, now.ConnConfig.Fallbacks
	return nil
}

// errFiles replaces pgx's error, which may contain parts of the DSN.
var errFiles = errors.New("certificate, key or authorities cannot be read, or do not belong together")

func connect(ctx context.Context, config *pgxpool.Config) (*Index, error) {
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	b := &backend{
		pool:    pool,
		address: net.JoinHostPort(config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port))),
	}
	if err := b.Wrap(pool.Ping(ctx)); err != nil {
		pool.Close()
		return nil, err
	}
	b.db = stdlib.OpenDBFromPool(pool)
	b.client = entindex.NewClient(dialect.Postgres, b.db)
	return &Index{entindex.New(b), b}, nil
}

var postgres = entindex.Dialect{
	ForUpdate: " FOR UPDATE", ForShare: " FOR SHARE", SkipLocked: " FOR UPDATE SKIP LOCKED", Numbered: true,
	In:   func(column string, n int) string { return column + " = ANY ($" + strconv.Itoa(n) + ")" },
	List: func(values any) any { return values },

	PlanAnew: planAnew,

	// A dump that is restored makes tables, or fills empty ones, and so has other files. A copy of
	// the server's files is read at its start.
	Incarnation: `SELECT concat_ws(' ', pg_postmaster_start_time(), (SELECT oid FROM pg_database WHERE datname = current_database()),
		'snapshots'::regclass::oid, pg_relation_filenode('snapshots'), pg_relation_filenode('catalog_numbers'))`,
	Serialize: takeTurn, Lateral: true, TellSnapshot: "NOTIFY " + snapshotsChannel, Now: "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
	NextHold: "SELECT setval(pg_get_serial_sequence('holds', 'id'), (SELECT coalesce(max(id), 0) + 1 FROM holds), false)",
	Rows: func(n int, name string, columns ...string) string {
		return "json_to_recordset($" + strconv.Itoa(n) + "::json) AS " + name + " (" + strings.Join(columns, ", ") + ")"
	},
	Unhex: func(column string) string { return "decode(" + column + ", 'hex')" },
	// bctl_check_policy of migrations/grants.sql compares this text.
	LoggedPolicy: "jsonb_build_object('retention', retention, 'labels', labels, 'schedule', schedule, 'time_zone', time_zone, 'paused', paused)::text",
	Paths:        pathQueries,
}

// takeTurn makes claims of one kind wait for each other. A claim finds its rows at the beginning of
// a range of an index. With outdated statistics (a million new tasks), the planner would read and
// sort all open work instead.
const takeTurn = "SELECT pg_advisory_xact_lock(1650684012, $1::int), set_config('enable_seqscan', 'off', true)," +
	" set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)"

// A backend is entindex.Backend in Postgres.
type backend struct {
	pool    *pgxpool.Pool
	db      *sql.DB // over pool
	client  *ent.Client
	address string
	full    fullDisk
	locked  tableLock
	closing sync.Once
}

// Clock implements entindex.Backend.
func (b *backend) Clock(ctx context.Context) (now time.Time, err error) {
	err = b.pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	return now.UTC(), b.Wrap(err)
}

func (b *backend) Client() *ent.Client { return b.client }

func (b *backend) Dialect() *entindex.Dialect { return &postgres }

func (b *backend) Close() error {
	var err error
	b.closing.Do(func() {
		err = b.db.Close()
		b.pool.Close()
	})
	return err
}

// Update implements entindex.Backend. Every commit is as durable as the server's synchronous_commit
// makes it.
func (b *backend) Update(ctx context.Context, _ entindex.Durability, do func(context.Context, *entindex.Tx) error) error {
	err := entindex.Retry(ctx, lostConflict, func() error { return b.update(ctx, do) })
	b.full.note(err, time.Now())
	return b.Wrap(err)
}

// rollbackWithin is how long a rollback may take. It runs even if the caller's context has ended;
// otherwise the connection could not be used again.
const rollbackWithin = 5 * time.Second

// update runs one transaction. It is one of pgx, not of database/sql: the latter rolls back from
// another goroutine when ctx ends, and hotWriter may be using the connection then.
func (b *backend) update(ctx context.Context, do func(context.Context, *entindex.Tx) error) (err error) {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var raw *pgx.Conn
	if err := conn.Raw(func(c any) error { raw = c.(*stdlib.Conn).Conn(); return nil }); err != nil {
		return err
	}
	tx, err := raw.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWithin)
		defer cancel()
		// After Commit it does nothing; if it fails, it closes the connection. If database/sql has
		// closed the connection before, Raw does not call it.
		_ = conn.Raw(func(any) error { return tx.Rollback(ending) })
	}()
	err = do(ctx, &entindex.Tx{
		Client: entindex.NewClient(dialect.Postgres, conn), Hot: hotWriter{raw}, Dialect: postgres,
	})
	if err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// lostConflict reports serialization failures and deadlocks, after which Postgres has undone the
// transaction.
func lostConflict(err error) bool {
	return isCode(err, "40001") || isCode(err, "40P01")
}

// isCode reports whether err is an error of Postgres with this code.
func isCode(err error, code string) bool {
	failure, ok := errors.AsType[*pgconn.PgError](err)
	return ok && failure.Code == code
}

// Wrap implements entindex.Backend.
func (b *backend) Wrap(err error) error {
	var failure *pgconn.PgError
	switch {
	case err == nil || errors.Is(err, backup.ErrUnavailable):
		return err
	case errors.As(err, &failure) && failure.Code == "42501":
		return refusedError{fmt.Errorf("index at %s: the role of this database user does not allow this (docs/security.md lists what each role may do): %w", b.address, err)}
	case errors.As(err, &failure) && failure.Code == "3D000": // it was dropped, or never created
		return fmt.Errorf("index at %s: %w: %w", b.address, backup.ErrNoRepository, oneLine{err})
	case !unavailable(err):
		return err
	}
	return fmt.Errorf("index at %s: %w: %w", b.address, backup.IndexAway, oneLine{err})
}

// A refusedError is an index.ErrRefused.
type refusedError struct{ error }

func (e refusedError) Unwrap() error        { return e.error }
func (e refusedError) Is(target error) bool { return target == index.ErrRefused }

// oneLine has the text of an error on one line, without repetitions: pgconn lists each attempt to
// connect on a line of its own, and attempts to one address have the same text.
type oneLine struct{ error }

func (e oneLine) Error() string {
	var text string
	seen := map[string]bool{}
	for line := range strings.Lines(e.error.Error()) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || seen[line]:
			continue
		case text != "" && !strings.HasSuffix(text, ":"):
			text += ";"
		}
		seen[line] = true
		text = strings.TrimSpace(text + " " + line)
	}
	return text
}

func (e oneLine) Unwrap() error { return e.error }

// unavailable reports errors of the connection, and of a server that is starting, stopping, out of
// resources or read-only.
func unavailable(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var failure *pgconn.PgError
	if errors.As(err, &failure) {
		switch failure.Code[:min(2, len(failure.Code))] {
		case "08", "53", "57": // connection; resources; operator intervention (shutdown, starting up)
			return failure.Code != "57014" // a statement that was cancelled
		}
		// A read-only server is a standby. Or this process hung in a transaction until the server
		// ended it.
		return failure.Code == "25006" || failure.Code == "25P03"
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err) ||
		errors.Is(err, net.ErrClosed) || strings.Contains(err.Error(), "unexpected EOF") || strings.Contains(err.Error(), "conn closed")
}

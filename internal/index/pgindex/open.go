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
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/entindex"
)

// Options are what a DSN does not say. The zero Options are good.
type Options struct {
	// MaxConns bounds the connections to Postgres; 0: 8, or what pool_max_conns in the DSN says.
	MaxConns int32
	// ApplicationName is what pg_stat_activity shows; "": bctl, or what the DSN says.
	ApplicationName string
}

// An Index is an index.Index in Postgres.
type Index struct {
	*entindex.Index
	backend *backend
}

// Open connects to Postgres. The error wraps backup.ErrInvalid where the DSN
// is wrong, and backup.ErrUnavailable where nobody answers; it never shows the DSN.
func Open(ctx context.Context, dsn string, o Options) (*Index, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// pgx takes passwords out of its message, but not out of every DSN that it cannot parse.
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
	// The costs of claims are overestimated, for how much is open is not known to the planner: compiling
	// such a statement takes 50 ms, running it less than one.
	parameters["jit"] = "off"
	if o.ApplicationName != "" {
		parameters["application_name"] = o.ApplicationName
	} else if parameters["application_name"] == "" {
		parameters["application_name"] = "bctl"
	}
	// Readers of hot rows take the binary form, which only prepared statements are sure to give.
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

// readTLS takes the certificates that the DSN names from their files again, for each new
// connection: they may have been rotated since the last.
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

// errFiles stands for pgx's error, which may show parts of the DSN.
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

	Serialize: takeTurn, Lateral: true, TellBegun: "NOTIFY " + begunChannel, Now: "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
	Rows: func(n int, name string, columns ...string) string {
		return "json_to_recordset($" + strconv.Itoa(n) + "::json) AS " + name + " (" + strings.Join(columns, ", ") + ")"
	},
	Unhex: func(column string) string { return "decode(" + column + ", 'hex')" },
}

// takeTurn makes claims of one kind wait for each other. What they look for is at the beginning of an index's
// range; with statistics that are behind (a million new tasks) the planner would rather read and sort all open work.
const takeTurn = "SELECT pg_advisory_xact_lock(1650684012, $1::int), set_config('enable_seqscan', 'off', true)," +
	" set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true)"

// A backend is entindex.Backend in Postgres.
type backend struct {
	pool    *pgxpool.Pool
	db      *sql.DB // over pool
	client  *ent.Client
	address string
	closing sync.Once
}

// Clock implements entindex.Backend.
func (b *backend) Clock(ctx context.Context) (now time.Time, err error) {
	err = b.pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	return now.UTC(), b.Wrap(err)
}

func (b *backend) Client() *ent.Client { return b.client }

func (b *backend) Close() error {
	var err error
	b.closing.Do(func() {
		err = b.db.Close()
		b.pool.Close()
	})
	return err
}

// Update implements entindex.Backend. Every commit is durable, as far as the
// server's synchronous_commit goes.
func (b *backend) Update(ctx context.Context, _ entindex.Durability, do func(context.Context, *entindex.Tx) error) error {
	return b.Wrap(entindex.Retry(ctx, lostConflict, func() error { return b.update(ctx, do) }))
}

func (b *backend) update(ctx context.Context, do func(context.Context, *entindex.Tx) error) (err error) {
	conn, err := b.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	// COPY needs pgx's own connection. It is in the transaction that tx is: they take turns.
	var raw *pgx.Conn
	if err := conn.Raw(func(c any) error { raw = c.(*stdlib.Conn).Conn(); return nil }); err != nil {
		return err
	}
	err = do(ctx, &entindex.Tx{
		Client: entindex.NewClient(dialect.Postgres, tx), Hot: hotWriter{raw}, Dialect: postgres,
	})
	if err != nil {
		return err
	}
	return tx.Commit()
}

// lostConflict reports serialization failures and deadlocks, after which
// Postgres has undone the transaction.
func lostConflict(err error) bool {
	var failure *pgconn.PgError
	return errors.As(err, &failure) && (failure.Code == "40001" || failure.Code == "40P01")
}

// Wrap implements entindex.Backend.
func (b *backend) Wrap(err error) error {
	if err == nil || errors.Is(err, backup.ErrUnavailable) || !unavailable(err) {
		return err
	}
	return fmt.Errorf("index at %s: %w: %w", b.address, backup.IndexAway, err)
}

// unavailable reports errors of the connection, and of a server that starts,
// stops, has no room, or cannot write.
func unavailable(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var failure *pgconn.PgError
	if errors.As(err, &failure) {
		switch failure.Code[:min(2, len(failure.Code))] {
		case "08", "53", "57": // connection; resources; operator (shutdown, starting up)
			return failure.Code != "57014" // a statement that was cancelled
		}
		// Read-only: a standby. Or we hung in the middle of a transaction for so long that the server has ended it.
		return failure.Code == "25006" || failure.Code == "25P03"
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err) ||
		errors.Is(err, net.ErrClosed) || strings.Contains(err.Error(), "unexpected EOF") || strings.Contains(err.Error(), "conn closed")
}

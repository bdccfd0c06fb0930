package pgindex

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/bctl/bctl/internal/backup"
)

// MinServer is the oldest major version of Postgres that the index works with.
const MinServer = 14

// An Inspection is a connection to Postgres for diagnosis. It is opened like those of an Index, and
// is not for concurrent use.
type Inspection struct {
	conn   *pgx.Conn
	config *pgxpool.Config
	b      *backend // for its error wrapping
}

// Inspect opens one connection to Postgres. Its errors are those of Open.
func Inspect(ctx context.Context, dsn string, o Options) (*Inspection, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("the index's address must be a Postgres URL (postgres://user@host/database): %w", backup.ErrInvalid)
	}
	configure(config, dsn, o)
	i := &Inspection{config: config, b: &backend{address: net.JoinHostPort(config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port)))}}
	i.conn, err = i.connect(ctx)
	return i, err
}

func (i *Inspection) connect(ctx context.Context) (*pgx.Conn, error) {
	config := i.config.ConnConfig.Copy()
	if before := i.config.BeforeConnect; before != nil {
		if err := before(ctx, config); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	return conn, i.b.Wrap(err)
}

// Close disconnects. Its error would add nothing.
func (i *Inspection) Close(ctx context.Context) { _ = i.conn.Close(ctx) }

// ServerFacts are what Postgres reports about itself and this connection.
type ServerFacts struct {
	Address   string
	Version   int    // such as 150004
	Text      string // such as 15.4 (Debian …)
	User      string
	Database  string
	Super     bool                 // the user is a superuser
	Standby   bool                 // it accepts no writes
	TLS       *tls.ConnectionState // nil: none
	Local     bool                 // the server is on this machine
	Used      int                  // connections, of all clients
	SizeBytes int64                // of the database
}

// Facts queries the server for its facts.
func (i *Inspection) Facts(ctx context.Context) (ServerFacts, error) {
	f := ServerFacts{Address: i.b.address}
	err := i.conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_user, current_database(),
		current_setting('is_superuser') = 'on', pg_is_in_recovery(), (SELECT sum(numbackends) FROM pg_stat_database)::int, pg_database_size(current_database())`).
		Scan(&f.Version, &f.Text, &f.User, &f.Database, &f.Super, &f.Standby, &f.Used, &f.SizeBytes)
	raw := i.conn.PgConn().Conn()
	if secure, ok := raw.(*tls.Conn); ok {
		state := secure.ConnectionState()
		f.TLS = &state
	}
	switch at := raw.RemoteAddr().(type) {
	case *net.TCPAddr:
		f.Local = at.IP.IsLoopback()
	case *net.UnixAddr:
		f.Local = true
	}
	return f, i.b.Wrap(err)
}

// Prepare does what each connection of an Index does first: it sets time limits and creates temp
// tables.
func (i *Inspection) Prepare(ctx context.Context) error {
	return i.b.Wrap(i.config.AfterConnect(ctx, i.conn))
}

// Settings returns settings of the server by name, without those that this version does not have.
// The values are those of the server, the database or the role, not those that the session has set
// for itself.
func (i *Inspection) Settings(ctx context.Context, names []string) (map[string]string, error) {
	rows, err := i.conn.Query(ctx, `SELECT name, CASE source WHEN 'session' THEN reset_val ELSE setting END FROM pg_settings WHERE name = ANY ($1)`, names)
	if err != nil {
		return nil, i.b.Wrap(err)
	}
	found := map[string]string{}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error { found[name] = value; return nil })
	return found, i.b.Wrap(err)
}

// RoundTrip returns the time of an empty query: the median of n.
func (i *Inspection) RoundTrip(ctx context.Context, n int) (time.Duration, error) {
	times := make([]time.Duration, 0, n)
	for range n {
		begin := time.Now()
		if err := i.conn.Ping(ctx); err != nil {
			return 0, i.b.Wrap(err)
		}
		times = append(times, time.Since(begin))
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// Clock returns the time of the server's clock, and when the query was sent and its result
// received.
func (i *Inspection) Clock(ctx context.Context) (clock, sent, received time.Time, err error) {
	const now = "SELECT clock_timestamp()"
	if err = i.conn.QueryRow(ctx, now).Scan(&clock); err != nil { // the first execution also prepares the statement
		return clock, sent, received, i.b.Wrap(err)
	}
	sent = time.Now()
	err = i.conn.QueryRow(ctx, now).Scan(&clock)
	return clock, sent, time.Now(), i.b.Wrap(err)
}

// Pooling is the kind of pooler between this client and Postgres.
type Pooling string

// The kinds of pooling.
const (
	Direct      Pooling = "direct"
	Session     Pooling = "session"     // a pooler whose clients keep their server connection
	Transaction Pooling = "transaction" // one that gives the connection to other clients between transactions: temp tables are lost
)

// Pooling determines the kind of pooling by opening a second connection while this one is idle. A
// pooler that gives both the same server connection takes it away between transactions.
func (i *Inspection) Pooling(ctx context.Context) (Pooling, error) {
	other, err := i.connect(ctx)
	if err != nil {
		return "", err
	}
	defer other.Close(ctx)
	var ours, others uint32
	const backendPID = "SELECT pg_backend_pid()"
	if err := i.conn.QueryRow(ctx, backendPID, pgx.QueryExecModeSimpleProtocol).Scan(&ours); err != nil {
		return "", i.b.Wrap(err)
	}
	if err := other.QueryRow(ctx, backendPID, pgx.QueryExecModeSimpleProtocol).Scan(&others); err != nil {
		return "", i.b.Wrap(err)
	}
	switch {
	case ours == others:
		return Transaction, nil
	case ours != i.conn.PgConn().PID():
		return Session, nil // a pooler has process numbers of its own
	}
	return Direct, nil
}

// Refused reports whether the server has refused the user: wrong password or certificate, no such
// role or database, or a missing entry in pg_hba.conf. reason is the server's message.
func Refused(err error) (reason string, refused bool) {
	failure, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return "", false
	}
	return failure.Message, strings.HasPrefix(failure.Code, "28") || failure.Code == "3D000"
}

// Forbidden reports whether the user lacks a privilege, and returns the server's message.
func Forbidden(err error) (reason string, forbidden bool) {
	failure, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return "", false
	}
	return failure.Message, failure.Code == "42501"
}

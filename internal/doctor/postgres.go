package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/pgindex"
	"github.com/bctl/bctl/internal/index/sqliteindex"
)

// A postgresDoctor checks Postgres.
type postgresDoctor struct {
	p     *Parts
	i     *pgindex.Inspection
	facts pgindex.ServerFacts
}

func postgresGroup(p *Parts) Group {
	d := &postgresDoctor{p: p}
	g := Group{Name: "index", Close: func() {
		if d.i != nil {
			d.i.Close(context.Background())
		}
	}}
	add := func(id string, needs string, run func(context.Context) Result) {
		c := Check{ID: id, Run: run}
		if needs != "" {
			c.Needs = []string{needs}
		}
		g.Checks = append(g.Checks, c)
	}
	const server = "index.server"
	add(server, "", d.server)
	add("index.tls", server, func(context.Context) Result { return secured(d.facts.TLS, d.facts.Local, time.Now()) })
	add("index.user", server, d.user)
	add("index.latency", server, d.latency)
	add("index.clock", server, d.clock)
	add("index.pooler", server, d.pooler)
	add("index.durability", server, d.durability)
	add("index.connections", server, d.connections)
	add("index.memory", server, d.memory)
	add("index.timeouts", server, d.timeouts)
	add("index.session", server, d.session)
	add("index.schema", "index.session", d.schema)
	add("index.privileges", "index.schema", d.privileges)
	return g
}

func (d *postgresDoctor) server(ctx context.Context) Result {
	dsn, options, err := d.p.Postgres()
	if err != nil {
		return fail("correct the settings of index", "%s", oneLine(err))
	}
	begin := time.Now()
	i, err := pgindex.Inspect(ctx, dsn, options)
	if err != nil {
		return postgresUnreachable(err)
	}
	took := time.Since(begin)
	d.i = i
	if d.facts, err = i.Facts(ctx); err != nil {
		return fail("look at the server's log", "%s", oneLine(err))
	}
	f := &d.facts
	switch {
	case f.Version/10000 < pgindex.MinServer:
		return fail("update Postgres", "%s is version %s, and bctl needs %d", f.Address, f.Text, pgindex.MinServer)
	case f.Standby:
		return fail("set index.url to the primary", "%s is a standby, which takes no writes", f.Address)
	}
	return ok("%s is version %s, connected in %s; database %s has %s", f.Address, f.Text, duration(took), f.Database, size(uint64(max(f.SizeBytes, 0))))
}

func postgresUnreachable(err error) Result {
	r := unreachable(err, "Postgres", "index.ca_file (or sslrootcert in index.url)")
	if reason, refused := pgindex.Refused(err); refused {
		r.Advice = "correct the user and the password or certificate in the settings of index"
		if strings.Contains(reason, "pg_hba.conf") {
			r.Advice = "add this client to the server's pg_hba.conf, or connect as it says (with TLS, as another user)"
		} else if strings.Contains(reason, "database") {
			r.Advice = "make the database, or correct index.url"
		}
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		r.Advice = "let Postgres use TLS (ssl = on), or set sslmode"
	}
	return r
}

func (d *postgresDoctor) user(context.Context) Result {
	if d.facts.Super {
		return warn("make roles of their own for the services (bctl deploy init writes roles.sql)", "%s is a superuser, who may read and write all of the server", d.facts.User)
	}
	return ok("%s", d.facts.User)
}

// slowIndex is the limit for transactions that take some round trips each, and hold locks
// meanwhile.
const slowIndex = 20 * time.Millisecond

func (d *postgresDoctor) latency(ctx context.Context) Result {
	took, err := d.i.RoundTrip(ctx, 15)
	if err != nil {
		return fail("look at the network", "%s", oneLine(err))
	}
	return roundTrip(took, slowIndex)
}

func (d *postgresDoctor) clock(ctx context.Context) Result {
	clock, sent, received, err := d.i.Clock(ctx)
	if err != nil {
		return fail("look at the server's log", "%s", oneLine(err))
	}
	return skew(clock, sent, received, time.Microsecond)
}

func (d *postgresDoctor) pooler(ctx context.Context) Result {
	const advice = "connect to Postgres itself, or to a pool in session mode: temporary tables and settings belong to a session"
	pooling, err := d.i.Pooling(ctx)
	switch {
	case err != nil:
		return warn("see whether there are connections left", "a second connection fails: %s", oneLine(err))
	case pooling == pgindex.Transaction:
		return fail(advice, "a pooler gives connections to others between transactions")
	case pooling == pgindex.Session:
		return ok("a pooler is in between, in session mode")
	}
	return ok("no pooler is in between")
}

// settings returns settings of the server.
func (d *postgresDoctor) settings(ctx context.Context, names ...string) (map[string]string, Result) {
	found, err := d.i.Settings(ctx, names)
	if err != nil {
		return nil, fail("look at the server's log", "%s", oneLine(err))
	}
	return found, Result{Status: OK}
}

// durability: an index that loses confirmed transactions never names packs that do not exist, but
// forgets snapshots and packs that do. An index with torn pages is lost.
func (d *postgresDoctor) durability(ctx context.Context) Result {
	s, r := d.settings(ctx, "fsync", "full_page_writes", "synchronous_commit", "data_checksums", "wal_level", "archive_mode")
	if r.Status != OK {
		return r
	}
	var v verdict
	if s["fsync"] == "off" {
		v.add(fail("set fsync = on", "fsync is off: a crash of the machine destroys the index"))
	}
	if s["full_page_writes"] == "off" {
		v.add(fail("set full_page_writes = on, unless the file system cannot tear pages (ZFS)", "full_page_writes is off"))
	}
	if s["synchronous_commit"] == "off" {
		v.add(fail("set synchronous_commit = on", "synchronous_commit is off: what was confirmed is lost in a crash"))
	}
	if s["data_checksums"] == "off" {
		v.add(warn("pg_checksums --enable, while the server is stopped", "damage on disk is not noticed (data_checksums is off)"))
	}
	if s["archive_mode"] == "off" {
		v.add(warn("archive the WAL, or dump the index every day: docs/operations.md", "WAL is not archived: without a backup of the index nothing can be restored"))
	}
	v.ok("fsync %s, synchronous_commit %s, wal_level %s", s["fsync"], s["synchronous_commit"], s["wal_level"])
	return v.result()
}

// number returns a numeric setting; -1 if it is missing.
func number(settings map[string]string, name string) int64 {
	n, err := strconv.ParseInt(settings[name], 10, 64)
	if err != nil {
		return -1
	}
	return n
}

func (d *postgresDoctor) connections(ctx context.Context) Result {
	s, r := d.settings(ctx, "max_connections", "superuser_reserved_connections", "reserved_connections")
	if r.Status != OK {
		return r
	}
	own := int64(d.p.Config.Index.MaxConnections)
	if own == 0 {
		own = 8
	}
	all := number(s, "max_connections") - max(0, number(s, "superuser_reserved_connections")) - max(0, number(s, "reserved_connections"))
	left := all - int64(d.facts.Used)
	text := fmt.Sprintf("%d of %d connections are in use; a process of bctl takes up to %d", d.facts.Used, all, own)
	const advice = "raise max_connections (each walker, reader and committer takes index.max_connections), or lower that"
	switch {
	case left < own:
		return fail(advice, "%s", text)
	case all < 5*own:
		return warn(advice, "%s: room for %s only", text, plural(int(all/own), "process"))
	}
	return ok("%s: room for %d", text, all/own)
}

// leastBuffers is the setting below which shared_buffers causes a warning. It is more than the
// default of Postgres. An index that is larger than this benefits from about ten times as much.
const leastBuffers = 256 << 20

func (d *postgresDoctor) memory(ctx context.Context) Result {
	s, r := d.settings(ctx, "shared_buffers", "maintenance_work_mem", "work_mem", "max_wal_size", "checkpoint_timeout", "autovacuum")
	if r.Status != OK {
		return r
	}
	var v verdict
	buffers := uint64(max(0, number(s, "shared_buffers"))) * 8192
	if buffers < leastBuffers {
		v.add(warn("set shared_buffers to a quarter of the machine's memory", "shared_buffers is %s", size(buffers)))
	} else {
		v.ok("shared_buffers %s", size(buffers))
	}
	if wal := uint64(max(0, number(s, "max_wal_size"))) << 20; wal < 1<<30 {
		v.add(warn("set max_wal_size to 4GB or more: a first backup writes much", "max_wal_size is %s", size(wal)))
	} else {
		v.ok("max_wal_size %s", size(wal))
	}
	if s["autovacuum"] == "off" {
		v.add(fail("set autovacuum = on: tables of work have many rows that come and go", "autovacuum is off"))
	}
	return v.result()
}

// timeouts checks for timeouts that would interrupt bctl. It ignores those that a session sets for
// itself.
func (d *postgresDoctor) timeouts(ctx context.Context) Result {
	s, r := d.settings(ctx, "statement_timeout", "lock_timeout", "transaction_timeout", "idle_session_timeout")
	if r.Status != OK {
		return r
	}
	var v verdict
	for name, least := range map[string]time.Duration{"statement_timeout": 5 * time.Minute, "transaction_timeout": 5 * time.Minute, "lock_timeout": time.Minute} {
		if limit := time.Duration(number(s, name)) * time.Millisecond; limit > 0 && limit < least {
			v.add(warn(fmt.Sprintf("set %s to 0 for bctl's roles (ALTER ROLE … SET)", name), "%s is %s: a long transaction would be ended", name, duration(limit)))
		}
	}
	if limit := time.Duration(number(s, "idle_session_timeout")) * time.Millisecond; limit > 0 {
		v.ok("idle_session_timeout is %s: connections are made again", duration(limit))
	}
	v.ok("no other time limits in the way")
	slices.SortFunc(v.bad, func(a, b Result) int { return strings.Compare(a.Seen, b.Seen) })
	return v.result()
}

// session starts a session as every connection of a service does.
func (d *postgresDoctor) session(ctx context.Context) Result {
	err := d.i.Prepare(ctx)
	if reason, forbidden := pgindex.Forbidden(err); forbidden {
		return fail("GRANT TEMPORARY ON DATABASE "+d.facts.Database+" to this role (bctl deploy refresh writes roles.sql)", "%s", reason)
	}
	if err != nil {
		return fail("look at the server's log", "%s", oneLine(err))
	}
	return ok("time limits can be set, and temporary tables made")
}

// schema checks the schema as a service does at its start.
func (d *postgresDoctor) schema(ctx context.Context) Result { return schema(ctx, d.p) }

func schema(ctx context.Context, p *Parts) Result {
	i, err := p.OpenIndex(ctx)
	if err != nil {
		return indexFailure(err)
	}
	defer i.Close()
	if err := i.CheckSchema(ctx); err != nil {
		advice := "bctl migrate"
		if _, local := p.Config.IndexPath(); local && errors.Is(err, backup.ErrNoRepository) && p.indexIsLost(ctx) {
			return fail(rebuildAdvice, "it is empty: the index of the backups in the store is lost")
		}
		if reason, forbidden := pgindex.Forbidden(err); forbidden {
			return fail("let bctl init or bctl migrate give the privileges again, as the admin", "%s", reason)
		} else if !errors.Is(err, index.ErrSchema) {
			advice = "look at the server's log"
		}
		return fail(advice, "%s", oneLine(err))
	}
	r, err := i.Repository(ctx)
	if errors.Is(err, backup.ErrNoRepository) {
		return fail("bctl init", "the schema is there, but no repository in it")
	}
	if reason, forbidden := pgindex.Forbidden(err); forbidden {
		return fail("let bctl init or bctl migrate give the privileges again, as the admin", "%s", reason)
	}
	if err != nil {
		return fail("look at the server's log", "%s", oneLine(err))
	}
	return ok("repository %v, with a schema that this bctl can work with", r.ID)
}

// indexFailure returns advice for an index that cannot be opened or read.
func indexFailure(err error) Result {
	switch {
	case errors.Is(err, sqliteindex.ErrDamaged):
		return fail("bctl index rebuild", "%s", oneLine(err))
	case errors.Is(err, backup.ErrCorrupt):
		return fail("restore the index from its last good copy; on one machine, move the file away and run bctl index rebuild", "%s", oneLine(err))
	case errors.Is(err, backup.ErrUnavailable), errors.Is(err, fs.ErrPermission):
		return fail("find out why it cannot be read", "%s", oneLine(err))
	}
	return fail("make the repository (bctl init), or correct the settings", "%s", oneLine(err))
}

// privileges compares the user's privileges with those that the role needs.
func (d *postgresDoctor) privileges(ctx context.Context) Result {
	as := []string{string(d.p.Role)}
	if d.p.Role == "" {
		as = nil
		for _, role := range roles {
			as = append(as, string(role))
		}
	}
	has, err := d.i.Privileges(ctx, as)
	if err != nil {
		return fail("look at the server's log", "%s", oneLine(err))
	}
	var v verdict
	if len(has.Missing) > 0 {
		v.add(fail("let bctl migrate give the privileges again, as the admin; or connect as the role that is meant", "%s lacks %s", d.facts.User, some(has.Missing)))
	}
	if len(has.Extra) > 0 && d.p.Role != "" {
		v.add(warn("connect as the role of "+d.p.whom()+" (bctl deploy init writes roles.sql)", "%s may do more than %s needs: %s", d.facts.User, d.p.whom(), some(has.Extra)))
	}
	v.ok("%s looked at", plural(has.Tables, "table"))
	return v.result()
}

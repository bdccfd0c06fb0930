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
	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/repo"
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
	const server = "index.server"
	g.add(server, d.server)
	g.add("index.tls", func(context.Context) Finding { return secured(d.facts.TLS, d.facts.Local, time.Now()) }, server)
	g.add("index.user", d.user, server)
	g.add("index.latency", d.latency, server)
	g.add("index.clock", d.clock, server)
	g.add("index.pooler", d.pooler, server)
	g.add("index.durability", d.withSettings(durability, "fsync", "full_page_writes", "synchronous_commit", "data_checksums", "wal_level", "archive_mode"), server)
	g.add("index.connections", d.withSettings(d.connections, "max_connections", "superuser_reserved_connections", "reserved_connections"), server)
	g.add("index.memory", d.withSettings(serverMemory, "shared_buffers", "maintenance_work_mem", "work_mem", "max_wal_size", "checkpoint_timeout", "autovacuum"), server)
	g.add("index.timeouts", d.withSettings(timeouts, "statement_timeout", "lock_timeout", "transaction_timeout", "idle_session_timeout"), server)
	g.add("index.session", d.session, server)
	g.add("index.schema", func(ctx context.Context) Finding { return schema(ctx, p) }, "index.session")
	g.add("index.alarms", func(ctx context.Context) Finding { return alarms(ctx, p) }, "index.schema")
	g.add("index.brake", func(ctx context.Context) Finding { return brake(ctx, p) }, "index.schema")
	g.add("index.purges", func(ctx context.Context) Finding { return purges(ctx, p) }, "index.schema")
	g.add("index.pruner", func(ctx context.Context) Finding { return pruner(ctx, p) }, "index.schema")
	g.add("index.scrub", func(ctx context.Context) Finding { return scrubbed(ctx, p) }, "index.schema")
	g.add("index.restores", func(ctx context.Context) Finding { return restores(ctx, p) }, "index.schema")
	g.add("index.privileges", d.privileges, "index.schema")
	if p.is(installation.Pruner, installation.Committer, installation.Operator) { // others do not write
		g.add("index.current", d.current, "index.privileges").Timeout = readAll
	}
	return g
}

func (d *postgresDoctor) server(ctx context.Context) Finding {
	dsn, options, err := d.p.Postgres()
	if err != nil {
		return failWith("correct the settings of index", err)
	}
	begin := time.Now()
	i, err := pgindex.Inspect(ctx, dsn, options)
	if err != nil {
		return postgresUnreachable(err)
	}
	took := time.Since(begin)
	d.i = i
	if d.facts, err = i.Facts(ctx); err != nil {
		return failWith("read the server's log", err)
	}
	f := &d.facts
	switch {
	case f.Version/10000 < pgindex.MinServer:
		return fail("update Postgres", "%s is version %s, and bctl needs %d", f.Address, f.Text, pgindex.MinServer)
	case f.Standby:
		return fail("set index.url to the primary", "%s is a standby, which accepts no writes", f.Address)
	}
	return ok("%s is version %s, connected in %s; database %s has %s", f.Address, f.Text, duration(took), f.Database, size(f.SizeBytes))
}

func postgresUnreachable(err error) Finding {
	r := unreachable(err, "Postgres", "index.ca_file (or sslrootcert in index.url)")
	if reason, refused := pgindex.Refused(err); refused {
		r.Advice = "correct the user and the password or certificate in the settings of index"
		if strings.Contains(reason, "pg_hba.conf") {
			r.Advice = "add this client to the server's pg_hba.conf, or connect as that file requires (with TLS, as another user)"
		} else if strings.Contains(reason, "database") {
			r.Advice = "create the database, or correct index.url"
		}
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		r.Advice = "enable TLS in Postgres (ssl = on), or set sslmode"
	}
	return r
}

func (d *postgresDoctor) user(context.Context) Finding {
	if d.facts.Super {
		return warn("create separate roles for the services (bctl deploy init writes roles.sql)", "%s is a superuser, which can read and write everything on the server", d.facts.User)
	}
	return ok("%s", d.facts.User)
}

// slowIndex is the limit for transactions that take some round trips each, and hold locks
// meanwhile.
const slowIndex = 20 * time.Millisecond

func (d *postgresDoctor) latency(ctx context.Context) Finding {
	took, err := d.i.RoundTrip(ctx, 15)
	if err != nil {
		return failWith("check the network", err)
	}
	return roundTrip(took, slowIndex)
}

func (d *postgresDoctor) clock(ctx context.Context) Finding {
	clock, sent, received, err := d.i.Clock(ctx)
	if err != nil {
		return failWith("read the server's log", err)
	}
	return skew(clock, sent, received, time.Microsecond)
}

func (d *postgresDoctor) pooler(ctx context.Context) Finding {
	const advice = "connect to Postgres itself, or to a pool in session mode: temporary tables and settings belong to a session"
	pooling, err := d.i.Pooling(ctx)
	switch {
	case err != nil:
		return warn("check whether max_connections is reached", "a second connection fails: %s", oneLine(err))
	case pooling == pgindex.Transaction:
		return fail(advice, "a pooler gives the connection to other clients between transactions")
	case pooling == pgindex.Session:
		return ok("connected through a pooler, in session mode")
	}
	return ok("connected without a pooler")
}

// withSettings returns a check of settings of the server.
func (d *postgresDoctor) withSettings(check func(map[string]string) Finding, names ...string) func(context.Context) Finding {
	return func(ctx context.Context) Finding {
		found, err := d.i.Settings(ctx, names)
		if err != nil {
			return failWith("read the server's log", err)
		}
		return check(found)
	}
}

// durability checks the settings that protect transactions. An index that loses confirmed
// transactions does not know some snapshots and packs that exist. An index with torn pages is lost.
func durability(s map[string]string) Finding {
	var v verdict
	ifOff := func(name string, f Finding) {
		if s[name] == "off" {
			v.add(f)
		}
	}
	ifOff("fsync", fail("set fsync = on", "fsync is off: a crash of the machine destroys the index"))
	ifOff("full_page_writes", fail("set full_page_writes = on, unless the file system cannot tear pages (ZFS)", "full_page_writes is off"))
	ifOff("synchronous_commit", fail("set synchronous_commit = on", "synchronous_commit is off: a crash loses confirmed changes"))
	ifOff("data_checksums", warn("pg_checksums --enable, while the server is stopped", "damage on disk is not detected (data_checksums is off)"))
	ifOff("archive_mode", warn("archive the WAL, or dump the index every day: docs/operations.md", "the WAL is not archived: if the server is lost, so are the newest changes of the index, and it must be rebuilt from the store"))
	v.ok("fsync %s, synchronous_commit %s, wal_level %s", s["fsync"], s["synchronous_commit"], s["wal_level"])
	return v.finding()
}

// number returns a numeric setting; -1 if it is missing.
func number(settings map[string]string, name string) int64 {
	n, err := strconv.ParseInt(settings[name], 10, 64)
	if err != nil {
		return -1
	}
	return n
}

func (d *postgresDoctor) connections(s map[string]string) Finding {
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

func serverMemory(s map[string]string) Finding {
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
	return v.finding()
}

// timeouts checks for timeouts that would interrupt bctl. It ignores those that a session sets for
// itself.
func timeouts(s map[string]string) Finding {
	var v verdict
	for name, least := range map[string]time.Duration{"statement_timeout": 5 * time.Minute, "transaction_timeout": 5 * time.Minute, "lock_timeout": time.Minute} {
		if limit := time.Duration(number(s, name)) * time.Millisecond; limit > 0 && limit < least {
			v.add(warn(fmt.Sprintf("set %s to 0 for bctl's roles (ALTER ROLE … SET)", name), "%s is %s: it would end a long transaction", name, duration(limit)))
		}
	}
	if limit := time.Duration(number(s, "idle_session_timeout")) * time.Millisecond; limit > 0 {
		v.ok("idle_session_timeout is %s: bctl reconnects", duration(limit))
	}
	v.ok("no other time limits that affect bctl")
	slices.SortFunc(v.bad, func(a, b Finding) int { return strings.Compare(a.Seen, b.Seen) })
	return v.finding()
}

// session starts a session as every connection of a service does.
func (d *postgresDoctor) session(ctx context.Context) Finding {
	err := d.i.Prepare(ctx)
	if reason, forbidden := pgindex.Forbidden(err); forbidden {
		return fail("GRANT TEMPORARY ON DATABASE "+d.facts.Database+" to this role (bctl deploy refresh writes roles.sql)", "%s", reason)
	}
	if err != nil {
		return failWith("read the server's log", err)
	}
	return ok("time limits can be set, and temporary tables can be created")
}

// schema checks the schema as a service does at its start.
func schema(ctx context.Context, p *Parts) Finding {
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
			return fail("run bctl init or bctl migrate as the admin, which grants the privileges again", "%s", reason)
		} else if !errors.Is(err, index.ErrSchema) {
			advice = "read the server's log"
		}
		return failWith(advice, err)
	}
	r, err := i.Repository(ctx)
	if errors.Is(err, backup.ErrNoRepository) {
		return fail("bctl init", "the schema exists, but contains no repository")
	}
	if reason, forbidden := pgindex.Forbidden(err); forbidden {
		return fail("run bctl init or bctl migrate as the admin, which grants the privileges again", "%s", reason)
	}
	if err != nil {
		return failWith("read the server's log", err)
	}
	return ok("repository %v, with a schema that this bctl supports", r.ID)
}

// indexFailure returns advice for an index that cannot be opened or read.
func indexFailure(err error) Finding {
	switch {
	case errors.Is(err, sqliteindex.ErrDamaged):
		return failWith("bctl index rebuild", err)
	case errors.Is(err, backup.ErrCorrupt):
		return failWith("restore the index from its last good copy; on one machine, move the file away and run bctl index rebuild", err)
	case errors.Is(err, backup.ErrUnavailable), errors.Is(err, fs.ErrPermission):
		return failWith("find out why it cannot be read", err)
	}
	return failWith("create the repository (bctl init), or correct the settings", err)
}

// privileges compares the user's privileges with those that the role needs.
func (d *postgresDoctor) privileges(ctx context.Context) Finding {
	as := []string{string(d.p.Role)}
	if d.p.Role == "" {
		as = nil
		for _, role := range roles {
			as = append(as, string(role))
		}
	}
	has, err := d.i.Privileges(ctx, as)
	if err != nil {
		return failWith("read the server's log", err)
	}
	var v verdict
	if len(has.Missing) > 0 {
		v.add(fail("run bctl migrate as the admin, which grants the privileges again; or connect as the intended role", "%s lacks %s", d.facts.User, some(has.Missing)))
	}
	if len(has.Extra) > 0 && d.p.Role != "" {
		v.add(warn("connect as the role of "+d.p.whom()+" (bctl deploy init writes roles.sql)", "%s has more privileges than %s needs: %s", d.facts.User, d.p.whom(), some(has.Extra)))
	}
	v.ok("%s checked", plural(has.Tables, "table"))
	return v.finding()
}

// current compares the index with the records and catalogs in the store.
func (d *postgresDoctor) current(ctx context.Context) Finding {
	if d.p.Config.Store.URL == "" {
		return skip("no store is named")
	}
	i, err := d.p.OpenIndex(ctx)
	if err != nil {
		return skip("the index cannot be opened: %s", oneLine(err))
	}
	defer i.Close()
	s, err := d.p.OpenStore(ctx)
	if err != nil {
		return skip("the store cannot be opened: %s", oneLine(err))
	}
	defer s.Close()
	var signed *backup.Repository // a pruner may not read what is signed
	if d.p.Role != installation.Pruner {
		r, err := i.Repository(ctx)
		if err != nil {
			return skip("the repository's identity is not known: %s", oneLine(err))
		}
		signed = &r
	}
	switch err := repo.Compare(ctx, s, i, signed); {
	case errors.Is(err, repo.ErrIndexOld):
		return failWith("run bctl index catchup; the services write nothing until that is done (docs/operations.md, When Postgres is lost)", err)
	case err != nil:
		return skip("it cannot be compared with the store: %s", oneLine(err))
	}
	return ok("it has all snapshots that the store has")
}

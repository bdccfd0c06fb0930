package embedded_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/pgindex"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/rebuild"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/migrations"
	"github.com/bctl/bctl/services/bctl/embedded"
)

var rebuildHistories = flag.Int("rebuild.histories", 3, "how many histories TestRebuild makes")

// indexContent is what an index has of a repository, without what differs between two indexes: ids
// of rows, and what nothing needs.
type indexContent struct {
	Filers    []backup.Filer
	Shards    []backup.Shard
	Policies  []backup.Policy
	Holds     []index.Hold
	Snapshots []backup.Snapshot
	Problems  map[backup.SnapshotID][]backup.Problem
	Pages     map[backup.SnapshotID][]backup.PageVersion
	Packs     []string
	Places    map[string]bool
	Lists     map[backup.ChunkID]backup.ChunkList
	Journals  []index.SnapshotJournal
	Brake     index.Brake
	Scrub     index.ScrubSettings
	Bad       map[backup.SnapshotID]string
}

func contentOf(t *testing.T, x index.Index) (c indexContent) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	filers, err := x.ListFilers(ctx, index.FilerFilter{Retired: true})
	must(err)
	for i := range filers {
		f := filers[i].Filer
		f.ID = 0
		c.Filers = append(c.Filers, f)
	}
	shards, err := x.ListShards(ctx, index.ShardFilter{Retired: true})
	must(err)
	for i := range shards {
		s := shards[i].Shard
		journals, err := x.Journals(ctx, s.ID)
		must(err)
		c.Journals = append(c.Journals, journals...)
		s.ID, s.Filer = 0, 0
		c.Shards = append(c.Shards, s)
	}
	c.Policies, err = x.ListPolicies(ctx)
	must(err)
	for i := range c.Policies {
		c.Policies[i].ID, c.Policies[i].Revision = 0, 0
	}
	c.Holds, err = x.Holds(ctx)
	must(err)
	for i := range c.Holds {
		c.Holds[i].Shard = min(c.Holds[i].Shard, 1)
	}
	c.Brake, err = x.Brake(ctx)
	must(err)
	c.Scrub, err = x.ScrubSettings(ctx)
	must(err)
	c.Bad, err = x.BadSnapshots(ctx)
	must(err)
	c.snapshots(t, x)
	c.packs(t, x)
	return c
}

func (c *indexContent) snapshots(t *testing.T, x index.Index) {
	t.Helper()
	found, err := x.Snapshots(t.Context(), index.SnapshotFilter{States: []backup.State{backup.Committed, backup.Failed, backup.Deleting}})
	if err != nil {
		t.Fatal(err)
	}
	c.Problems, c.Pages = map[backup.SnapshotID][]backup.Problem{}, map[backup.SnapshotID][]backup.PageVersion{}
	for i := range found {
		s := &found[i]
		for p, err := range x.Problems(t.Context(), s.ID) {
			if err != nil {
				t.Fatal(err)
			}
			c.Problems[s.ID] = append(c.Problems[s.ID], p)
		}
		if s.State == backup.Committed {
			for p, err := range x.Pages(t.Context(), s.ID, "") {
				if err != nil {
					t.Fatal(err)
				}
				c.Pages[s.ID] = append(c.Pages[s.ID], p)
			}
		}
		// These describe work, which the store does not have.
		s.TasksAnnounced, s.TasksSettled, s.BatchesAnnounced, s.BatchesSettled, s.Cancel = 0, 0, 0, 0, ""
		s.Filer.ID, s.Shard.ID, s.Shard.Filer = 0, 0, 0
	}
	c.Snapshots = found
}

func (c *indexContent) packs(t *testing.T, x index.Index) {
	t.Helper()
	names := map[int64]string{}
	for p, err := range x.Packs(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if !p.Gone {
			names[p.Row] = fmt.Sprintf("%s/%s at %d: %d bytes, %d chunks", p.Snapshot, p.Object, p.Offset, p.Bytes, p.Chunks)
			c.Packs = append(c.Packs, names[p.Row])
		}
	}
	for p, err := range x.Frames(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if names[p.Row] != "" {
			c.Packs = append(c.Packs, fmt.Sprintf("%s: frames %v", names[p.Row], p.Bytes))
		}
	}
	slices.Sort(c.Packs)
	c.Places, c.Lists = map[string]bool{}, map[backup.ChunkID]backup.ChunkList{}
	for p, err := range x.Places(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		c.Places[fmt.Sprintf("%x in frame %d of %s", p.Chunk, p.Frame, names[p.Pack])] = true
	}
	for l, err := range x.ChunkLists(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		c.Lists[l.List] = l
	}
}

// wantSame compares an index with the content of another one.
func wantSame(t *testing.T, what string, want indexContent, x index.Index) {
	t.Helper()
	got := contentOf(t, x)
	// An older copy may have forgotten snapshots that were removed since: the next prune removes
	// them.
	got.Snapshots = slices.DeleteFunc(got.Snapshots, func(s backup.Snapshot) bool {
		extra := s.State == backup.Deleting && !slices.ContainsFunc(want.Snapshots, func(other backup.Snapshot) bool { return other.ID == s.ID })
		if extra {
			delete(got.Problems, s.ID)
			delete(got.Bad, s.ID)
		}
		return extra
	})
	a, b := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range a.NumField() {
		if a, b := a.Field(i).Interface(), b.Field(i).Interface(); !reflect.DeepEqual(a, b) {
			t.Errorf("%s: %s:\n%+v\nwant\n%+v", what, reflect.TypeFor[indexContent]().Field(i).Name, a, b)
		}
	}
}

// rebuildInto makes an index what the store has, whatever is lost.
func (m *machine) rebuildInto(x index.Index) rebuild.Result {
	m.Helper()
	return m.rebuildWith(x, 1<<30)
}

// rebuildWith makes an index what the store has, unless more snapshots are lost than that.
func (m *machine) rebuildWith(x index.Index, acceptLoss int) rebuild.Result {
	m.Helper()
	result, err := rebuild.Run(m.Context(), rebuild.Options{
		Index: x, Store: m.Store, Trust: m.trust(), Dedup: m.WorkerKey.Dedup, Holder: backup.NewPackID().String(), By: "tester", AcceptLoss: acceptLoss,
	})
	m.must(err)
	return result
}

// emptySQLite returns an index that has the repository and nothing else.
func (m *machine) emptySQLite() *sqliteindex.Index {
	m.Helper()
	dir, err := os.MkdirTemp(m.memory, "rebuilt-")
	m.must(err)
	x, err := sqliteindex.Open(m.Context(), filepath.Join(dir, "index.db"))
	m.must(err)
	m.Cleanup(func() { _ = x.Close() })
	m.prepare(x)
	return x
}

// emptyPostgres is emptySQLite for Postgres. As in a fleet, each service has a role, and the admin,
// who owns the tables, rebuilds.
func (m *machine) emptyPostgres() *pgindex.Index {
	m.Helper()
	var roles []string
	var server url.URL
	execute := func(statements string) {
		ctx := context.WithoutCancel(m.Context())
		conn, err := pgx.Connect(ctx, server.String())
		m.must(err)
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, statements)
		m.must(err)
	}
	m.Cleanup(func() { execute("DROP ROLE " + strings.Join(roles, ", ")) }) // after the database
	dsn, err := url.Parse(testenv.Postgres(m.T))
	m.must(err)
	name := strings.TrimPrefix(dsn.Path, "/")
	for _, role := range []string{"admin", "committer", "walker", "reader", "operator", "pruner", "scrubber", "restorer", "monitor"} {
		roles = append(roles, fmt.Sprintf("%q", name+"_"+role))
	}
	server = *dsn
	server.Path = "/postgres"
	execute("CREATE ROLE " + strings.Join(roles, "; CREATE ROLE "))
	execute(fmt.Sprintf(`ALTER DATABASE %[1]q SET %[2]s = '%[1]s'; ALTER DATABASE %[1]q OWNER TO %[3]s`, name, migrations.RolesSetting, roles[0]))
	query := dsn.Query()
	query.Set("role", name+"_admin")
	dsn.RawQuery = query.Encode()
	x, err := pgindex.Open(m.Context(), dsn.String(), pgindex.Options{})
	m.must(err)
	m.Cleanup(func() { _ = x.Close() })
	m.prepare(x)
	return x
}

func (m *machine) prepare(x index.Index) {
	m.Helper()
	_, _, err := x.Migrate(m.Context())
	m.must(err)
	m.must(x.CreateRepository(m.Context(), m.Repository))
}

// An index that is rebuilt from the store alone is the one that was lost, at any time in the life
// of the repository. So is an older copy of it that is brought up to date. Backups continue from
// it.
//
// More histories:
//
//	go test -run TestRebuild$ ./services/bctl/embedded -rebuild.histories 100
func TestRebuild(t *testing.T) {
	for seed := range uint64(*rebuildHistories) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { testRebuild(t, seed, 14) })
	}
}

func testRebuild(t *testing.T, seed uint64, n int) {
	random := rand.New(rand.NewPCG(seed, 0))
	m := newMachine(t)
	m.must(m.index.CreateRepository(t.Context(), m.Repository))
	old, dump := m.emptySQLite(), m.emptyPostgres()
	all := steps()
	for i := range n {
		s := all[random.IntN(len(all))]
		if i == 0 {
			s = all[1]
		}
		t.Logf("step %d: %s", i, s.name)
		s.do(m, random)
		m.must(embedded.WriteRecords(t.Context(), m.index, m.Store, m.Keys))
		want := contentOf(t, m.index)
		fresh := m.emptySQLite()
		if r := m.rebuildInto(fresh); len(r.Lost)+len(r.Damaged)+len(r.Holds) > 0 {
			t.Fatalf("%+v", r)
		}
		wantSame(t, "rebuilt", want, fresh)
		if random.IntN(3) == 0 { // it lacks what happened since
			m.rebuildInto(old)
			wantSame(t, "brought up to date", want, old)
		}
		if i == n/2 {
			m.rebuildInto(dump)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	x := m.emptyPostgres()
	m.rebuildInto(x)
	wantSame(t, "rebuilt in Postgres", contentOf(t, m.index), x)
	m.rebuildInto(dump)
	wantSame(t, "brought up to date in Postgres", contentOf(t, m.index), dump)
	m.index = m.emptySQLite()
	m.Index = m.index
	m.rebuildInto(m.index)
	m.grow(9)
	s, err := m.backup(context.WithoutCancel(t.Context()))
	m.must(err)
	m.wantRestored(&s)
}

// history makes a repository with several chains, and returns its content.
func (m *machine) history(t *testing.T) indexContent {
	random := rand.New(rand.NewPCG(7, 0))
	m.must(m.index.CreateRepository(t.Context(), m.Repository))
	all := steps()
	for _, i := range []int{1, 2, 4, 2, 0, 3, 6, 8, 2, 9} {
		all[i].do(m, random)
	}
	m.must(embedded.WriteRecords(t.Context(), m.index, m.Store, m.Keys))
	return contentOf(t, m.index)
}

// An awayStore fails from one of its requests on.
type awayStore struct {
	store.Store
	left atomic.Int64
}

func newAwayStore(s store.Store, after int) *awayStore {
	a := &awayStore{Store: s}
	a.left.Store(int64(after))
	return a
}

var errAway = errors.New("the store has gone away")

func (s *awayStore) request() error {
	if s.left.Add(-1) < 0 {
		return errAway
	}
	return nil
}

func (s *awayStore) Get(ctx context.Context, name string, maxBytes int64) ([]byte, error) {
	if err := s.request(); err != nil {
		return nil, err
	}
	return s.Store.Get(ctx, name, maxBytes)
}

func (s *awayStore) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	if err := s.request(); err != nil {
		return nil, err
	}
	return s.Store.GetRange(ctx, dst, name, offset, length)
}

// A failingIndex fails from one of its writes on.
type failingIndex struct {
	*sqliteindex.Index
	left int
}

func (x *failingIndex) write() error {
	if x.left--; x.left < 0 {
		return errAway
	}
	return nil
}

func (x *failingIndex) RecoverPages(ctx context.Context, shard backup.ShardID, number backup.SnapshotNumber, changes []index.RecoveredChange) error {
	if err := x.write(); err != nil {
		return err
	}
	return x.Index.RecoverPages(ctx, shard, number, changes)
}

func (x *failingIndex) RecoverSnapshot(ctx context.Context, s index.RecoveredSnapshot) error {
	if err := x.write(); err != nil {
		return err
	}
	return x.Index.RecoverSnapshot(ctx, s)
}

func (x *failingIndex) RecoverPacks(ctx context.Context, packs []index.RecoveredPack) error {
	if err := x.write(); err != nil {
		return err
	}
	return x.Index.RecoverPacks(ctx, packs)
}

// A rebuild that ends at any of its requests or writes goes on when it is called again.
func TestRebuildIsInterrupted(t *testing.T) {
	m := newMachine(t)
	want := m.history(t)
	run := func(x rebuild.Index, s store.Store) error {
		_, err := rebuild.Run(t.Context(), rebuild.Options{
			Index: x, Store: s, Trust: m.trust(), Dedup: m.WorkerKey.Dedup, Holder: backup.NewPackID().String(), By: "tester", AcceptLoss: 1 << 30,
		})
		return err
	}
	for n, interrupted := 0, true; interrupted; n++ {
		x := m.emptySQLite()
		err := run(x, newAwayStore(m.Store, n))
		if interrupted = errors.Is(err, errAway); !interrupted {
			m.must(err)
		}
		m.must(run(x, m.Store))
		wantSame(t, fmt.Sprintf("the store was gone after %d requests", n), want, x)
		if t.Failed() {
			t.FailNow()
		}
	}
	for n, interrupted := 0, true; interrupted; n++ {
		x := m.emptySQLite()
		err := run(&failingIndex{x, n}, m.Store)
		if interrupted = errors.Is(err, errAway); !interrupted {
			m.must(err)
		}
		m.must(run(x, m.Store))
		wantSame(t, fmt.Sprintf("the index failed after %d writes", n), want, x)
		if t.Failed() {
			t.FailNow()
		}
	}
}

// A listedStore calls a function once after names with a prefix were listed.
type listedStore struct {
	store.Store
	prefix string
	after  func()
}

func (s *listedStore) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		for o, err := range s.Store.List(ctx, prefix) {
			if !yield(o, err) {
				return
			}
		}
		if after := s.after; strings.HasPrefix(prefix, s.prefix) && after != nil {
			s.after = nil
			after()
		}
	}
}

// A snapshot that is made while the store is read is neither lost nor removed from the index.
func TestRebuildBesideABackup(t *testing.T) {
	for _, prefix := range []string{store.CommitsPrefix, store.PacksPrefix} {
		t.Run(prefix, func(t *testing.T) {
			m := newMachine(t)
			m.history(t)
			var made backup.Snapshot
			listed := &listedStore{m.Store, prefix, func() {
				m.grow(5)
				var err error
				made, err = m.backup(m.Context())
				m.must(err)
				m.must(embedded.WriteRecords(m.Context(), m.index, m.Store, m.Keys))
			}}
			r, err := rebuild.Run(t.Context(), rebuild.Options{
				Index: m.index, Store: listed, Trust: m.trust(), Dedup: m.WorkerKey.Dedup, Holder: backup.NewPackID().String(), By: "tester", AcceptLoss: 1 << 30,
			})
			m.must(err)
			if made.State != backup.Committed || len(r.Damaged)+len(r.Lost)+len(r.Removed)+r.Gone > 0 {
				t.Errorf("snapshot %s is %s; %+v", made.ID, made.State, r)
			}
			m.wantRestored(&made)
		})
	}
}

// Whatever is damaged or missing in the store, what does not depend on it is rebuilt, and what does
// is named. Objects that the repository has not signed change nothing.
func TestRebuildOfADamagedStore(t *testing.T) {
	m := newMachine(t)
	want := m.history(t)
	var objects []string
	for _, prefix := range []string{store.CommitsPrefix, store.SegmentsPrefix, store.PacksPrefix, store.CatalogPrefix} {
		for o, err := range m.Store.List(t.Context(), prefix) {
			m.must(err)
			objects = append(objects, o.Name)
		}
	}
	slices.SortFunc(objects, func(a, b string) int { // the newest catalog comes last
		return cmp.Or(cmp.Compare(len(a), len(b))*-1, strings.Compare(a, b))
	})
	for _, name := range objects {
		path := filepath.Join(m.memory, "store", name)
		whole, err := os.ReadFile(path)
		m.must(err)
		for how, damaged := range map[string][]byte{
			"missing": nil, "truncated": whole[:len(whole)-40], "changed": append(append([]byte{}, whole[:len(whole)/2]...), append([]byte{whole[len(whole)/2] ^ 1}, whole[len(whole)/2+1:]...)...), "empty": {},
		} {
			_ = os.Remove(path)
			if damaged != nil {
				m.must(os.WriteFile(path, damaged, 0o600))
			}
			x := m.emptySQLite()
			r := m.rebuildInto(x)
			m.wantRest(fmt.Sprintf("%s %s", how, name), name, objects[len(objects)-1], &want, x, &r)
		}
		_ = os.Remove(path)
		m.must(os.WriteFile(path, whole, 0o600))
	}
	m.must(os.WriteFile(filepath.Join(m.memory, "store", store.CommitName(backup.NewSnapshotID())), []byte("made up"), 0o600))
	x := m.emptySQLite()
	if r := m.rebuildInto(x); len(r.Damaged) != 1 || len(r.Lost) > 0 {
		t.Errorf("%+v", r)
	}
	wantSame(t, "with a record that was made up", want, x)
}

// wantRest checks that each snapshot is either as it was or is named, and that something is.
func (m *machine) wantRest(what, name, newest string, want *indexContent, x index.Index, r *rebuild.Result) {
	m.Helper()
	got := contentOf(m.T, x)
	lost := map[backup.SnapshotID]bool{}
	for i := range r.Lost {
		lost[r.Lost[i].ID] = true
	}
	for i := range want.Snapshots {
		s := &want.Snapshots[i]
		n := slices.IndexFunc(got.Snapshots, func(other backup.Snapshot) bool { return other.ID == s.ID })
		record := name == store.CommitName(s.ID)
		switch {
		case n < 0 && !lost[s.ID] && !record:
			m.Errorf("%s: number %d is neither there nor named", what, s.Number)
		case n < 0:
		case s.State == backup.Committed && !reflect.DeepEqual(got.Pages[s.ID], want.Pages[s.ID]):
			m.Errorf("%s: number %d has other pages", what, s.Number)
		}
	}
	// A frame of a pack is not read, and neither is a catalog before the newest.
	unread := strings.HasPrefix(what, "missing") || strings.HasPrefix(what, "changed "+store.PacksPrefix) || strings.HasPrefix(name, store.CatalogPrefix) && name != newest
	switch {
	case strings.HasPrefix(name, store.SegmentsPrefix) && len(r.Lost) == 0:
		m.Errorf("%s: no snapshot is named as lost", what)
	case !strings.HasPrefix(name, store.SegmentsPrefix) && !unread && len(r.Damaged) == 0:
		m.Errorf("%s: the object is not named", what)
	}
}

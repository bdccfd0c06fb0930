package commit

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/internal/testenv"
)

const within = time.Minute

// A fixture is an index with one shard, a store, and a queue; the test plays the workers.
type fixture struct {
	*testing.T
	ctx   context.Context
	idx   index.Index
	store *faultStore
	keys  journal.Keys
	trust journal.Trust
	shard backup.Shard
	conn  *flow.Conn
	nats  *server.Server
	dir   string // of index and store
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, ctx: t.Context()}
	dir := testenv.MemoryDir(t)
	identity, recipient, err := seal.GenerateIdentity()
	f.must(err)
	signing := seal.NewSigningKey()
	f.keys = journal.Keys{Repository: backup.NewRepositoryID(), Sealer: value(seal.NewSealer([]string{recipient}))(f), Signing: signing}
	f.trust = journal.Trust{Repository: f.keys.Repository, Signer: signing.Signer(), Opener: value(seal.NewOpener([]byte(identity)))(f)}
	f.dir = dir
	f.idx = value(sqliteindex.Open(f.ctx, filepath.Join(dir, "index.db")))(f)
	t.Cleanup(func() { _ = f.idx.Close() })
	_, _, err = f.idx.Migrate(f.ctx)
	f.must(err)
	f.store = &faultStore{Store: value(dirstore.Create(filepath.Join(dir, "store")))(f)}
	t.Cleanup(func() { _ = f.store.Close() })
	f.must(f.store.Store.Put(f.ctx, store.ConfigName, []byte("as every repository has")))
	filer := value(f.idx.EnsureFiler(f.ctx, "filer"))(f)
	f.shard = value(f.idx.EnsureShard(f.ctx, filer.ID, "/srv", "posix:///srv"))(f)
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func value[T any](v T, err error) func(*fixture) T {
	return func(f *fixture) T {
		f.Helper()
		f.must(err)
		return v
	}
}

// queue connects to a NATS server of its own, without streams.
func (f *fixture) queue() (conn *flow.Conn, stop func()) {
	f.Helper()
	ns := value(server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: f.TempDir(), NoSigs: true, NoLog: true}))(f)
	f.nats = ns
	ns.Start()
	if !ns.ReadyForConnections(within) {
		f.Fatal("the server is not ready")
	}
	f.conn = value(flow.Connect(flow.Options{InProcess: ns, Memory: true}))(f)
	conn = f.conn
	stop = sync.OnceFunc(func() { conn.Close(); ns.Shutdown(); ns.WaitForShutdown() })
	f.Cleanup(stop)
	return conn, stop
}

func (f *fixture) service(idx Index, o Options) *Service {
	return New(Parts{Conn: f.conn, Index: idx, Store: f.store, Keys: f.keys}, o)
}

func (f *fixture) begin() backup.Snapshot {
	f.Helper()
	return value(f.idx.BeginSnapshot(f.ctx, f.shard.ID, backup.Snapshot{}, time.Now()))(f)
}

func (f *fixture) snapshot(id backup.SnapshotID) backup.Snapshot {
	f.Helper()
	return value(f.idx.Snapshot(f.ctx, id))(f)
}

func (f *fixture) claimTask() backup.WalkTask {
	f.Helper()
	tasks := value(f.idx.ClaimTasks(f.ctx, index.Claim{Lease: time.Hour, Limit: 10, Now: time.Now()}))(f)
	if len(tasks) != 1 {
		f.Fatalf("claimed %d tasks", len(tasks))
	}
	return tasks[0]
}

func (f *fixture) apply(results ...index.Result) {
	f.Helper()
	for _, o := range value(f.idx.Apply(f.ctx, results))(f) {
		f.must(o.Err)
	}
}

// walked makes a snapshot that is complete after one slice.
func (f *fixture) walked(fill func(*backup.SliceWalked)) backup.Snapshot {
	f.Helper()
	s := f.begin()
	task := f.claimTask()
	slice := indextest.SliceOf(task)
	slice.Counts = backup.Counts{Files: 1, Directories: 1}
	fill(slice)
	f.apply(index.Result{Slice: slice})
	return s
}

// pages returns the pages of a committed snapshot.
func (f *fixture) pages(id backup.SnapshotID) map[backup.PageName]string {
	f.Helper()
	pages := map[backup.PageName]string{}
	for p, err := range f.idx.Pages(f.ctx, id, "") {
		f.must(err)
		pages[backup.PageName{Path: p.Path, Key: p.Key}] = f.textOf(p.Listing)
	}
	return pages
}

// segments opens all segments of a snapshot, by attempt, with the identity.
func (f *fixture) segments(id backup.SnapshotID) map[string][]*journal.SegmentPart {
	f.Helper()
	all := map[string][]*journal.SegmentPart{}
	for _, name := range f.objects(store.SegmentsPrefix) { // the parts of an attempt in order
		if !strings.Contains(name, id.String()) {
			continue
		}
		attempt, number, _ := strings.Cut(name[strings.LastIndexByte(name, '/')+1:], "-")
		pack := backup.PackID(value(backup.ParseSnapshotID(attempt))(f)) // the same digits
		part := value(strconv.Atoi(number))(f)
		data := value(f.store.Get(f.ctx, name, 64<<20))(f)
		all[attempt] = append(all[attempt], value(journal.OpenSegment(data, id, pack, part, f.trust))(f))
	}
	return all
}

// objects returns the names of the store's objects below a prefix, in order.
func (f *fixture) objects(prefix string) (names []string) {
	f.Helper()
	for o, err := range f.store.List(f.ctx, prefix) {
		f.must(err)
		names = append(names, o.Name)
	}
	slices.Sort(names)
	return names
}

// toRead returns one batch of pages.
func toRead(pages ...backup.PageVersion) []backup.PagesToRead {
	return []backup.PagesToRead{{Pages: pages}}
}

// pageOf returns a page whose listing contains a text, which textOf returns.
func pageOf(path, text string) backup.PageVersion {
	said := backup.Entry{Name: "said", Kind: backup.Symlink, Target: text}
	data, err := listing.Encode(nil, &backup.Page{Self: &backup.Entry{Kind: backup.Directory}, Entries: []backup.Entry{said}})
	if err != nil {
		panic(err) // the test has made an invalid page
	}
	return backup.PageVersion{Path: path, Fingerprint: backup.Fingerprint([]byte(fmt.Sprintf("%-16.16s", text))), Inode: 7, Listing: data}
}

func (f *fixture) textOf(data []byte) string {
	f.Helper()
	page := value(listing.Decode(data))(f)
	if len(page.Entries) == 0 {
		f.Fatalf("not a page of pageOf: %+v", page)
	}
	text := ""
	for i := range page.Entries {
		text += page.Entries[i].Target
	}
	return text
}

// work answers as a walker and a reader would for a tree of these directories below the root, one
// of which has a file to read; until ctx is done.
func (f *fixture) work(ctx context.Context, conn *flow.Conn, directories ...string) (wait func()) {
	var owned sync.WaitGroup
	owned.Go(func() {
		conn.ConsumeWalk(ctx, backup.DefaultSite, 4, func(t *backup.WalkTask, d *flow.Delivery) {
			slice := indextest.SliceOf(*t)
			slice.Counts = backup.Counts{Files: 1, Directories: int64(len(t.Directories))}
			for _, path := range t.Directories {
				slice.Pages = append(slice.Pages, pageOf(path, "listing of "+path))
			}
			if t.Generation == 0 {
				slice.Pages = nil
				slice.Batches = toRead(pageOf("", "wanted"))
				for _, path := range directories {
					slice.Children = append(slice.Children, backup.Child{Directories: []string{path}})
				}
			}
			answer(ctx, conn, flow.Slices, slice, d)
		})
	})
	owned.Go(func() {
		conn.ConsumeRead(ctx, backup.DefaultSite, 4, func(b *backup.ReadBatch, d *flow.Delivery) {
			pack := &backup.PackStored{Snapshot: b.Job.Snapshot, Pack: backup.NewPackID(), StoredBytes: 1, FrameBytes: []uint32{1}, Chunks: []backup.ChunkPlace{{ID: backup.ChunkID{1}, Length: 1}}}
			if f.store.Store.Put(ctx, store.PackName(pack.Snapshot, pack.Pack), []byte{1}) != nil {
				d.Retry(0)
				return
			}
			if flow.Publish(ctx, conn, flow.Packs, pack) != nil {
				d.Retry(0)
				return
			}
			stored := &backup.BatchStored{Snapshot: b.Job.Snapshot, Batch: b.ID, Attempt: b.Attempt, ReliesOn: []backup.PackID{pack.Pack}}
			for _, p := range b.Pages {
				stored.Pages = append(stored.Pages, pageOf(p.Path, "listing of "+p.Path))
			}
			answer(ctx, conn, flow.Batches, stored, d)
		})
	})
	return owned.Wait
}

func answer[T any](ctx context.Context, conn *flow.Conn, hop flow.Hop[T], message *T, d *flow.Delivery) {
	if flow.Publish(ctx, conn, hop, message) != nil {
		d.Retry(0)
		return
	}
	d.Ack()
}

// ended waits until the snapshot is no longer running.
func (f *fixture) ended(id backup.SnapshotID) backup.Snapshot {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, within)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s := f.snapshot(id)
		if s.State != backup.Running {
			return s
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.Fatalf("the snapshot has not ended: %+v", s)
		}
	}
}

var errPower = errors.New("the power went")

// A faultStore is a store whose next Puts or PutNews can fail.
type faultStore struct {
	store.Store
	mu     sync.Mutex
	bad    []func(put func() error) error
	badNew []func(put func() error) error
	puts   int // and PutNews

	silent atomic.Bool // Stat fails
	hangs  atomic.Bool // Stat does not return before its context ends
	gone   atomic.Bool // it has no objects, as if the bucket were gone
}

func (s *faultStore) Stat(ctx context.Context, name string) (int64, error) {
	if s.hangs.Load() {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	if s.silent.Load() {
		return 0, errSilent
	}
	if s.gone.Load() {
		return 0, backup.ErrNotFound
	}
	return s.Store.Stat(ctx, name)
}

func (s *faultStore) Put(ctx context.Context, name string, data []byte) error {
	return s.put(&s.bad, func() error { return s.Store.Put(ctx, name, data) })
}

func (s *faultStore) PutNew(ctx context.Context, name string, data []byte) error {
	return s.put(&s.badNew, func() error { return s.Store.PutNew(ctx, name, data) })
}

func (s *faultStore) put(faults *[]func(put func() error) error, put func() error) error {
	s.mu.Lock()
	s.puts++
	var bad func(func() error) error
	if len(*faults) > 0 {
		bad, *faults = (*faults)[0], (*faults)[1:]
	}
	s.mu.Unlock()
	if bad == nil {
		return put()
	}
	return bad(put)
}

func (s *faultStore) putsSoFar() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.puts
}

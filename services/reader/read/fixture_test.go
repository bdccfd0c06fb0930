package read

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/internal/testenv"
)

// A fixture is a repository and a reader in it. The reader's messages to the committer are applied
// to the index at once; the test plays the walker.
type fixture struct {
	testing.TB
	ctx    context.Context
	dir    string // the shard
	idx    index.Index
	store  *faultStore
	repo   backup.Repository
	key    seal.WorkerKey
	opener *seal.Opener
	shard  backup.Shard
	snap   backup.Snapshot
	root   backup.Root // that was walked
	mounts []string    // found by the walker
	// lastEntries are those of the snapshot that was committed last.
	lastEntries map[string]backup.Entry

	reader *Service
	packs  map[backup.PackID]*pack.Reader
}

func newFixture(t testing.TB, tree treetest.Tree) *fixture {
	t.Helper()
	memory := testenv.MemoryDir(t)
	f := &fixture{TB: t, ctx: t.Context(), dir: filepath.Join(memory, "tree"), packs: map[backup.PackID]*pack.Reader{}}
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if tree != nil {
		treetest.Make(t, f.dir, tree)
	}
	identity, recipient := must2(seal.GenerateIdentity())(t)
	f.opener = must(seal.NewOpener([]byte(identity)))(t)
	f.key = seal.WorkerKey{
		Repository: backup.NewRepositoryID(), Dedup: seal.NewDedupKey(), Recipients: []string{recipient}, Signer: seal.NewSigningKey().Signer(),
	}
	f.repo = backup.Repository{ID: f.key.Repository, Chunker: chunk.DefaultCutter, Codec: "zstd-1", Recipients: f.key.Recipients}
	f.idx = must(sqliteindex.Open(f.ctx, filepath.Join(memory, "index.db")))(t)
	t.Cleanup(func() { _ = f.idx.Close() })
	_, _ = must2(f.idx.Migrate(f.ctx))(t)
	f.store = &faultStore{Store: must(dirstore.Create(filepath.Join(memory, "store")))(t)}
	t.Cleanup(func() { _ = f.store.Close() })
	f.must(f.store.Store.Put(f.ctx, store.ConfigName, []byte("as every repository has")))
	filer := must(f.idx.EnsureFiler(f.ctx, "filer"))(t)
	f.shard = must(f.idx.EnsureShard(f.ctx, filer.ID, f.dir, posix.URL(f.dir)))(t)
	f.reader = f.newReader(Options{Linger: time.Millisecond})
	return f
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func must2[T, U any](v T, u U, err error) func(testing.TB) (T, U) {
	return func(t testing.TB) (T, U) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v, u
	}
}

// newReader starts a reader that takes no batches from a queue; it stops with the test. Its results
// are not sent but applied.
func (f *fixture) newReader(o Options) *Service {
	f.Helper()
	s := f.makeReader(Parts{Report: flow.NewReporter(nil, "test")}, o)
	ctx, cancel := context.WithCancel(context.Background())
	var owned sync.WaitGroup
	s.start(ctx, &owned)
	f.Cleanup(func() { cancel(); owned.Wait() })
	return s
}

// makeReader makes a reader that is not started.
func (f *fixture) makeReader(p Parts, o Options) *Service {
	f.Helper()
	s := must(New(Parts{
		Conn: p.Conn, Report: p.Report,
		Index: f.idx, Source: posix.New(posix.Options{}), Store: writeOnlyStore{puts: f.store}, Repository: f.repo, Key: f.key,
	}, o))(f)
	s.sendPack = func(ctx context.Context, m *backup.PackStored) error {
		if size := must(flow.SizeOf(flow.Packs, m))(f); size > flow.MaxMessageBytes {
			f.Errorf("PackStored of %d chunks takes %d bytes", len(m.Chunks), size)
		}
		return f.apply(index.Result{Pack: m})
	}
	s.sendLists = func(ctx context.Context, m *backup.ListsStored) error {
		if size := must(flow.SizeOf(flow.Lists, m))(f); size > flow.MaxMessageBytes {
			f.Errorf("ListsStored of %d lists takes %d bytes", len(m.Lists), size)
		}
		return f.apply(index.Result{Lists: m})
	}
	s.sendBatch = func(ctx context.Context, m *backup.BatchStored) error {
		if size := must(flow.SizeOf(flow.Batches, m))(f); size > flow.MaxMessageBytes {
			f.Errorf("BatchStored takes %d bytes", size)
		}
		f.allDurable(m.ReliesOn)
		return f.apply(index.Result{Batch: m})
	}
	return s
}

// try makes one attempt at a batch, as if it had been delivered.
func (s *Service) try(ctx context.Context, msg *backup.ReadBatch) error {
	return s.look(ctx, msg, 0)
}

// look is try, after this many looks at the batch.
func (s *Service) look(ctx context.Context, msg *backup.ReadBatch, looks int) error {
	b := s.begin(msg, nil)
	defer b.end()
	b.looks = looks
	return s.attempt(ctx, ctx, b)
}

// until waits until done returns true.
func (f *fixture) until(done func() bool) {
	f.Helper()
	for end := time.Now().Add(time.Minute); !done(); {
		if time.Now().After(end) {
			f.Fatal("it does not come about")
		}
		_, _ = f.idx.InHand(f.ctx, time.Now(), 1) // a query that sets the pace
	}
}

func (f *fixture) apply(r index.Result) error {
	outcomes, err := f.idx.Apply(f.ctx, []index.Result{r})
	if err != nil {
		return err
	}
	return outcomes[0].Err
}

// allDurable checks I1: a result is sent when the packs are in the store, not before.
func (f *fixture) allDurable(packs []backup.PackID) {
	names := map[string]bool{}
	for o, err := range f.store.List(f.ctx, "") {
		if err != nil {
			f.Error(err)
			return
		}
		names[o.Name[strings.LastIndexByte(o.Name, '/')+1:]] = true
	}
	for _, id := range packs {
		found := false
		for name := range names {
			found = found || strings.Contains(name, id.String())
		}
		if !found {
			f.Errorf("the batch relies on pack %v, which is not in the store", id)
		}
	}
}

// batchOf begins a snapshot and claims a batch of the directories' files, like a walker that finds
// all of them new.
func (f *fixture) batchOf(paths ...string) *backup.ReadBatch {
	f.Helper()
	f.begin()
	f.announce(f.pagesOf(paths...))
	return f.claim()
}

func (f *fixture) begin() {
	f.Helper()
	f.snap = must(f.idx.BeginSnapshot(f.ctx, f.shard.ID, backup.Snapshot{}, time.Now()))(f)
}

// pagesOf lists directories, each as one page with all files wanted.
func (f *fixture) pagesOf(paths ...string) (pages []backup.PageVersion) {
	f.Helper()
	tree := must(posix.New(posix.Options{}).Open(f.ctx, f.shard.Source))(f)
	defer tree.Close()
	f.root = tree.Root()
	for _, path := range paths {
		dir := must(tree.OpenDirectory(f.ctx, path))(f)
		self := dir.Self()
		page := backup.Page{Path: path, Self: &self}
		for {
			var err error
			page.Entries, _, err = dir.Read(f.ctx, page.Entries, func(name, op string, err error) { f.Errorf("%s %s: %v", op, name, err) })
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				f.Fatal(err)
			}
		}
		_ = dir.Close()
		page.Entries = listing.Sort(page.Entries)
		for i := range page.Entries {
			if page.Entries[i].Kind == backup.File {
				page.Entries[i].Flags |= backup.Wanted
			}
		}
		data := must(listing.Encode(nil, &page))(f)
		pages = append(pages, backup.PageVersion{Path: path, Fingerprint: backup.Fingerprint{1}, Inode: self.Inode, Listing: data})
	}
	return pages
}

// announce settles the root task with batches.
func (f *fixture) announce(batches ...[]backup.PageVersion) {
	f.Helper()
	var toRead []backup.PagesToRead
	for _, pages := range batches {
		toRead = append(toRead, backup.PagesToRead{Pages: pages, Mounts: f.mounts})
	}
	tasks := must(f.idx.ClaimTasks(f.ctx, index.Claim{Lease: time.Hour, Limit: 1, Now: time.Now()}))(f)
	if len(tasks) != 1 {
		f.Fatalf("%d tasks", len(tasks))
	}
	err := f.apply(index.Result{Slice: &backup.SliceWalked{
		Snapshot: f.snap.ID, Task: tasks[0].ID, Attempt: tasks[0].Attempt, Last: true, Batches: toRead, Root: f.root,
	}})
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) claim() *backup.ReadBatch {
	f.Helper()
	batches := must(f.idx.ClaimBatches(f.ctx, index.Claim{Lease: time.Hour, Limit: 1, Now: time.Now()}))(f)
	if len(batches) != 1 {
		f.Fatalf("%d batches", len(batches))
	}
	return &batches[0]
}

// read makes an attempt at a batch that must succeed.
func (f *fixture) read(msg *backup.ReadBatch) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, time.Minute)
	defer cancel()
	if err := f.reader.try(ctx, msg); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) commit() {
	f.Helper()
	if err := f.idx.Commit(f.ctx, f.snap.ID, backup.Segment{}, backup.PageSet{}, time.Now()); err != nil {
		f.Fatal(err)
	}
	f.lastEntries = f.entries()
}

// entries returns all entries of the newest snapshot, which must be committed, by path.
func (f *fixture) entries() map[string]backup.Entry {
	f.Helper()
	all := map[string]backup.Entry{}
	for v, err := range f.idx.Pages(f.ctx, f.snap.ID, "") {
		if err != nil {
			f.Fatal(err)
		}
		page := must(listing.DecodePage(v))(f)
		for _, e := range page.Entries {
			all[backup.Join(v.Path, e.Name)] = e
		}
	}
	return all
}

// wantTree compares all files of the newest snapshot with those of the tree.
func (f *fixture) wantTree() {
	f.Helper()
	f.wantDir(f.dir)
}

func (f *fixture) wantDir(dir string) {
	f.Helper()
	seen := 0
	for path, e := range f.entries() {
		if e.Kind != backup.File {
			continue
		}
		seen++
		want := must(os.ReadFile(filepath.Join(dir, path)))(f)
		if got := f.content(&e); !bytes.Equal(got, want) {
			f.Errorf("%s: got %d bytes that are not the file's %d", path, len(got), len(want))
		}
	}
	if seen == 0 {
		f.Error("there is no file")
	}
}

// content assembles a file from its chunks, each located by the index, read from its pack in the
// store, and verified.
func (f *fixture) content(e *backup.Entry) []byte {
	f.Helper()
	data := make([]byte, e.Size)
	if end := f.fill(data, 0, e.Content); end > e.Size {
		f.Fatalf("%s: content of %d bytes, size %d", e.Name, end, e.Size)
	}
	return data
}

func (f *fixture) fill(data []byte, at int64, c backup.Content) int64 {
	f.Helper()
	for _, ref := range c.Refs {
		at += ref.Hole
		chunk := f.chunk(ref.Chunk)
		if int64(len(chunk)) != ref.Length {
			f.Fatalf("chunk of %d bytes where the ref says %d", len(chunk), ref.Length)
		}
		if c.Depth == 0 {
			at += int64(copy(data[at:], chunk))
			continue
		}
		list := must(listing.DecodeRefs(chunk))(f)
		if list.Depth != c.Depth-1 {
			f.Fatalf("list of depth %d in one of depth %d", list.Depth, c.Depth)
		}
		end := f.fill(data, at, list)
		if end != at+ref.Span {
			f.Fatalf("list spans %d bytes, its ref says %d", end-at, ref.Span)
		}
		at = end
	}
	return at
}

func (f *fixture) chunk(id backup.ChunkID) []byte {
	f.Helper()
	var at index.Location
	for _, at = range must(f.idx.LocateReadableCopies(f.ctx, []backup.ChunkID{id}))(f)[0] {
		if n, err := f.store.Store.Stat(f.ctx, store.PackName(at.Snapshot, at.Object)); err == nil && n == at.Bytes {
			break // the other packs are lost
		}
	}
	r, place := f.packs[at.Pack], pack.Place{Object: store.PackName(at.Snapshot, at.Object), Offset: at.Offset, Bytes: at.Bytes}
	if r == nil {
		r = must(pack.Open(f.ctx, f.store, place, f.repo.ID, at.Pack, f.opener))(f)
		f.packs[at.Pack] = r
	}
	frame := r.Frames()[at.Frame]
	sealed := must(f.store.GetRange(f.ctx, nil, place.Object, place.Offset+frame.Offset, frame.SealedLength))(f)
	raw := must(r.DecodeFrame(nil, at.Frame, sealed, chunk.NewHasher(f.key.Dedup)))(f)
	i := slices.IndexFunc(r.Chunks(), func(c pack.ChunkInfo) bool { return c.Hash.ID() == id })
	if i < 0 {
		f.Fatalf("chunk %v is not in its pack's table", id)
	}
	return raw[at.Start : at.Start+at.Length]
}

// A writeOnlyStore checks that a reader only writes, and checks for the presence of packs and of
// the configuration (I8): its other methods are those of a nil Store.
type writeOnlyStore struct {
	store.Store
	puts *faultStore
}

func (s writeOnlyStore) Put(ctx context.Context, name string, data []byte) error {
	return s.puts.Put(ctx, name, data)
}

func (s writeOnlyStore) Stat(ctx context.Context, name string) (int64, error) {
	if !strings.HasPrefix(name, store.PacksPrefix) && name != store.ConfigName {
		return 0, errors.New("a reader looks at packs and the configuration alone")
	}
	return s.puts.Stat(ctx, name)
}

// A faultStore is a store whose Puts and Stats can fail, and are counted.
type faultStore struct {
	store.Store
	mu    sync.Mutex
	stats map[string]int
	blind func(name string) error // of Stat
	puts  int
	bad   []func(put func() error) error // for the next Puts, one each
}

func (s *faultStore) Put(ctx context.Context, name string, data []byte) error {
	s.mu.Lock()
	s.puts++
	var bad func(func() error) error
	if len(s.bad) > 0 {
		bad, s.bad = s.bad[0], s.bad[1:]
	}
	s.mu.Unlock()
	put := func() error { return s.Store.Put(ctx, name, data) }
	if bad == nil {
		return put()
	}
	return bad(put)
}

func (s *faultStore) Stat(ctx context.Context, name string) (int64, error) {
	s.mu.Lock()
	if s.stats == nil {
		s.stats = map[string]int{}
	}
	s.stats[name]++
	blind := s.blind
	s.mu.Unlock()
	if blind != nil {
		if err := blind(name); err != nil {
			return 0, err
		}
	}
	return s.Store.Stat(ctx, name)
}

// setBlind makes Stat return these errors of objects; nil ends that.
func (s *faultStore) setBlind(blind func(name string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blind = blind
}

func (s *faultStore) putsSoFar() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.puts
}

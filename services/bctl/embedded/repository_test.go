package embedded_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/index/sqliteindex"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// A repository is a repository on one machine, with its keys.
type repository struct {
	*testing.T
	embedded.Options
	memory string // a directory on which sync takes no time
	opener *seal.Opener
	index  *sqliteindex.Index // the same as Options.Index
	shards int
	packs  map[backup.PackID]*pack.Reader
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	r := &repository{T: t, memory: testenv.MemoryDir(t), packs: map[backup.PackID]*pack.Reader{}}
	identity, recipient, err := seal.GenerateIdentity()
	r.must(err)
	r.opener, err = seal.NewOpener([]byte(identity))
	r.must(err)
	sealer, err := seal.NewSealer([]string{recipient})
	r.must(err)
	signing := seal.NewSigningKey()
	id := backup.NewRepositoryID()
	r.WorkerKey = seal.WorkerKey{Repository: id, Dedup: seal.NewDedupKey(), Recipients: []string{recipient}, Signer: signing.Signer()}
	r.Keys = journal.Keys{Repository: id, Sealer: sealer, Signing: signing}
	r.Repository = backup.Repository{ID: id, Chunker: chunk.DefaultCutter, Codec: "zstd-1", Recipients: r.WorkerKey.Recipients, Signer: signing.Signer()}
	r.index, err = sqliteindex.Open(t.Context(), filepath.Join(r.memory, "index.db"))
	r.must(err)
	t.Cleanup(func() { _ = r.index.Close() })
	_, _, err = r.index.Migrate(t.Context())
	r.must(err)
	r.Store, err = dirstore.Create(filepath.Join(r.memory, "store"))
	r.must(err)
	t.Cleanup(func() { _ = r.Store.Close() })
	r.Index, r.Source, r.LockDir = r.index, posix.New(posix.Options{}), filepath.Join(r.memory, "locks")
	return r
}

func (r *repository) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// addShard creates a shard that has no snapshot yet.
func (r *repository) addShard(s backup.Shard) backup.Shard {
	r.Helper()
	filer, err := r.Index.EnsureFiler(r.Context(), "here")
	r.must(err)
	r.shards++
	s.Filer, s.Name = filer.ID, fmt.Sprint("shard ", r.shards)
	s, err = r.Index.AddShard(r.Context(), s)
	r.must(err)
	return s
}

// restore restores a whole snapshot, and returns the problems that the restore reports.
func (r *repository) restore(ctx context.Context, s *backup.Snapshot, target string) ([]backup.Problem, error) {
	var reported problems
	sum, err := restore.Restore(ctx, restore.Deps{
		Catalog: r.Index, Store: r.Store, Repository: r.Repository.ID, Opener: r.opener, HashKey: r.WorkerKey.Dedup,
	}, restore.Options{Snapshot: s.ID, Target: target, Pages: s.Pages, Compare: s.Compare}, &reported)
	if err == nil && sum.Problems != int64(len(reported.list)) {
		err = fmt.Errorf("%d problems in the summary, %d reported", sum.Problems, len(reported.list))
	}
	return reported.list, err
}

// problems collects the problems that a restore reports.
type problems struct {
	mu   sync.Mutex
	list []backup.Problem
}

func (*problems) Progress(restore.Progress) {}
func (*problems) Change(restore.Change)     {}
func (p *problems) Problem(problem backup.Problem) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = append(p.list, problem)
}

// chunk reads a chunk from its pack and verifies it.
func (r *repository) chunk(id backup.ChunkID) []byte {
	r.Helper()
	found, err := r.Index.LocateReadable(r.Context(), []backup.ChunkID{id})
	r.must(err)
	at := found[0]
	place := pack.Place{Object: store.PackName(at.Snapshot, at.Object), Offset: at.Offset, Bytes: at.Bytes}
	p := r.packs[at.Pack]
	if p == nil {
		p, err = pack.Open(r.Context(), r.Store, place, r.Repository.ID, at.Pack, r.opener)
		r.must(err)
		r.packs[at.Pack] = p
	}
	frame := p.Frames()[at.Frame]
	sealed, err := r.Store.GetRange(r.Context(), nil, place.Object, place.Offset+frame.Offset, frame.SealedLength)
	r.must(err)
	raw, err := p.DecodeFrame(nil, at.Frame, sealed, chunk.NewHasher(r.WorkerKey.Dedup))
	r.must(err)
	return raw[at.Start : at.Start+at.Length]
}
